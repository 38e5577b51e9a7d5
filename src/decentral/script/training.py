"""Training from a notebook or a script: one's own module and data, in this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from decentral.config.composition import compose, folders_of
from decentral.config.files import plain
from decentral.config.identity import run_id
from decentral.config.overrides import literal
from decentral.errors import ConfigError
from decentral.host.caller import left_as_found
from decentral.registry import blame, component
from decentral.runtime.launch import launch
from decentral.script.loading import Trained, found_in
from decentral.store import RunStore, Status
from decentral.store.failures import RunFailed
from decentral.terminal.console import is_leader, say

if TYPE_CHECKING:
    from torch import nn

    from decentral.tasks.task import Task

_ARGUMENTS = {"model": "the first argument", "data": "train_data", "results_dir": "the argument results_dir"}
"""Settings that are given to `train` otherwise."""


P = ParamSpec("P")
T = TypeVar("T")


def _in_frames_of_the_user(function: Callable[P, T]) -> Callable[P, T]:
    """The function; what fails in the user's code fails with the frames of that code alone, and a note that says so."""

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


@_in_frames_of_the_user
@left_as_found()
def train(
    model: nn.Module | Callable[..., nn.Module] | str,
    train_data: Any,
    test_data: Any = None,
    *overrides: str,
    results_dir: str | Path = "results",
    config_dir: str | Path | None = None,
    **settings: Any,
) -> Trained:
    """Train a model for each of n simulated workers, and return what has become of them.

        result = decentral.train(net, train_data, test_data, algo="relaysgd", topology="dbt", num_workers=16, alpha=0.1)
        result.averaged, result.models, result.metrics, result.plot()

    model         a torch.nn.Module, from which all workers start; a class or function that makes one (called with the
                  run's seed, and with num_classes=, in_channels= or in_features= if it asks for them); or the name of
                  one of ours, such as "cnn"
    train_data    a map-style data set of pairs (tensor, label), which is split over the workers by `alpha`; or the name
    test_data     of one of ours, such as "digits", which has its own test data; None for a task without data, as in
                  decentral.train("policy_mlp", None, task="rl", env="CartPole-v1")
    settings      as on the command line of `decentral-run`, those of a part as a dictionary, as in
                  evaluation={"examples": 500}; every text is taken as it is, with its commas, quotes, and ${...}
    overrides     settings in the grammar of the command line: "schedule=constant", "schedule.warmup_epochs=5"
    config_dir    a folder with components of one's own, as `--config-dir`

    It is a run as any other: in this process, shown while it works, stored in `results_dir`, resumed if it was
    interrupted (the same call goes on), not computed again if it is done, which is said (rerun=True does that). A run
    that diverges is warned of. Its id depends on the settings, on all that decides what the model computes (see
    docs/own_components.md), on all examples and labels.

    Raises ConfigError for what cannot be, whose `__cause__` is what your own code raised, if it did; any other
    exception of your code as it is, with your frames (DECENTRAL_TRACEBACK=1: all of them) and the place in a note; and
    KeyboardInterrupt after Ctrl-C: the run keeps a checkpoint.
    """
    import torch

    from decentral.script.given import GivenData, GivenModel

    made: dict[str, Any] = {}
    chosen = _words(settings)
    for word in (*chosen, *overrides):
        key, _, value = word.replace('"', "").partition("=")
        if value != {"processes": "1", "launcher": "local"}.get(key, value):
            raise ConfigError(
                f"{word} is not for decentral.train, which works in this process: "
                "decentral-run has them, for a model and data that are in a file (docs/own_components.md)."
            )
        if key in _ARGUMENTS:
            raise ConfigError(f"{word} is {_ARGUMENTS[key]} of decentral.train: give {value!r} there.")
    if isinstance(model, str):
        chosen.append(f"model={literal(model)}")
    else:
        made["model"] = GivenModel.of(model)
    config_dir = None if config_dir is None else str(config_dir)
    folders_of(config_dir)
    task = _task([*chosen, *overrides])
    if task is not None and "data" not in task.uses:
        if train_data is not None or test_data is not None:
            raise ConfigError(
                f"task={task.name} has no data set: give None for train_data, and leave test_data out, as in "  # type: ignore[attr-defined]
                'decentral.train("policy_mlp", None, task="rl", env="CartPole-v1").'
            )
    elif isinstance(train_data, str):
        if test_data is not None:
            raise ConfigError(f"train_data={train_data} has test data of its own: leave test_data out.")
        chosen.append(f"data={literal(train_data)}")
    else:
        if test_data is None:
            raise ConfigError("test_data= is missing: give a map-style data set, too.")
        made["data"] = GivenData.of(train_data, test_data)
    overrides = (*chosen, *overrides, "processes=1", f"results_dir={literal(str(results_dir))}")
    config = compose(overrides, config_dir, made)
    if "model" in made and not isinstance(model, torch.nn.Module):
        config.model.look_at(config.task.describe(config))
    outcome = launch(config)
    if outcome.status is Status.interrupted:
        raise KeyboardInterrupt(f"the run has a checkpoint in {outcome.directory}: the same call resumes it")
    if outcome.status is Status.diverged:
        suspects = (RunStore.peek(outcome.directory) or {}).get("suspects")
        way = "; ".join(suspects) if suspects else f"try a smaller rate than lr={config.lr:g}"
        warnings.warn(
            f"the run diverged, so that it has metrics but no models: {way}",
            stacklevel=4,  # above the decorators
        )
    if outcome.done_before and is_leader():
        say(f"Run {run_id(config)} is done already: reused from {outcome.directory}; rerun=True computes it again.")
    made_again = partial(config.model.build, config.task.describe(config))
    found = found_in(outcome.directory, lambda settings: made_again)
    if config.progress and not outcome.done_before and is_leader():
        call = f"decentral.load({str(found.directory)!r}{', model=...' if made else ''})"
        say(f"Result: {found.directory}; result.plot() draws it, {call} reads it again.")
    return replace(found, reused=outcome.done_before)


def _task(words: Sequence[str]) -> type[Task] | None:
    """That which settings choose, None where they leave it open or it does not exist."""
    named = [word.partition("=")[2] for word in words if word.startswith("task=")]
    return cast("type[Task] | None", component("tasks", named[-1])) if named else None


def _words(settings: Mapping[str, Any], inside: str = "") -> list[str]:
    """Settings as they are written on the command line; the `name` of a part chooses it."""
    found = list[str]()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += _words(value, f"{inside}{key}.")
        else:
            chosen = key == "name" and inside.count(".") == 1
            found.append(f"{inside[:-1] if chosen else inside + key}={_word(value)}")
    return found


def _word(value: Any) -> str:
    """A value as it is written on the command line."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return str(value) if isinstance(value, Real) else literal(str(value))
