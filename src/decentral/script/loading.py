"""Load the results of a run: models, metrics and configuration."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from decentral.algorithms.features import USUAL, Feature
from decentral.config.identity import named_id
from decentral.config.parsing import build, component_from, folders_of, read, read_yaml, run_settings, stored_config
from decentral.config.schema import GROUPS, Config
from decentral.data.dataset import DataDescription, TokenData, opened
from decentral.errors import ConfigError, suggest
from decentral.gradients.precision import Precision, cast
from decentral.host.torch_state import left_as_found
from decentral.registry import component, components
from decentral.registry.signature import taken
from decentral.registry.typed import typed
from decentral.report.run_figures import draw_learning_curves
from decentral.report.runs_table import throughput
from decentral.report.series import read_curves, stored_runs
from decentral.store import RunStore, Status, read_metrics
from decentral.store.files import at_home, is_locked, read_json
from decentral.store.metrics import AXES, read_metadata
from decentral.store.models import AVERAGED, load_models
from decentral.store.run_store import LOCK, recorded_id
from decentral.tasks.task import EvaluationSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn
    from torch.utils.data import TensorDataset


_BATCH = 256


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
    _config: Callable[[], Config] = field(default=Config, repr=False, compare=False)

    _absolute: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_absolute", Path(os.path.abspath(self.directory)))  # survives os.chdir

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_config": partial(_config, self._absolute, None, False)}  # objects cannot be pickled

    def predict(self, data: Any, model: nn.Module | None = None) -> np.ndarray:
        """Return the predictions of the averaged model, or of `model`: of classifiers the numbers of the classes, int64
        [N]; otherwise the outputs [N, ...].

        data   inputs [N, ...] as the model takes them, a tensor or an array; a map-style data set of inputs or of pairs
               (input, label), such as `test_data`; or a `DataLoader`, or any iterable, of batches of these
        """
        import torch

        from decentral.models.layers.statistics import evaluating

        module, task = self._module(model), component("tasks", str(self.settings.get("task")), trust=False)
        if isinstance(data, list) and isinstance(data[0] if data else 0.0, list | int | float):
            data = np.asarray(data)
        if isinstance(data, torch.Tensor | np.ndarray):
            data = torch.utils.data.TensorDataset(torch.as_tensor(data))
        if hasattr(data, "__getitem__"):
            data = torch.utils.data.DataLoader(data, _BATCH)
        takes_tokens = issubclass(getattr(task, "takes", DataDescription), TokenData)
        like = next(module.parameters(), torch.empty(0))
        found = []
        with evaluating(module), torch.no_grad():
            for batch in data:
                inputs = torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch).to(like.device)
                found.append(module(inputs if takes_tokens else inputs.to(like.dtype)).cpu())
        outputs = torch.cat(found)
        has_classes = getattr(task, "has_classes", False)
        if has_classes and outputs.dim() == 1 and inputs.dim() == 1:
            raise ConfigError("data= is a single example: give a batch [N, ...], as in predict(x[None]).")
        is_classifier = has_classes and outputs.dim() == 2 and outputs.shape[1] > 1
        return (outputs.argmax(1) if is_classifier else outputs).numpy()

    @property
    def test_data(self) -> TensorDataset:
        """The test examples of the run's evaluations, normalized as in training: pairs (input, label), in memory.

        Raises ConfigError for a task without a data set, and if the data are not there: after `load`, those given to
        `train` as objects.
        """
        from torch.utils.data import TensorDataset

        return TensorDataset(*next(self._tested()))

    @property
    def class_names(self) -> list[str]:
        """The names of the classes: of the data set, or their numbers. Raises ConfigError for a run without classes."""
        if names := (read_json(self._absolute / "names.json") or {}).get("class"):
            return list(names)
        table = self._absolute / "partition.csv"
        columns = table.read_text().partition("\n")[0].split(",") if table.is_file() else []
        found = [column.removeprefix("class_") for column in columns if column.startswith("class_")]
        if not found:
            raise ConfigError(f"{self.directory} has no classes: it is a run of task={self.settings.get('task')}.")
        return found

    def confusion(self, model: nn.Module | None = None, data: Any = None) -> pd.DataFrame:
        """Return how many examples of `test_data` the averaged model, or `model`, takes for what: a row for each class,
        a column for each prediction. `data` is another map-style data set of pairs (input, label): the one given to
        `train` is not stored."""
        import torch

        names = self.class_names
        batches = self._tested(_BATCH) if data is None else torch.utils.data.DataLoader(data, _BATCH)
        pairs = [(targets, self.predict(inputs, model)) for inputs, targets in batches]
        actual, predicted = (np.concatenate(each) for each in zip(*pairs, strict=True))
        more = map(str, range(len(names), predicted.max() + 1))  # of a model with more outputs than classes
        columns = pd.Index([*names, *more], name="predicted")
        counts = np.zeros((len(names), len(columns)), dtype=np.int64)
        np.add.at(counts, (actual, predicted), 1)
        return pd.DataFrame(counts, pd.Index(names, name="class"), columns)

    def _tested(self, batch_size: int | None = None) -> Iterator[Any]:
        """Yield inputs and labels of the test examples, in one batch unless it has a size."""
        import torch

        config = self._config()
        if "data" not in config.task.uses:
            raise ConfigError(f"{self.directory} has no test data: it is a run of task={config.task.name}.")
        config.data.prepare()
        with closing(opened(config.data, "cpu", config.seed)) as data:
            data.exact = config.precision is Precision.fp64
            numbers = torch.from_numpy(config.evaluation.numbers(data.num_test))
            yield from data.test_batches(batch_size or len(numbers), numbers)

    def _module(self, model: nn.Module | None) -> nn.Module:
        """Return the model, or the averaged one. Raises ConfigError if there is none."""
        if (module := self.averaged if model is None else model) is None:
            raise ConfigError(
                f"{self.directory} has no models: it is {self.status}, with save={self.settings.get('save')}; use a "
                "run that is done, with save=final or best."
            )
        return module

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
        task = self.settings.get("task")
        translate = getattr(component("tasks", str(task), trust=False), "translate", None)
        if translate is None:
            raise ConfigError(f"{self.directory} is a run of task={task}: translate needs a run of task=translation.")
        module = self._module(model)
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
    unless `trust` allows importing the `module:Name` that the run names for its task, data or model. A run
    prints the call that loads it.

    Raises ConfigError if there is no such run, or if the file with its models is missing, damaged or of another run.
    """
    folders_of(str(config_dir) if config_dir else None)
    directory = _directory(run, results_dir)
    return found_in(directory, partial(_config, directory, model, trust), model)


def found_in(directory: Path, config: Callable[[], Config], module: Any = None) -> Trained:
    """Load a run from its directory; `config` returns what `_config` does. The models are copies of `module`, if it is
    one."""
    status = str((RunStore.peek(directory) or {}).get("status", "unknown"))
    if status == Status.running and not is_locked(directory / LOCK):
        status = str(Status.interrupted)
    settings, metrics = run_settings(directory), pd.DataFrame(read_metrics(directory))
    task: Any = component("tasks", str(settings.get("task")), trust=False)
    if status != "done" or settings.get("save") == "none" or (task is not None and "model" not in task.uses):
        return Trained(directory, status, settings, metrics, [], None, _config=config)
    stored = load_models(directory, recorded_id(directory))
    workers = sorted((name for name in stored if name != AVERAGED), key=lambda name: int(name[len("worker") :]))
    precision = Precision.fp64 if settings.get("precision") == "fp64" else Precision.fp32
    import torch

    from decentral.gradients.passes.worker_models import copied

    with left_as_found():
        if isinstance(module, torch.nn.Module):
            make = partial(copied, module)
        else:
            made = config()
            make = partial(made.model.build, made.task.describe(made))
        models = [_with(make(), stored[name], precision) for name in (*workers, AVERAGED)]
    return Trained(directory, status, settings, metrics, models[:-1], models[-1], _config=config)


def _config(directory: Path, model: nn.Module | Callable[..., nn.Module] | None, trust: bool) -> Config:
    """Return the configuration of a stored run, with its task, data and model as objects."""
    import torch

    from decentral.script.components import chosen
    from decentral.script.given import GivenData, GivenModel

    values, made = stored_config(directory), dict[str, Any]()
    net, data = dict(values.get("model") or {}), dict(values.get("data") or {})
    name = str(net.pop("name", ""))
    if data.get("name") == "given":
        made["data"] = build(GivenData, data, "data") if "shape" in data else None
    if (model is None and name == "given") or None in made.values():
        raise ConfigError(
            f"{directory} was trained with a model or data from Python: give the module, load(..., model=net)."
        )
    if model is not None:
        by_name = ":" in name and not isinstance(model, torch.nn.Module)  # its settings are stored
        made["model"] = chosen("models", model, taken(model, net)) if by_name else GivenModel.of(model)
    task: Any = component("tasks", str(values["task"].get("name")), trust)
    groups = {"task", *getattr(task, "uses", ())} - {"partition"}
    return read(directory / "config.yaml", trust, made, groups)


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
