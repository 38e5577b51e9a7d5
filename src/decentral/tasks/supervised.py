"""Tasks that train a network on the examples of a data set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data.dataset import DataDescription, LabelledData, LabelledTokens, NextTokens, opened
from decentral.errors import ConfigError
from decentral.partition.partition import class_counts
from decentral.registry import components
from decentral.registry.signature import function, functions
from decentral.settings import setting
from decentral.tasks.counted import COUNTED, metric_names
from decentral.tasks.task import Task, TaskConfig

if TYPE_CHECKING:
    import torch

    from decentral.tasks.task import Problem

RECORDED = ("accuracy", "loss", "consensus_distance", "gain", "gain_of_norms", "compression_error", "density")
"""Names of metrics that runs of tasks with classes always record."""
LOSSES = ("cross_entropy", "mse")
_MOST_CLASSES, _MOST_OUTPUTS = 200, 2e8  # a metric for each; 1.6 GB
_MULTIPLICATIONS_PER_S = 5e10
_CALLS_S = 50e-6  # for the calls of a worker's layers in a step
_START_S = 1.0  # until a process has started and found the others


class SupervisedTask(Task):
    """`data` split over the workers by `partition`, `model` trained with a loss of its outputs and the targets."""

    name: str
    reshuffle: bool
    """True if a worker's examples are shuffled again in every epoch."""
    drop_last: bool
    """True if the examples that do not fill a batch are left out at the end of an epoch."""
    takes: ClassVar[type[DataDescription]]
    """The supported kind of data."""
    wants: ClassVar[str]
    """The same in words, for the message that refuses other data."""
    example_data: ClassVar[str]
    """A data set of that kind."""
    uses: ClassVar[tuple[str, ...]] = ("data", "partition", "model")
    eval_every_epochs: ClassVar[float | None] = 4.0
    has_samples: ClassVar[bool] = False
    own_batches: ClassVar[bool] = True

    def check(self, config: TaskConfig) -> None:
        """Check that the data exist and can be split, that the model takes them, and that named functions exist."""
        info = config.data.inspect()
        if not isinstance(info, self.takes):
            fits = [name for name, task in components("tasks").items() if isinstance(info, getattr(task, "takes", ()))]
            other = f", or task={fits[0]}" if fits else ""
            raise ConfigError(
                f"task={self.name} needs {self.wants}, but data={config.data.name} has {info.kind}: use other data, "
                f"such as data={self.example_data}{other}."
            )
        for part in (self, config.data):
            for named in functions(type(part), vars(part)):
                function(*named)
        if config.evaluation.part != "all" and info.num_test < 2:
            raise ConfigError(
                f"evaluation.part={config.evaluation.part} is half of the test {info.kind}, and data="
                f"{config.data.name} has {info.num_test}: use evaluation.part=all."
            )
        self._check_metrics(config, info)
        config.model.check(info)
        config.partition.check(info.num_train, config.num_workers)
        config.partition.check_labels(info.num_labels, config.num_workers)
        config.partition.check_data(config.data, config.num_workers)
        share, largest = info.num_train // config.num_workers, int(config.batch_sizes().max())
        if self.drop_last and share < largest:
            own = config.batch_size_per_worker
            key = "batch_size" if own is None else "batch_size_per_worker"
            given = largest if own is None else f"[{','.join(map(str, own))}] has {largest}, which"
            raise ConfigError(
                f"{key}={given} exceeds the {share} training {info.kind} of each of num_workers={config.num_workers} "
                f"workers with data={config.data.name}: use "
                + (
                    (f"{key}={share} or less." if own is None else f"at most {share}.")
                    if share > 1
                    else "fewer workers."
                )
            )

    def _check_metrics(self, config: TaskConfig, info: DataDescription) -> None:
        """Raise ConfigError for metrics that do not exist, or that would take too much memory."""
        names, own = config.metrics, [name for name in config.metrics if ":" in name]
        for name in names:
            if name not in (*COUNTED, *own):
                near = get_close_matches(name.lower(), COUNTED, n=1, cutoff=0.5)
                raise ConfigError(
                    f"metrics={name} does not exist: use {', '.join(COUNTED)}, or module:function."
                    + "".join(f" Did you mean '{one}'?" for one in near)
                )
            if [each.lstrip("+-") for each in names].count(name.lstrip("+-")) > 1:
                raise ConfigError(f"metrics=[{','.join(names)}] has {name} more than once: list each metric once.")
        classes = self.num_classes(info)
        several = {name: metric_names(name, classes) for name in names}
        known = {*RECORDED, *names, *(short for each in several.values() for short in each)}
        for name in own:
            if (short := name.rpartition(":")[2]) in known:
                raise ConfigError(
                    f"metrics={name} would be recorded as {short}, the name of another metric of this run: rename the "
                    f"function, for example to my_{short}."
                )
            known.add(short)
        for name, each in several.items():
            if len(each) > _MOST_CLASSES:
                raise ConfigError(
                    f"metrics={name} would record {len(each)} metrics, more than {_MOST_CLASSES}: use f1."
                )
        if not own:
            return
        if not hasattr(info, "num_classes"):
            raise ConfigError(
                f"metrics={own[0]} needs one class per example, but task={self.name} has {info.kind}: use "
                f"{', '.join(COUNTED)}."
            )
        if config.num_workers * info.num_test * classes > _MOST_OUTPUTS:
            raise ConfigError(
                f"metrics={own[0]} keeps the outputs of all workers, {config.num_workers} x {info.num_test} x "
                f"{classes} numbers, more than {_MOST_OUTPUTS:g}: use {', '.join(COUNTED)}."
            )
        from decentral.tasks.problems.scores import OwnMetric

        directions = {name: OwnMetric(name, classes).metric.larger_is_better for name in own}
        if directions.get(names[0], True) is None:
            raise ConfigError(
                f"metrics={names[0]} has no direction, and the first metric judges the run: write +{names[0]} or "
                f"-{names[0]}, or list another metric first."
            )

    @staticmethod
    def num_classes(info: DataDescription) -> int:
        """Return the number of possible targets: classes or tokens."""
        return int(getattr(info, "num_classes", 0) or getattr(info, "vocabulary", 1))

    def class_counts(self, config: TaskConfig) -> np.ndarray:
        """Return the number of training examples of each class (or source) on each worker [n, C]."""
        config.data.prepare()
        loaded = opened(config.data, "cpu", config.seed)
        groups = config.partition.groups_of(config.data, loaded)
        dealt = loaded.train_labels if groups is None else groups.train
        indices = config.partition.indices(dealt, config.num_workers, config.seed)
        return class_counts(loaded.train_labels, indices, loaded.num_classes)

    def prepare(self, config: TaskConfig) -> None:
        """Download or decode the data."""
        config.data.prepare()

    def num_examples(self, config: TaskConfig) -> tuple[int, int]:
        """Return the numbers of examples of the data set, and of `evaluation.part`."""
        info = config.data.inspect()
        return info.num_train, len(config.evaluation.numbers(info.num_test))

    def useful_processes(self, config: TaskConfig) -> float:
        """Return the largest k for which the k-th process saves more time than its start takes: W / (k - 1) - W / k >
        s.

        All passes take time W, and a process takes s = 1 second to start. A step of n workers with batches of B takes
        about 3 n B m / (5e10 per second) + 50 us n on a core, for a model of m multiplications: forward and backward
        passes, and their calls. (Measured on a core: cnn, n = 16, B = 32, 11 ms on 8 x 8 digits, 64 ms on 28 x 28; mlp,
        n = 64, B = 16, 3.4 ms.)
        """
        info, n = config.data.inspect(), config.num_workers
        examples = config.accumulate * int(config.batch_sizes().sum())
        steps = config.steps or config.epochs * max(1, info.num_train // examples)
        step_s = 3 * examples * config.model.multiplications(info) / _MULTIPLICATIONS_PER_S + n * _CALLS_S
        W = steps * step_s
        return (1 + math.sqrt(1 + 4 * W / _START_S)) // 2 if math.isfinite(W) else math.inf

    def num_parameters(self, config: TaskConfig) -> int:
        """Return the number of parameters of the model, which is built without the data, and without memory for its
        values unless it is a plain module."""
        import torch

        with torch.device("cpu" if ":" in config.model.name else "meta"):
            parameters = config.model.build(config.data.inspect()).parameters()
            return sum(p.numel() for p in parameters if p.requires_grad)


@dataclass(kw_only=True)
class ClassificationTask(SupervisedTask):
    """Classification of examples.

    loss             cross_entropy, mse (of the outputs to 1 for the class and 0 for all others), or module:function
    label_smoothing  s: cross-entropy to (1 - s) + s / C for the class and s / C for the other classes, of C classes;
                     the test loss is not smoothed
    """

    loss: str = field(default="cross_entropy", metadata={"older": "cross_entropy", "code": "task.loss"})
    label_smoothing: float = setting(0.0, at_least=0, below=1, older=0.0)

    def __post_init__(self) -> None:
        if ":" not in self.loss and self.loss not in LOSSES:
            raise ConfigError(f"task.loss={self.loss} does not exist: use {', '.join(LOSSES)}, or module:function.")
        if self.label_smoothing and self.loss != "cross_entropy":
            raise ConfigError(
                f"task.label_smoothing={self.label_smoothing:g} needs task.loss=cross_entropy, not "
                f"task.loss={self.loss}: leave one of them out."
            )

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the local workers' models and data."""
        from decentral.tasks.problems.classification import Classification

        return Classification(self, config, workers, device)


@dataclass
class Images(ClassificationTask):
    """Image classification: `data` split over the workers by `partition`, `model` trained with `task.loss`.

    Every worker draws batches of `batch_size` from its own part, reshuffled in every epoch (reshuffle=false: a fixed
    order, as in the thesis). An epoch is floor(N / n) // batch_size steps; with drop_last=false a last, smaller batch
    is added. The final evaluation tests every worker's model and the averaged one on the whole test set (earlier ones:
    `evaluation.examples`). Batch-norm statistics are local; for the average they are recomputed on training images of
    all workers.

    statistics_images      number of training images for recomputing batch-norm statistics, in batches of at most 64
    """

    name: str = "images"
    reshuffle: bool = True
    drop_last: bool = True
    statistics_images: int = setting(512, at_least=1)
    has_classes: ClassVar[bool] = True
    takes: ClassVar[type[DataDescription]] = LabelledData
    wants: ClassVar[str] = "images with labels"
    example_data: ClassVar[str] = "digits"


@dataclass
class Text(ClassificationTask):
    """Text classification: texts of `data`, in tokens, split over the workers; `model` trained with `task.loss`.

    Batches are drawn as with task=images. Texts are padded to the longest of the step; models ignore padding.
    Defaults: data=synthetic_text model=fasttext optim=adam lr=0.01 epochs=20.

    reshuffle    shuffle a worker's texts again in every epoch
    drop_last    drop the texts that do not fill a batch at the end of an epoch
    """

    name: str = "text"
    reshuffle: bool = True
    drop_last: bool = True
    has_classes: ClassVar[bool] = True
    takes: ClassVar[type[DataDescription]] = LabelledTokens
    wants: ClassVar[str] = "texts with labels"
    example_data: ClassVar[str] = "synthetic_text"
    usual: ClassVar[Mapping[str, str]] = {
        "data": "synthetic_text",
        "model": "fasttext",
        "optim": "adam",
        "lr": "0.01",
        "epochs": "20",
    }


@dataclass
class Language(SupervisedTask):
    """Language modeling: `model` predicts the next token of running text, which `partition` splits over the workers.

    A worker draws batches of `batch_size` windows of its own part. The loss is the mean over tokens of -log p(token),
    in nats. Tested on the ends of all sources: loss, bits per character, perplexity exp(loss), each from sums over the
    tokens. With tokens=100M instead of epochs, the run has as many steps as fit into this number of training tokens of
    all workers; a step has data.longest tokens for each window of its batches.
    Defaults: data=textfile partition=natural model=char_transformer optim=adam lr=0.003 batch_size=8 epochs=6.

    reshuffle    shuffle a worker's windows again in every epoch
    drop_last    drop the windows that do not fill a batch at the end of an epoch
    """

    name: str = "language"
    reshuffle: bool = True
    drop_last: bool = True
    takes: ClassVar[type[DataDescription]] = NextTokens
    wants: ClassVar[str] = "running text"
    example_data: ClassVar[str] = "textfile"
    usual: ClassVar[Mapping[str, str]] = {
        "data": "textfile",
        "partition": "natural",
        "model": "char_transformer",
        "optim": "adam",
        "lr": "0.003",
        "batch_size": "8",
        "epochs": "6",
    }
    eval_every_epochs: ClassVar[float | None] = 3.0
    has_tokens: ClassVar[bool] = True

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the local workers' models and text."""
        from decentral.tasks.problems.classification import NextTokenPrediction

        return NextTokenPrediction(self, config, workers, device)
