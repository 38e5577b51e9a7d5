"""Load the results of a run: models, metrics and configuration."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from decentral.algorithms.features import USUAL, Feature
from decentral.config.identity import named_id
from decentral.config.parsing import build, component_from, folders_of, read, read_yaml, run_settings, stored_config
from decentral.config.schema import GROUPS, Config
from decentral.errors import ConfigError, suggest
from decentral.gradients.precision import Precision, cast
from decentral.host.torch_state import left_as_found
from decentral.registry import component, components
from decentral.registry.typed import typed
from decentral.report.run_figures import draw_learning_curves
from decentral.report.runs_table import throughput
from decentral.report.series import read_curves, stored_runs
from decentral.store import RunStore, Status, read_metrics
from decentral.store.files import at_home, is_locked
from decentral.store.metrics import AXES, read_metadata
from decentral.store.models import AVERAGED, load_models
from decentral.store.run_store import LOCK, recorded_id
from decentral.tasks.task import EvaluationSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn


@dataclass(frozen=True)
class Trained:
    """The result of a run, as `load` and `train` return it."""

    directory: Path
    status: str
    """done, or diverged, running, interrupted, failed."""
    settings: dict[str, Any] = field(repr=False)
    """All settings as on the command line (`algo`, `algo.fill`, `lr`), including defaults."""
    metrics: pd.DataFrame = field(repr=False)
    """One row per value: step, epoch, wall_s, bytes_sent, worker (a number, worst, mean or averaged), split, metric and
    value."""
    models: list[nn.Module] = field(repr=False)
    """Every worker's model, in evaluation mode; only the worst worker's if all would take more than 2 GB."""
    averaged: nn.Module | None = field(repr=False)
    """The average of all workers' parameters, with its own batch statistics. Without models (save=none, a task without
    networks, or a diverged run) it is None, and `models` is empty."""
    reused: bool = field(default=False, repr=False)
    """Whether `train` found a finished run and computed nothing."""

    _absolute: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_absolute", Path(os.path.abspath(self.directory)))  # survives os.chdir

    @typed("metric", "x")
    def plot(self, metric: str | None = None, x: str | None = None) -> Figure | Axes:
        """Plot the run's figure, learning_curves.png of its directory.

        With `metric` or `x`, plot one panel instead and return its axes: the metric ('accuracy', or with its split
        'local accuracy'; by default the run's target metric) of the worst worker, the averaged model and the mean over
        workers against epoch, step, wall_s, bytes_sent or simulated_s. Raises ConfigError before the first evaluation.
        """
        import matplotlib.pyplot as plt

        if self.metrics.empty:
            raise ConfigError(f"{self.directory} has no metrics yet: it is {self.status}.")
        if metric is None and x is None:
            figure = plt.figure()
            draw_learning_curves(figure, self._absolute, read_curves(self._absolute))
            return figure
        x = x or "epoch"
        known = list(read_metadata(self._absolute, zip(self.metrics.split, self.metrics.metric, strict=True)).values())
        axes_known = [axis for axis in AXES if axis in self.metrics]
        if x not in axes_known:
            raise ConfigError(f"x={x} is not an axis of {self.directory}.{suggest(x, axes_known)}")
        named = [one for one in known if one.split != "train" and metric in (None, one.name)]
        named += [one for one in known if one.words == (metric or "").replace("_", " ")]
        if not named:
            names = ", ".join(one.words for one in known)
            raise ConfigError(f"metric={metric} is not among the metrics of {self.directory}: {names}.")
        shown = named[0]
        rows = self.metrics[(self.metrics.metric == shown.name) & (self.metrics.split == shown.split)]
        _, axes = plt.subplots(figsize=(6, 4))
        for worker, style in (("worst", "-"), ("mean", "--"), ("averaged", ":")):
            curve = rows[rows.worker == worker]
            axes.plot(curve[x], curve.value * (100 if shown.percent else 1), style, label=worker)
        algo, topology = self.settings["algo"], self.settings["topology"]
        unit = f" ({shown.unit})" if shown.unit else ""
        axes.set(
            xlabel=AXES.get(x, x),
            ylabel=f"{shown.words}{unit}",
            title=f"{algo} on {topology}, {self.settings['num_workers']} workers",
        )
        axes.legend()
        return axes

    def translate(self, sentences: Sequence[str], model: nn.Module | None = None) -> list[str]:
        """Translate sentences with the averaged model, or with `model`; for runs of task=translation.

        Decoding is as in evaluations (`task.beam`). Raises ConfigError for a run of another task, without models or
        whose data are gone, and for sentences that are empty, too long, or contain unknown words.
        """
        module, task = self.averaged if model is None else model, self.settings.get("task")
        translate = getattr(component("tasks", str(task)), "translate", None)
        if translate is None:
            raise ConfigError(f"{self.directory} is a run of task={task}: translate needs a run of task=translation.")
        if module is None:
            raise ConfigError(
                f"{self.directory} has no models: it is {self.status}, with save={self.settings.get('save')}; use a "
                "run that is done, with save=final or best."
            )
        values = read_yaml(self._absolute / "config.yaml")
        evaluation = build(EvaluationSettings, values.get("evaluation", {}), "evaluation")
        found: list[str] = translate(
            component_from("task", values), module, sentences, component_from("data", values), evaluation
        )
        return found


@typed()
def load(
    run: str | Path,
    results_dir: str | Path = "results",
    model: nn.Module | Callable[..., nn.Module] | None = None,
    config_dir: str | Path | None = None,
    trust: bool = False,
) -> Trained:
    """Load the models, metrics and settings of a run, by its directory, ID or name; `results_dir` and its folder `own`,
    where studies are, are searched.

    `model` is the module it was trained with, or its class or function, if `train` got one: the stored weights are
    loaded into copies of it. `config_dir` is the folder with your own components. Nothing that is read is executed,
    unless `trust` allows importing the `module:Name` that the run names as its model or data.

    Raises ConfigError if there is no such run, or if the file with its models is missing, damaged or of another run.
    """
    folders_of(str(config_dir) if config_dir else None)
    directory = _directory(run, results_dir)
    return found_in(directory, lambda settings: _maker(directory, settings, model, trust))


def found_in(directory: Path, maker: Callable[[Mapping[str, Any]], Callable[[], nn.Module]]) -> Trained:
    """Load a run from its directory; `maker` returns, for its settings, a factory of the module as it was trained."""
    status = str((RunStore.peek(directory) or {}).get("status", "unknown"))
    if status == Status.running and not is_locked(directory / LOCK):
        status = str(Status.interrupted)
    settings, metrics = run_settings(directory), pd.DataFrame(read_metrics(directory))
    task: Any = component("tasks", str(settings.get("task")))
    if status != "done" or settings.get("save") == "none" or (task is not None and "model" not in task.uses):
        return Trained(directory, status, settings, metrics, [], None)
    stored = load_models(directory, recorded_id(directory))
    workers = sorted((name for name in stored if name != AVERAGED), key=lambda name: int(name[len("worker") :]))
    precision = Precision.fp64 if settings.get("precision") == "fp64" else Precision.fp32
    with left_as_found():
        make = maker(settings)
        models = [_with(make(), stored[name], precision) for name in (*workers, AVERAGED)]
    return Trained(directory, status, settings, metrics, models[:-1], models[-1])


def _maker(
    directory: Path, settings: Mapping[str, Any], model: nn.Module | Callable[..., nn.Module] | None, trust: bool
) -> Callable[[], nn.Module]:
    """Return a factory of the module as it was trained."""
    import torch

    from decentral.gradients.passes.worker_models import copied
    from decentral.script.given import GivenData, GivenModel

    if isinstance(model, torch.nn.Module):
        return lambda: copied(model)
    by_data, made = settings.get("data") == "given", dict[str, Any]()
    if (model is None and settings.get("model") == "given") or (by_data and "data.shape" not in settings):
        raise ConfigError(
            f"{directory} was trained with a model or data from Python: give the module, load(..., model=net)."
        )
    if by_data:
        made["data"] = build(GivenData, stored_config(directory)["data"], "data")
    if model is not None:
        made["model"] = GivenModel.of(model)
    config = read(directory / "config.yaml", trust, made)
    description = config.task.describe(config)

    def make() -> nn.Module:
        found: nn.Module = config.model.build(description)
        return found

    return make


def _with(module: nn.Module, tensors: dict[str, Any], precision: Precision) -> nn.Module:
    from decentral.gradients.passes.worker_models import make_room, with_versions

    cast(module, precision.dtype)
    make_room(module, tensors)
    try:
        module.load_state_dict(with_versions(module, tensors))
    except RuntimeError as error:
        raise ConfigError(f"model= is not what the run was trained with: {' '.join(str(error).split())}") from None
    return module.eval()


@typed()
def runs(results_dir: str | Path = "results") -> pd.DataFrame:
    """Return all runs in a results folder, one row per run: id, status, directory, settings and last metrics.

    Settings have their command-line names (`algo`, `algo.fill`, `lr`); those without effect are omitted, such as the
    topology of an all-reduce. Metrics are named 'test accuracy (worst)', likewise for mean and averaged; 'steps/s' and
    'examples/s' are the training throughput. A run with damaged files has the status 'unreadable' and a `reason`. A
    run counts once, in the folder that has its name: a warning names copies and links. Raises ConfigError if there is
    no such folder.
    """
    rows = []
    if not os.path.isdir(at_home(results_dir)):
        raise ConfigError(f"results_dir={results_dir} is not a folder: give one with runs.")
    found, left_out = stored_runs(at_home(results_dir))
    if left_out:
        warnings.warn(f"{left_out}.", stacklevel=3)  # above the decorator
    for run, settings, _, last in found:
        row: dict[str, Any] = {"id": run.run_id, "status": str(run.status), "directory": str(run.path)}
        if run.reason:
            row["reason"] = run.reason
        else:
            row |= _applicable(settings) | throughput(settings, run.facts) | last
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["id", "status", "directory"])


def _applicable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the settings of groups that the task or the algorithm does not use."""
    task, algo = (components(GROUPS[group]).get(str(settings.get(group))) for group in ("task", "algo"))
    unused = {"data", "env", "partition", "model"} - set(getattr(task, "uses", GROUPS))
    unused |= set() if Feature.topology in getattr(algo, "supports", USUAL) else {"topology", "communication"}
    unused |= {"optim", "schedule", "lr"} if Feature.training not in getattr(algo, "supports", USUAL) else set()
    belongs = {f.name: f.metadata.get("group") for f in fields(Config)}
    return {
        key: value
        for key, value in settings.items()
        if key.partition(".")[0] not in unused and belongs.get(key) not in unused
    }


def _directory(run: str | Path, results_dir: str | Path) -> Path:
    results = at_home(results_dir)
    folders = [results / "runs" / str(run), results / "own" / "runs" / str(run)]  # of commands and of studies
    for path in (at_home(run), *folders, results / "runs" / named_id(str(run))):
        if os.path.isfile(path / "config.yaml"):
            return path
    raise ConfigError(f"{run} is not a run: config.yaml is missing in it and in {' or '.join(map(str, folders))}.")
