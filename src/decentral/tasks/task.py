"""The interfaces of a task (its configuration), of its problem (which a run optimizes), and of evaluations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


_SHARE = 0.1  # default time of intermediate evaluations, as a share of training passes
_FORWARD = 0.3  # of a forward and backward pass (measured on a CPU: cnn 0.31, VGG-11 0.32, ResNet-18 0.28)
_LEAST_EXAMPLES = 200  # with fewer, an accuracy is not meaningful
_FEW_EXAMPLES = 1000  # up to this number, all are evaluated: that takes seconds


@dataclass
class EvaluationSettings(Settings, where="evaluation"):
    """Times and extent of evaluations during a run. The last evaluation is on all test examples of `part`.

    every_epochs  evaluation interval, in passes over the data (null: the task's default, but at least 10 evaluations
                per run; where a pass is one step, about 100). null and the task's default share one run ID
    every_simulated_s  evaluation interval in simulated seconds of a virtual cluster, instead: evaluate after the step
                       that completes it
    examples    number of test examples, always the same ones, drawn by the seed: a number, all, or auto. auto limits
                the time of all evaluations, including the last one, to a tenth of that of the training passes, but uses
                at least 200 examples, and all if there are at most 1000. The iterates and the last evaluation do not
                depend on it, so auto and all share one run ID
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
        """Return the numbers of the test examples of `part`, in their order; the halves are the same in every run."""
        if self.part == "all":
            return np.arange(num_test)
        shuffled = numpy_generator(0, "halves of the test examples").permutation(num_test)
        return np.sort(np.array_split(shuffled, 2)[self.part == "test"])

    def on_the_way(
        self, num_train: int, num_test: int, num_workers: int, epochs: float, every_epochs: float
    ) -> int | None:
        """Return the number of test examples of evaluations before the last one; None for all of them.

        auto: with T epochs of N examples, an evaluation of n workers and their average every E epochs, and forward
        passes that cost a fraction f of training on an example, evaluations of S examples and a last one of N' take a
        share f (n + 1) (S (ceil(T / E) - 1) + N') / (T N) of the passes.
        """
        if self.examples == "all" or (self.examples == "auto" and num_test <= _FEW_EXAMPLES):
            return None
        models = {"global": num_workers + 1, "local": 2 * num_workers, "both": 3 * num_workers + 1}[self.split]
        forward_passes = _SHARE * epochs * num_train / (_FORWARD * models)  # of each model
        affordable = (forward_passes - num_test) / max(1, math.ceil(epochs / every_epochs) - 1)
        wanted = max(_LEAST_EXAMPLES, int(affordable)) if self.examples == "auto" else int(self.examples)
        return wanted if wanted < num_test else None


def silent(text: str) -> None:
    """Discard progress messages."""


class Scope(NamedTuple):
    """The extent of an evaluation, and its progress callback."""

    examples: int | None = None
    """Number of test examples, always the same ones; None for all."""
    tell: Callable[[str], None] = silent
    """Function that is called from time to time with text such as 'worker 3 of 16'."""
    numbers: Tensor | None = None
    """Numbers of the test examples, in their order; None for the first ones of the test set, or for a random choice."""
    local: bool = False
    """True for each worker's own test set."""


WHOLE = Scope()
"""All test examples, without progress messages."""


DEFAULT_NUM_WORKERS = 16


class TaskConfig(Protocol):
    """The part of a run's configuration that a task may use, besides its own settings."""

    data: Any
    env: Any
    partition: Any
    model: Any
    topology: Any
    attack: Any
    cluster: Any
    evaluation: EvaluationSettings
    num_workers: Any
    """n; None if the configuration does not set it, until `Task.resolve_num_workers` determines it."""
    batch_size: int
    batch_size_per_worker: list[Any] | None
    accumulate: int
    seed: int
    epochs: float
    steps: int | None
    metrics: list[str]
    init: str | None
    execution: str
    precision: Precision

    def batch_sizes(self) -> np.ndarray:
        """Batch size of each worker: int64 [n]."""

    def local_steps(self) -> LocalSteps | None:
        """Number of steps of each worker between two communications; None if all take every step."""


class Task(Settings, ABC, where="task"):
    """A task: a dataclass whose fields are its configuration."""

    uses: ClassVar[tuple[str, ...]] = ()
    """Groups of the configuration that this task reads: they are part of the run's identity."""

    eval_every_epochs: ClassVar[float | None] = 1.0
    """Default interval of evaluations; None: about 100 per run."""

    default_num_workers: ClassVar[int] = DEFAULT_NUM_WORKERS
    """Number of workers if neither the user nor the topology determines it."""

    usual: ClassVar[Mapping[str, str]] = {}
    """Defaults of this task that differ from conf/config.yaml: key -> value, as on a command line. The command line or
    its experiment overrides each."""

    precision: ClassVar[Precision | None] = None
    """The precision of its models, if it overrides the configuration."""

    has_samples: ClassVar[bool] = True
    """True if x - gradient(x) is a sample in the space of the models (relay_mean averages those)."""

    names_samples: ClassVar[bool] = False
    """True if the gradients of given samples can be computed (`Problem.at`)."""

    has_classes: ClassVar[bool] = False
    """True if test examples have classes, of which each worker has its own distribution (`evaluation.split`)."""

    has_tokens: ClassVar[bool] = False
    """True if examples are windows of `data.longest` tokens, which a run may count (`tokens`)."""

    own_batches: ClassVar[bool] = False
    """True if workers may have different batch sizes (`batch_size_per_worker`)."""

    def num_examples(self, config: TaskConfig) -> tuple[int, int] | None:
        """Return the numbers of training and test examples; None for problems without examples."""
        return None

    def own_starts(self) -> bool:
        """Return whether workers start from different models."""
        return False

    def resolve_num_workers(self, config: TaskConfig) -> int:
        """Return the number of workers: the user's, else the topology's, else the task's default."""
        num_workers: int = config.num_workers or config.topology.implied_num_workers() or self.default_num_workers
        return num_workers

    def class_counts(self, config: TaskConfig) -> np.ndarray:
        """Return the number of training examples of each class on each worker [n, C], for topologies that see them.

        Raises ConfigError if the task has no classes.
        """
        raise ConfigError(
            f"topology={config.topology.name} needs examples with classes, which this task lacks: use another "
            "topology, or task=images."
        )

    def describe(self, config: TaskConfig) -> DataDescription | None:
        """Return the description of the data from which models are built; None without data. Without torch."""
        return config.data.inspect() if "data" in self.uses else None

    def check(self, config: TaskConfig) -> None:
        """Check, quickly and without torch, that the configuration can work. Raises ConfigError."""

    def prepare(self, config: TaskConfig) -> None:
        """Prepare slow things once, before any worker starts: download, decode. Raises ConfigError."""

    def useful_processes(self, config: TaskConfig) -> float:
        """Return the maximum number of processes that `processes=auto` should start; math.inf for one per core."""
        return 1

    def num_parameters(self, config: TaskConfig) -> int:
        """Return the number of parameters P of the trained model. By default, the problem is opened for one worker."""
        import torch

        problem = self.open(config, range(1), torch.device("cpu"))
        try:
            return problem.init().numel()
        finally:
            problem.close()

    @abstractmethod
    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the problem, for the local workers."""


class Problem(ABC):
    """n functions F_i on R^P with stochastic gradients, and the metrics of a model."""

    metrics: tuple[Metric, ...]
    """The metrics of an evaluation on one test set; the first is the target metric."""

    split: str = "global"
    """The evaluation data: see `EvaluationSettings`."""

    loss_unit: str = ""
    """Unit of the training loss, such as nats."""

    notes: tuple[str, ...] = ()
    """Notes for readers of the metrics, for example on which data batch-norm statistics were recomputed."""

    facts: Mapping[str, Any] = {}
    """Facts on its computation, for the provenance."""

    writes: bool = False
    """True if a gradient may also change the models x, as `forward` of user code may."""

    data_s: float = 0.0
    """Seconds that the gradients so far have waited for their batches."""

    steps_per_epoch: float

    num_samples: int = 1
    """Number m of samples of each worker, whose mean gradient is that of F_i, if the task names them (`at`)."""

    @abstractmethod
    def init(self) -> Tensor:
        """Return the initial model x^0 [P], common to all workers, on the device; or, if a file defines them, those of
        the local workers [k, P]."""

    @abstractmethod
    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return losses [r] and gradients g [r, P] of local workers at x [r, P].

        The rows belong to all local workers, or to `workers`: distinct local indices. draws [r] numbers each worker's
        sample, from 0; the batch and all randomness are addressed by worker and draw only. The caller may overwrite the
        returned tensors, which are valid until the next call.
        """

    def at(self, x: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses [k, B] and gradients [k, B, P] of samples [k, B], numbers from 0 to m - 1, at models x [k, P].

        Only tasks with `names_samples` define it.
        """
        raise NotImplementedError

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """Compare the fast computation of gradients with the one-by-one computation, on a batch of all local workers.

        It is called before the first of these draws [k], at models x [k, P]. If the results differ, gradients are
        computed one by one from then on, which `facts` and `notes` report. Raises ConfigError if that is not allowed.
        """

    @abstractmethod
    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return statistics of local workers' own models x [k, P]: [r, S], float64 on the CPU.

        They are those of all k workers, or of `workers`: distinct local indices.

        Metrics are computed from statistics summed over test examples, such as the number of correct ones, the sum of
        losses, and the count. See `finish`.
        """

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """Return the same statistics of one model, the average of all: [P] -> [S], float64 on the CPU.

        The results for part = 0, ..., parts - 1 sum to those of all test examples: every process evaluates its share;
        with local test sets, the share is its workers' test sets. By default, for problems without examples, the first
        part is everything.
        """
        statistics = self.worker_statistics(x[None], scope=scope)[0]
        return statistics if part == 0 else statistics.new_zeros(statistics.shape)

    def finish(self, statistics: Tensor) -> Tensor:
        """Return the metrics of complete statistics: [..., S] -> [..., len(metrics)].

        For example accuracy = correct / count, or perplexity = exp(sum of nats / tokens). Metrics that are not
        functions of sums are statistics themselves: then this is the identity, as by default.
        """
        return statistics

    def examples(self, draws: np.ndarray) -> list[int]:
        """Return each worker's number of examples in its first draws [n]; [] for problems without examples."""
        return []

    def suspects(self) -> tuple[str, ...]:
        """Return sentences on properties of the data that may explain divergence; called after it."""
        return ()

    def keep_seconds(self) -> list[float] | None:
        """Record gradient times from now on; return the list with those [r] of the last call of `gradient`, or None if
        workers compute together or times are unknown."""
        return None

    def names(self) -> dict[str, list[str]]:
        """Return the names of numbered things, such as {'class': ['cat', 'dog']}; only of those with names."""
        return {}

    def save_tables(self, directory: Path) -> None:
        """Write tables that describe the problem, such as the distribution of the data (partition.csv)."""

    def save_outputs(self, x: Tensor, net: Network, world: World, directory: Path) -> None:
        """Write final outputs of the average of all models, such as translations.csv: all processes call this with
        their x [k, P] after the last evaluation, and the leader writes."""

    def model_states(self) -> list[dict[str, Any]]:
        """Return each local module's state besides the parameters in its row, such as buffers; part of `state`.

        [] without modules.
        """
        return []

    def state(self) -> list[Any]:
        """Return each local worker's other state for checkpoints, such as that of its environment; [] if none.

        One entry for each local worker, in order: tensors, numbers, strings, None, and lists and dicts of these. It is
        stored by worker, so that a run can resume with another number of processes.
        """
        return []

    def load_state(self, state: list[Any]) -> None:
        """Restore a result of `state`: the entries of the local workers. It is not called if there are none."""

    def model_tensors(self, x: Tensor, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a model x [P] with one of the `model_states` in saved form, the module's `state_dict`; without a
        state, the averaged model.

        The result is {} if no `nn.Module` is trained: x is then of little use without its problem, and no models are
        saved.
        """
        return {}

    def layout(self, x: Tensor) -> RowLayout:
        """Return the parameter layout of a model x [P]; by default one vector."""
        return RowLayout.flat(len(x))

    def averaged(self, mean: Tensor, x: Tensor, net: Network, members: Tensor | None = None) -> Tensor:
        """Return the averaged model [P] of all workers, or of members [n], bool, with this mean of the models x [k, P];
        by default the mean. All processes call this."""
        return mean

    def average_states(self, net: Network, members: Sequence[int] | None = None) -> None:
        """Give the averaged model the averages of the `model_states` of all workers, or of `members`. All processes
        call this before `average_statistics` and `model_tensors` of the averaged model."""

    def take_over_states(self, donors: Mapping[int, Sequence[int]], net: Network) -> int:
        """Copy the `model_states` of donors to workers (keys), with their models: all processes call this.

        Returns the number of bytes sent.
        """
        return 0

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """Return the common start x^0 [P] with these tensors, by name, and adopt their states.

        Raises ConfigError if they belong to another model, or if this problem has no modules.
        """
        raise ConfigError("init= needs a task that trains networks, such as task=images: leave it out.")

    def close(self) -> None:
        """Release the resources of the problem."""
