"""Training from a notebook or a script, in this process, with your own module and data: `decentral.train`."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.overrides import literal
from decentral.config.parsing import folders_of, plain
from decentral.config.schema import Config
from decentral.data.own import PlainData, Sets
from decentral.errors import ConfigError
from decentral.host.torch_state import left_as_found
from decentral.host.torchrun import under_torchrun
from decentral.models.layers.foreign import check
from decentral.models.plain import PlainModel
from decentral.randomness import seeded
from decentral.registry import blame, component
from decentral.registry.typed import typed
from decentral.runtime.launch import launch
from decentral.script.fingerprint import fingerprint, trail
from decentral.script.loading import Trained, found_in
from decentral.store import RunStore, Status
from decentral.store.failures import RunFailed
from decentral.terminal.console import is_leader, say, warn

if TYPE_CHECKING:
    from decentral.data.dataset import LabelledData

_ARGUMENTS = {"model": "the first argument", "data": "train_data", "results_dir": "the argument results_dir"}
"""Settings that `train` takes as arguments of other names."""

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
    **settings: Any,
) -> Trained:
    """Train a model on n simulated workers and return the results.

        result = decentral.train(net, train_data, test_data, algo="relaysgd", topology="dbt", num_workers=16, alpha=0.1)
        result.averaged, result.models, result.metrics, result.plot()

    model         a torch.nn.Module, from which all workers start; a class or function that creates one (called with the
                  run's seed, and with num_classes=, in_channels= or in_features= if it has such parameters); or the
                  name of a built-in model, such as "cnn"
    train_data    a map-style data set of pairs (tensor, label), which is split over the workers by `alpha`; or the name
    test_data     of a built-in one, such as "digits", which has its own test data; None for a task without data, as in
                  decentral.train("policy_mlp", None, task="rl", env="CartPole-v1")
    settings      as on the command line of `decentral-run`, those of a component as a dictionary, as in
                  evaluation={"examples": 500}; texts are literal, including commas, quotes, and ${...}
    overrides     settings in the grammar of the command line: "schedule=constant", "schedule.warmup_epochs=5"
    config_dir    a folder with your own components, as `--config-dir`

    It is a run like any other: in this process, with progress output, stored in `results_dir`. The same call resumes an
    interrupted run. A finished run is not repeated, which is reported (rerun=True repeats it). A diverging run gives a
    warning. Its ID depends on the settings, on everything that determines what the model computes (see
    docs/own_components.md), and on all examples and labels.

    Raises ConfigError for an invalid setup, with the exception of your own code as `__cause__`, if there was one; any
    other exception of your code unchanged, with your frames (DECENTRAL_TRACEBACK=1: all of them) and the place in a
    note; and KeyboardInterrupt after Ctrl-C: the run keeps a checkpoint.
    """
    folder = None if config_dir is None else str(config_dir)
    config = _composed(model, train_data, test_data, [*_words(settings), *overrides], str(results_dir), folder)
    outcome = launch(config)
    if outcome.status is Status.interrupted:
        raise KeyboardInterrupt(f"the run has a checkpoint in {outcome.directory}: the same call resumes it")
    if outcome.status is Status.diverged:
        suspects = (RunStore.peek(outcome.directory) or {}).get("suspects")
        way = "; ".join(suspects) if suspects else f"use a smaller learning rate than lr={config.lr:g}"
        warnings.warn(
            f"the run diverged, so it has metrics but no models: {way}",
            stacklevel=5,  # above the decorators
        )
    if outcome.done_before and is_leader():
        say(f"Run {run_id(config)} is already finished: reused from {outcome.directory}; use rerun=True to repeat it.")
    made_again = partial(config.model.build, config.task.describe(config))
    found = found_in(outcome.directory, lambda settings: made_again)
    if config.progress and not outcome.done_before and is_leader():
        with_model = ", model=..." if "given" in (config.model.name, config.data.name) else ""
        call = f"decentral.load({str(found.directory)!r}{with_model})"
        say(f"Result: {found.directory}; result.plot() draws it, {call} reads it again.")
    return replace(found, reused=outcome.done_before)


def _composed(
    model: Any, train_data: Any, test_data: Any, words: list[str], results_dir: str, config_dir: str | None
) -> Config:
    """Return the configuration of a call of `train`; its settings are `words` of a command line."""
    made: dict[str, Any] = {}
    chosen: list[str] = []
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
        chosen.append(f"model={literal(model)}")
    else:
        made["model"] = GivenModel.of(model)
    folders_of(config_dir)
    tasks = [word.partition("=")[2] for word in words if word.startswith("task=")]
    task: Any = component("tasks", tasks[-1]) if tasks else None
    if task is not None and "data" not in task.uses:
        if train_data is not None or test_data is not None:
            raise ConfigError(
                f"task={task.name} has no data set: give None for train_data, and leave test_data out, as in "
                'decentral.train("policy_mlp", None, task="rl", env="CartPole-v1").'
            )
    elif isinstance(train_data, str):
        if test_data is not None:
            raise ConfigError(f"train_data={train_data} includes test data: leave test_data out.")
        chosen.append(f"data={literal(train_data)}")
    elif test_data is None:
        raise ConfigError("test_data= is missing: also give a map-style test set.")
    else:
        made["data"] = GivenData.of(train_data, test_data)
    config = compose([*chosen, *words, "processes=1", f"results_dir={literal(results_dir)}"], config_dir, made)
    if "model" in made and not isinstance(model, nn.Module):
        config.model.look_at(config.task.describe(config))
    return config


def _words(settings: Mapping[str, Any], inside: str = "") -> list[str]:
    """Return settings as written on the command line; the `name` of a component selects it."""
    found = list[str]()
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += _words(value, f"{inside}{key}.")
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


@dataclass
class GivenModel(PlainModel):
    """A module, from which all workers start, or a factory of one, called with seeded generators.

    content    a digest of all that decides what it computes
    """

    name: str = "given"
    content: str = ""
    _make: ClassVar[Any] = None

    @classmethod
    def of(cls, model: nn.Module | Callable[..., nn.Module]) -> GivenModel:
        """Wrap a module or factory. Raises ConfigError if it is neither."""
        if not callable(model):
            raise ConfigError(f"model= is a {type(model).__name__}: give a torch.nn.Module, or a class or function.")
        if isinstance(model, nn.Module):
            check(model, cls.name)
        found = cls(content=compared(model, getattr(model, "__name__", type(model).__name__)))
        vars(found)["_make"] = (lambda: model) if isinstance(model, nn.Module) else model
        if isinstance(model, nn.Module):
            vars(found)["facts"] = {"code": trail(model)}
        return found

    def look_at(self, data: LabelledData) -> None:
        """Add the created module to the digest: it may depend on files or other state outside the code."""
        with seeded(0, "look at model"):
            original = self.made(data)
            made = self.tried(original, data)
        self.content = compared((self.content, made), type(made).__name__)
        vars(self)["facts"] = {"code": trail(original)}

    def multiplications(self, data: LabelledData) -> float:
        """Count those of a forward pass of one example; infinity if that fails."""
        if "_count" not in vars(self):
            from torch.utils.flop_counter import FlopCounterMode

            vars(self)["_count"] = math.inf
            with suppress(RuntimeError, ValueError), seeded(0, "count multiplications"), torch.no_grad():
                module = self.build(data).float().eval()
                with FlopCounterMode(display=False) as counter:
                    module(torch.zeros(1, *data.shape, dtype=torch.float32))
                vars(self)["_count"] = counter.get_total_flops() / 2
        return float(vars(self)["_count"])

    def target(self) -> Callable[..., Any]:  # type: ignore[override]
        """Return the factory of the module."""
        made: Callable[..., Any] = self._make
        return made

    def settings(self) -> dict[str, Any]:
        """Return no settings: the arguments are fixed."""
        return {}


@dataclass
class GivenData(PlainData):
    """Two map-style data sets of pairs (tensor, label).

    content    a digest of their examples and labels, and of the code that reads them
    """

    name: str = "given"
    content: str = ""
    whole: ClassVar[bool] = True
    _both: ClassVar[Any] = None
    _found: ClassVar[Any] = None

    @classmethod
    def of(cls, train: Any, test: Any) -> GivenData:
        """Wrap the data sets. Raises ConfigError for other types."""
        found = cls()
        vars(found)["_both"] = train, test
        vars(found)["_found"] = found._made()
        digest = hashlib.sha256(str(found._found.description).encode())
        for name, data, look in zip(("train_data", "test_data"), (train, test), found._found.looks, strict=True):
            code, unknown = fingerprint(_code(data), name)
            if not look.digest:
                code, unknown = os.urandom(8).hex(), f"{name}[0] differs when read again"
            _say(unknown)
            digest.update(f"{look.digest} {code}\n".encode())
        found.content = digest.hexdigest()[:16]
        return found

    def target(self) -> Callable[..., Any]:  # type: ignore[override]
        """Return the function that returns both."""
        return lambda: self._both

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def _sets(self) -> Sets:
        found: Sets = self._found
        return found


def compared(value: Any, name: str) -> str:
    """Return a digest of what a value computes; tell the user if it is new each time.

    Raises ConfigError if it would differ between the processes of torchrun.
    """
    digest, unknown = fingerprint(value, name)
    _say(unknown)
    return digest


def _say(unknown: str) -> None:
    if unknown and under_torchrun():
        raise ConfigError(f"{unknown}, so torchrun's processes cannot agree on the run: start one process.")
    if unknown:
        warn(f"{unknown}, so this run is new; if it is interrupted, it starts again.")


def _code(data: Any, above: tuple[Any, ...] = ()) -> list[Any]:
    """Return the code that reads the examples, which may be random or behave differently later.

    Examples, caches, counters and paths among the attributes do not count: they show in the examples read.
    """
    known = getattr(data, "__dict__", {})
    parts = [part for one in known.values() for part in _parts(one) if isinstance(part, Dataset)]
    inner = [_code(part, (*above, data)) for part in parts if not any(part is one for one in (*above, data))]
    return [type(data), {name: one for name, one in known.items() if _decides(one)}, *inner]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | dict):
        return list(value.values() if isinstance(value, dict) else value)
    return [value]


def _decides(value: Any) -> bool:
    """Return whether reading may depend on it: a callable, a probability, a switch, a configuration."""
    data = list, tuple, set, dict, int, str, bytes, os.PathLike, Tensor, np.ndarray, Dataset
    if any(callable(part) or type(part) in (bool, float) for part in _parts(value)):
        return True
    return not (isinstance(value, data) or fingerprint(value, "")[1])
