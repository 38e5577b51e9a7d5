"""The contract of a task (its configuration), of the problem it opens (what a run works on), and of evaluations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.randomness import numpy_generator
from decentral.settings import Settings, setting
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.data.dataset import DataDescription
    from decentral.network.network import Network
    from decentral.network.world import World
    from decentral.topology.communication import LocalSteps


_SHARE = 0.1  # of the time of the training passes that the evaluations of the curve may take, by default
_FORWARD = 0.3  # of a forward and backward pass (measured on a CPU: cnn 0.31, VGG-11 0.32, ResNet-18 0.28)
_LEAST_EXAMPLES = 200  # below, an accuracy says nothing
_FEW_EXAMPLES = 1000  # of which all are looked at: that takes seconds


@dataclass
class EvaluationSettings(Settings, where="evaluation"):
    """When and on how much the models are tested on the way. The last evaluation is on all test examples of `part`.

    every_epochs  evaluation interval, in passes over the data (null: the task's default; where a pass is one step,
                about 100 evaluations per run)
    every_simulated_s  evaluation interval in simulated seconds of a virtual cluster, instead: evaluate after the step
                       that completes it
    examples    number of test examples, always the same ones, drawn by the seed: a number, all, or auto: as many as
                keep the time of all evaluations, including the last one, at a tenth of that of the training passes, but
                at least 200, and all if there are at most 1000. The iterates and the last evaluation do not depend on
                it, so auto and all share one run ID
    part        all test examples, or the validation or the test half: half of a random order that depends only on their
                number. Choose settings on one half, and report results on the other
    split       test examples of each worker's model: global, all of them; local, the worker's own test set, with its
                own class distribution (personalized accuracy); or both
    initial     also evaluate before the first step
    batch_size  test examples per forward pass
    precision   precision of the forward passes: fp32, or the faster tf32 (on GPUs) or bf16; outputs are accumulated in
                float32. bf16 changes a few of 1000 predictions. A run of precision=fp64 is evaluated in float64
    """

    every_epochs: float | None = setting(None, above=0, hint="epochs")
    every_simulated_s: float | None = setting(None, above=0, hint="seconds", older=None)
    examples: str = field(default="auto", metadata={"older": "all", "the_same": ("auto",)})
    part: str = setting("all", choices=("all", "validation", "test"), older="all")
    split: str = setting("global", choices=("global", "local", "both"), older="global")
    initial: bool = field(default=True, metadata={"older": True})
    batch_size: int = setting(500, at_least=1)
    precision: Precision = field(default=Precision.fp32, metadata={"older": Precision.fp32})

    def __post_init__(self) -> None:
        if self.examples not in ("auto", "all") and not (self.examples.isdigit() and int(self.examples) >= 1):
            raise ConfigError(
                f"evaluation.examples={self.examples} is not valid: use a number of test examples, all, or auto."
            )
        if self.precision is Precision.fp64:
            raise ConfigError(
                "evaluation.precision=fp64 exceeds the models' precision: leave it out; a run of precision=fp64 is "
                "evaluated in float64."
            )

    def numbers(self, num_test: int) -> np.ndarray:
        """The numbers of the test examples of `part`, in their order; the halves are the same in every run."""
        if self.part == "all":
            return np.arange(num_test)
        shuffled = numpy_generator(0, "halves of the test examples").permutation(num_test)
        return np.sort(np.array_split(shuffled, 2)[self.part == "test"])

    def on_the_way(self, num_train: int, num_test: int, num_workers: int, epochs: float) -> int | None:
        """How many test examples an evaluation before the last one looks at; None for all of them.

        auto: in T epochs of N examples with an evaluation every E epochs, which n workers and their average take part
        in, each forward pass being a fraction f of the work of training on an example, evaluations of S examples and a
        last one of N' take a share f (n + 1) (S (ceil(T / E) - 1) + N') / (T N) of the passes.
        """
        if self.examples == "all" or (self.examples == "auto" and num_test <= _FEW_EXAMPLES):
            return None
        assert self.every_epochs is not None
        models = {"global": num_workers + 1, "local": 2 * num_workers, "both": 3 * num_workers + 1}[self.split]
        forward_passes = _SHARE * epochs * num_train / (_FORWARD * models)  # of each model
        affordable = (forward_passes - num_test) / max(1, math.ceil(epochs / self.every_epochs) - 1)
        wanted = max(_LEAST_EXAMPLES, int(affordable)) if self.examples == "auto" else int(self.examples)
        return wanted if wanted < num_test else None


def silent(text: str) -> None:
    """Tell nobody."""


class Scope(NamedTuple):
    """What an evaluation looks at, and who wants to hear how far it is."""

    examples: int | None = None
    """How many test examples, always the same ones; None for all."""
    tell: Callable[[str], None] = silent
    """Called with words such as 'worker 3 of 16', now and then."""
    numbers: Tensor | None = None
    """Which test examples, in their order; None for those that the whole test set begins with, or has at random."""


WHOLE = Scope()
"""All test examples; nobody wants to hear of it."""


DEFAULT_NUM_WORKERS = 16


class TaskConfig(Protocol):
    """What a task may know of a run's configuration, beside its own settings."""

    data: Any
    env: Any
    partition: Any
    model: Any
    topology: Any
    cluster: Any
    evaluation: EvaluationSettings
    num_workers: Any
    """n; None, where nothing was said, until `Task.resolve_num_workers` has found it."""
    batch_size: int
    batch_size_per_worker: list[Any] | None
    seed: int
    epochs: float
    steps: int | None
    metrics: list[str]
    init: str | None
    execution: str
    precision: Precision

    def batch_sizes(self) -> np.ndarray:
        """Of each worker: int64 [n]."""

    def local_steps(self) -> LocalSteps | None:
        """How many steps each worker takes between two communications; None where all take every step."""


class Task(Settings, ABC, where="task"):
    """A dataclass whose fields are its configuration."""

    uses: ClassVar[tuple[str, ...]] = ()
    """The groups of the configuration that this task reads: they are part of the run's identity."""

    eval_every_epochs: ClassVar[float | None] = 1.0
    """How often to evaluate unless told otherwise; None: about 100 times in a run."""

    default_num_workers: ClassVar[int] = DEFAULT_NUM_WORKERS
    """How many workers there are where neither the user nor the topology says it."""

    usual: ClassVar[Mapping[str, str]] = {}
    """Settings that this task has unless told otherwise, where those of conf/config.yaml do not suit it: key -> value,
    as on a command line. Each holds unless the command line or its experiment says anything of that key."""

    precision: ClassVar[Precision | None] = None
    """What its models have, if not what the configuration says."""

    has_samples: ClassVar[bool] = True
    """Whether x - gradient(x) is a sample in the space of the models (relay_mean averages those)."""

    has_classes: ClassVar[bool] = False
    """Whether test examples have classes, of which each worker has its own distribution (`evaluation.split`)."""

    own_batches: ClassVar[bool] = False
    """Whether each worker may have a batch size of its own (`batch_size_per_worker`)."""

    def num_examples(self, config: TaskConfig) -> tuple[int, int] | None:
        """How many examples are for training, and for tests; None where problems are not made of examples."""
        return None

    def own_starts(self) -> bool:
        """Whether each worker begins at a model of its own."""
        return False

    def resolve_num_workers(self, config: TaskConfig) -> int:
        """The number of workers: the user's, or else what the topology is made for, or else what the task suits."""
        found: int = config.num_workers or config.topology.implied_num_workers() or self.default_num_workers
        return found

    def describe(self, config: TaskConfig) -> DataDescription | None:
        """What models are built from: the data; None of a task that has none. Without torch."""
        return config.data.inspect() if "data" in self.uses else None

    def check(self, config: TaskConfig) -> None:
        """Refuse, quickly and without torch, what cannot work. Raises ConfigError."""

    def prepare(self, config: TaskConfig) -> None:
        """Do slow things once, before any worker starts: download, decode. Raises ConfigError."""

    def useful_processes(self, config: TaskConfig) -> float:
        """The most processes that `processes=auto` should start; math.inf for one per core."""
        return 1

    def num_parameters(self, config: TaskConfig) -> int:
        """P, of the model that is trained. Here: by opening the problem for one worker."""
        import torch

        problem = self.open(config, range(1), torch.device("cpu"))
        try:
            return problem.init().numel()
        finally:
            problem.close()

    @abstractmethod
    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """The problem, for the local workers."""


class Problem(ABC):
    """n functions F_i on R^P with a stochastic gradient, and what can be said of a model."""

    metrics: tuple[Metric, ...]
    """What evaluation gives; the first is what a run is judged by."""

    split: str = "global"
    """What models are evaluated on: see `EvaluationSettings`."""

    loss_unit: str = ""
    """Of the training loss, such as nats."""

    notes: tuple[str, ...] = ()
    """What a reader of the metrics has to know, for example on which data batch-norm statistics were recomputed."""

    facts: Mapping[str, Any] = {}
    """How it computes, for the provenance."""

    flipped: Sequence[int] = ()
    """Local workers that learn from wrong labels: C - 1 - c instead of c, of C classes."""

    data_s: float = 0.0
    """How long the gradients so far have waited for their batches."""

    steps_per_epoch: float

    @abstractmethod
    def init(self) -> Tensor:
        """The initial model x^0 [P], the same for all workers, on the device; where a file says so, those of the local
        workers [k, P]."""

    @abstractmethod
    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Losses [r] and gradients g [r, P] of local workers at x [r, P].

        The rows are those of all local workers, or of `workers`: places among the local ones, each once. draws [r]
        numbers the sample that each of them draws, from 0 on; the batch and all randomness are addressed by the worker
        and its draw, and by nothing else. The returned tensors are the caller's until the next call, who may overwrite
        them.
        """

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """Compare what computes the gradients faster than one by one with that, on a batch of all local workers.

        Before the first of these draws [k], at models x [k, P]. Where they differ, gradients are computed one by one
        from then on, which `facts` and `notes` say. Raises ConfigError if they must not be.
        """

    @abstractmethod
    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Statistics of local workers' own models x [k, P]: [r, S], float64 on the CPU.

        Of all k of them, or of those of `workers`: places among the local ones, each once.

        Statistics are what the metrics are computed from once they are added up over test examples: how many were
        recognized, the sum of their losses, and how many there are, say. See `finish`.
        """

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """The same statistics of one model, the average of all: [P] -> [S], float64 on the CPU.

        What this returns for part = 0, ..., parts - 1 adds up to those of the same test examples: every process looks
        at its share of them. Here, for what is no set of examples, the first part is all of it.
        """
        found = self.worker_statistics(x[None], scope=scope)[0]
        return found if part == 0 else found.new_zeros(found.shape)

    def local_statistics(self, x: Tensor, scope: Scope = WHOLE) -> Tensor:
        """The same statistics of each local worker's own model x [k, P] on its own test set: [k, S]."""
        raise NotImplementedError

    def average_local_statistics(self, x: Tensor, scope: Scope = WHOLE) -> Tensor:
        """The same of the averaged model x [P] on the test sets of all local workers together: [S]."""
        raise NotImplementedError

    @property
    def scores(self) -> tuple[Metric, ...]:
        """What an evaluation gives: the metrics on the whole test set, then those on each worker's own."""
        known = self.evaluated
        local = tuple(replace(metric, split="local") for metric in known)
        return {"global": known, "local": local, "both": (*known, *local)}[self.split]

    @property
    def evaluated(self) -> tuple[Metric, ...]:
        """The metrics, with those that were asked for."""
        return self.metrics

    def values(self, statistics: Tensor) -> Tensor:
        """`finish`, with the metrics that were asked for: [..., S] -> [..., len(evaluated)]."""
        return self.finish(statistics)

    def finish(self, statistics: Tensor) -> Tensor:
        """Metrics from statistics that are complete: [..., S] -> [..., len(metrics)].

        For example accuracy = correct / count, or perplexity = exp(sum of nats / tokens). Metrics that are no functions
        of sums are statistics themselves: then this is the identity, as it is here.
        """
        return statistics

    def examples(self, draws: np.ndarray) -> list[int]:
        """How many examples are in the first draws [n] of all n workers, of each; [] where there are no examples."""
        return []

    def suspects(self) -> tuple[str, ...]:
        """What in the data may have made the run diverge, a sentence each; asked for once it has."""
        return ()

    def keep_seconds(self) -> list[float] | None:
        """A list of how long each gradient [r] of the last call of `gradient` took, from now on; None where gradients
        of several workers are computed together, or nobody can tell."""
        return None

    def save_tables(self, directory: Path) -> None:
        """Write what describes the problem, such as the distribution of the data (partition.csv)."""

    def save_outputs(self, x: Tensor, net: Network, world: World, directory: Path) -> None:
        """Write what the average of all models gives in the end, such as translations.csv: all processes call this with
        their x [k, P] after the last evaluation, and the leader writes."""

    def model_states(self) -> list[dict[str, Any]]:
        """What the module of each local worker keeps beside the parameters in its row: buffers, say; part of `state`.

        [] where there are no modules.
        """
        return []

    def state(self) -> list[Any]:
        """What else each local worker has to remember, for checkpoints: where its environment is, say; [] if nothing.

        One entry for each local worker, in order: tensors, numbers, strings, None, and lists and dicts of these. It is
        stored by worker, so that a run can go on with another number of processes.
        """
        return []

    def load_state(self, state: list[Any]) -> None:
        """Go on from what `state` once gave: the entries of the local workers; not called where there were none."""

    def model_tensors(self, x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """A model x [P] with one of the `model_states` as it is kept, which is the module's `state_dict`.

        {} where no `nn.Module` is trained: x then says little without its problem, and no models are kept.
        """
        return {}

    def layout(self, x: Tensor) -> RowLayout:
        """The parameters of a model x [P], one after the other; by default it is one vector."""
        return RowLayout.flat(len(x))

    def average_states(self, net: Network, members: Sequence[int] | None = None) -> None:
        """Let the averaged model have what fits it of the `model_states` of all workers, or of these: all processes
        call this before `average_statistics` and `averaged_tensors`."""

    def take_over_states(self, donors: Mapping[int, Sequence[int]], net: Network) -> int:
        """Workers (keys) take over the `model_states` of their donors, with their models: all processes call this.

        Returns how many bytes travel for it.
        """
        return 0

    def averaged_tensors(self, x: Tensor) -> dict[str, Any]:
        """The `model_tensors` of the averaged model x [P]."""
        return self.model_tensors(x, {})

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """The model x^0 [P] with these tensors, by name, for all workers, and their states.

        Raises ConfigError if they are those of another model, or there are no modules here.
        """
        raise ConfigError("init= needs a task that trains networks, such as task=images: leave it out.")

    def close(self) -> None:
        """Release what the problem holds."""
