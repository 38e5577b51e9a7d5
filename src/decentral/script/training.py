"""Training from a notebook or a script, in this process, with your own module and data: `decentral.train`."""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from numbers import Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import nn

from decentral.config.composition import compose
from decentral.config.overrides import checked, literal, parsed_override
from decentral.config.parsing import as_settings, folders_of, plain
from decentral.config.prepared import Prepared, prepare
from decentral.config.schema import GROUPS, Config
from decentral.data.dataset import NO_TEST
from decentral.errors import ConfigError
from decentral.host.torch_state import left_as_found
from decentral.host.torchrun import check_launcher, under_torchrun
from decentral.registry import blame, component, find
from decentral.registry.typed import typed
from decentral.report.summary import load_call
from decentral.runtime.launch import launch
from decentral.script.components import chosen
from decentral.script.given import GivenData, GivenModel
from decentral.script.loading import Trained, found_in
from decentral.store import RunStore, Status
from decentral.store.failures import RunFailed
from decentral.store.files import read_json
from decentral.store.run_store import id_in_config
from decentral.terminal.console import is_leader, say

_ARGUMENTS = {
    **{"model": "the first argument", "data": "train_data"},
    **{"results_dir": "the argument results_dir", "name": "the argument name"},
}
"""Settings that `train` takes as arguments."""
_WORDS = {
    **{"model.content": "initial_weights", "data.content": "labels"},
    **{"topology.content": "the given topology", "partition.content": "the given indices"},
    **{"eval_every_epochs": "evaluation.every_epochs", "task.test_batch_size": "evaluation.batch_size"},
}
"""Other names in a run's identity of what the user gives."""

P = ParamSpec("P")
T = TypeVar("T")


def _in_frames_of_the_user(function: Callable[P, T]) -> Callable[P, T]:
    """Show errors in the user's code with the frames of that code only, and a note that says so."""

    @wraps(function)
    def call(*arguments: P.args, **settings: P.kwargs) -> T:
        try:
            return function(*arguments, **settings)
        except Exception as error:
            place, refused = blame.place(error), isinstance(error, ConfigError | RunFailed)
            if (place is None and not refused) or os.environ.get("DECENTRAL_TRACEBACK"):
                raise
            if not refused:
                error.add_note(
                    f"raised at {place}, in code that decentral.train called (DECENTRAL_TRACEBACK=1: all frames)"
                )
            blame.shorten(error)
            raise

    return call


@typed()
@_in_frames_of_the_user
@left_as_found()
def train(
    model: nn.Module | Callable[..., nn.Module] | str,
    train_data: Any,
    test_data: Any = None,
    *overrides: str,
    results_dir: str | Path = "results",
    config_dir: str | Path | None = None,
    name: str | None = None,
    **settings: Any,
) -> Trained:
    """Train a model on n simulated workers and return the results.

        result = decentral.train(net, train_data, test_data, algo="relaysgd", topology="dbt", num_workers=16, alpha=0.1)
        result.averaged, result.models, result.metrics, result.plot()

    model         a torch.nn.Module, from which all workers start; a class or function that creates one (called with the
                  run's seed, and with num_classes=, in_channels= or in_features= if it has such parameters); or the
                  name of a built-in model, such as "cnn"
    train_data    a map-style data set of pairs (tensor, label), or a pair of tensors (X, Y), which is split over the
    test_data     workers by `alpha`; or the name of a built-in one, such as "digits", which has its own test data; None
                  with data={"test_share": 0.2}, a fifth of the training examples for testing; and for a task without
                  data, as in decentral.train("policy_mlp", None, task="rl", env="CartPole-v1")
    settings      as on the command line of `decentral-run`, those of a component as a dictionary, as in
                  evaluation={"examples": 500}; texts are literal, including commas, quotes, and ${...}. A component may
                  be an object instead of a name: your own class, an object of it, or a function, as in algo=MyMethod or
                  schedule={"name": halves, "every": 2}; for topology= a graph of networkx, a matrix, or a list of them;
                  for partition= a list with the indices of each worker, and for its `column` a function of an example
                  or the group of each one. Objects are copied for each run
    overrides     settings in the grammar of the command line: "schedule=constant", "schedule.warmup_epochs=5"
    config_dir    a folder with your own components, as `--config-dir`
    name          a name for the run, which the same call resumes or returns

    It is a run like any other: in this process, with progress output, stored in `results_dir`. A diverging run gives a
    warning. A run with objects of Python is new every time, unless it has a name: then you vouch for the
    objects, and the same name with the same settings, initial weights, shapes and labels resumes an interrupted run and
    returns a finished one, which is reported (rerun=True repeats it). With others it is refused. A run without such
    objects needs no name, as on the command line.

    Raises ConfigError for an invalid setup or a name that is taken, with the exception of your own code as `__cause__`,
    if there was one; any other exception of your code unchanged, with your frames (DECENTRAL_TRACEBACK=1: all of them)
    and the place in a note; and KeyboardInterrupt after Ctrl-C: the run keeps a checkpoint.
    """
    folder = None if config_dir is None else str(config_dir)
    objects, words = taken_out(settings)
    config = _composed(model, train_data, test_data, objects, [*words, *overrides], str(results_dir), folder, name)
    run = prepare(config)
    if name is not None:
        _claim(run)
    outcome = launch(run)
    if outcome.status is Status.interrupted:
        unnamed = "the same call begins a new run: give it name=..., then it can be resumed"
        is_new = name is None and any("files_digest" in vars(getattr(config, group)) for group in GROUPS)
        how = unnamed if is_new else "the same call resumes it"
        raise KeyboardInterrupt(f"the run in {outcome.directory} was interrupted: {how}")
    if outcome.status is Status.diverged:
        suspects = (RunStore.peek(outcome.directory) or {}).get("suspects")
        way = "; ".join(suspects) if suspects else f"use a smaller learning rate than lr={config.lr:g}"
        warnings.warn(
            f"the run diverged, so it has metrics but no models: {way}",
            stacklevel=5,  # above the decorators
        )
    if outcome.done_before and is_leader():
        which = run.id if name is None else repr(name)
        say(f"Run {which} is already finished: reused from {outcome.directory}; use rerun=True to repeat it.")
    found = found_in(outcome.directory, lambda: config)
    if config.progress and not outcome.done_before and is_leader():
        word = getattr(model, "__name__", "net")
        call = load_call(found.directory, folder, word if word.isidentifier() else "net")
        say(f"Result: {found.directory}; result.plot() draws it, {call} reads it again.")
    return replace(found, reused=outcome.done_before)


def _composed(
    model: Any,
    train_data: Any,
    test_data: Any,
    objects: Mapping[str, Any],
    words: list[str],
    results_dir: str,
    config_dir: str | None,
    name: str | None,
) -> Config:
    """Return the configuration of a call of `train`; its settings are `words` of a command line, and objects."""
    if name is not None and not (name.strip() and name.isprintable() and not {"/", "\\"} & set(name)):
        raise ConfigError(f"name={name!r} cannot be a run's name: use a line of text without slashes.")
    made: dict[str, Any] = {}
    choices: list[str] = [] if name is None else [f"name={literal(name)}"]
    for word in words:
        key, _, value = word.replace('"', "").partition("=")
        if value != {"processes": "1", "launcher": "local"}.get(key, value):
            raise ConfigError(
                f"{word} cannot be used with decentral.train, which works in this process: use decentral-run, with "
                "the model and data in a file (docs/own_components.md)."
            )
        if key in _ARGUMENTS:
            raise ConfigError(f"{word} is {_ARGUMENTS[key]} of decentral.train: give {value!r} there.")
    if isinstance(model, str):
        choices.append(f"model={literal(model)}")
    else:
        made["model"] = GivenModel.of(model)
    given, words = made_of(objects, words, config_dir)
    made |= given
    tasks = [word.partition("=")[2] for word in words if word.startswith("task=")]
    task: Any = made.get("task") or (component("tasks", tasks[-1]) if tasks else None)
    if task is not None and "data" not in task.uses:
        if train_data is not None or test_data is not None:
            raise ConfigError(
                f"task={task.name} has no data set: give None for train_data, and leave test_data out, as in "
                'decentral.train("policy_mlp", None, task="rl", env="CartPole-v1").'
            )
    elif isinstance(train_data, str):
        if test_data is not None:
            raise ConfigError(f"train_data={train_data} includes test data: leave test_data out.")
        choices.append(f"data={literal(train_data)}")
    else:
        shares = [word.partition("=")[2] for word in words if word.startswith("data.test_share=")]
        words = [word for word in words if not word.startswith("data.test_share=")]
        if test_data is None and not shares:
            raise ConfigError(f"test_data= is missing: also give a map-style test set; or {NO_TEST}.")
        made["data"] = GivenData.of(train_data, test_data, *shares[-1:])
    if made and name is None and under_torchrun():
        check_launcher()
        raise ConfigError(
            "name= is missing: under torchrun, a run with a model, data or objects of Python needs a name by which all "
            "processes find it, as in name='first'."
        )
    config = compose([*choices, *words, "processes=1", f"results_dir={literal(results_dir)}"], config_dir, made)
    if "model" in made:
        config.model.look_at(config)
    for group, each in made.items() if name is None else ():
        if type(each) is not find.ours(GROUPS[group]).get(each.name) or getattr(each, "given", None) is not None:
            vars(each)["files_digest"] = partial(str, secrets.token_hex(8))
    return config


def taken_out(settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the objects among the settings of a call, and the other settings as words of a command line."""
    objects = {group: settings.pop(group) for group in GROUPS if _is_object(group, settings.get(group))}
    return objects, _words(settings)


def made_of(objects: Mapping[str, Any], words: list[str], config_dir: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the components of the objects, whose settings are among the words, and the other words."""
    made, folders = dict[str, Any](), folders_of(config_dir)
    for group, value in objects.items():
        own = dict(value) if isinstance(value, Mapping) else {"name": value}
        mine = [word for word in words if word.startswith(f"{group}.")]
        words = [word for word in words if word not in mine]
        for word in map(parsed_override, checked(mine, folders)):
            own[word.key_or_group.partition(".")[2]] = word.value()
        made[group] = chosen(GROUPS[group], own.pop("name"), own)
        usual = getattr(made[group], "usual", {}).items()
        words = [*(f"{key}={word}" for key, word in usual if not any(one.startswith(key) for one in words)), *words]
    return made, words


def _is_object(group: str, value: Any) -> bool:
    """Return whether the choice in a group is an object, instead of a name, or has a function or array as a setting."""
    parts = list(value.values()) if isinstance(value, Mapping) else [value]
    named = value.get("name") if isinstance(value, Mapping) else value
    if group in (*_ARGUMENTS, "launcher"):
        return False
    return not isinstance(named, str | Real | None) or any(map(_is_content, parts))


def _is_content(value: Any) -> bool:
    """Return whether a setting is a function, an array or a graph, which no line of text holds."""
    return callable(value) or hasattr(value, "dtype") or hasattr(value, "adjacency")


def _claim(run: Prepared) -> None:
    """Check that the name has no run with another identity, or with `rerun` set what that run has stored aside.

    Raises ConfigError, with the first setting that differs.
    """
    config, directory = run.config, run.directory
    if id_in_config(directory) is None:
        return
    now = as_settings(json.loads(json.dumps(run.identity)))
    then = as_settings((read_json(directory / "provenance.json") or {}).get("identity") or {})
    differing = [key for key in now | then if now.get(key) != then.get(key)]
    if not differing:
        return
    if then and not run.rerun:
        key = min(differing, key=lambda key: key in _WORDS)
        word = _WORDS.get(key, key)
        raise ConfigError(
            f"name={config.name} has a run with {word}={_word(then.get(key))}, not {word}={_word(now.get(key))}: use "
            "another name, or rerun=True to replace that run."
            + f" seed={config.seed} does not apply to a model that is already built: call torch.manual_seed before you "
            "build it." * (word == "initial_weights")
        )
    if is_leader():
        RunStore.forget(directory, run.id, run.text)


def _words(settings: Mapping[str, Any], inside: str = "") -> list[str]:
    """Return settings as written on the command line; the `name` of a component selects it."""
    found = list[str]()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += _words({str(name): one for name, one in value.items()}, f"{inside}{key}.")
        else:
            chosen = key == "name" and inside.count(".") == 1
            found.append(f"{inside[:-1] if chosen else inside + key}={_word(value)}")
    return found


def _word(value: Any) -> str:
    """Return a value as written on the command line."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return str(value) if isinstance(value, Real) else literal(str(value))
