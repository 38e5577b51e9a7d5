"""The contract of a task (its configuration) and of the problem it opens (what a run works on)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.compression.row_layout import RowLayout
from decentral.errors import ConfigError
from decentral.settings import Settings
from decentral.store.metrics import Metric
from decentral.tasks.evaluation import WHOLE, Scope

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from decentral.config.schema import Config
    from decentral.data.description import DataDescription
    from decentral.network.network import Network

DEFAULT_NUM_WORKERS = 16


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

    has_samples: ClassVar[bool] = True
    """Whether x - gradient(x) is a sample in the space of the models (relay_mean averages those)."""

    def num_examples(self, config: Config) -> tuple[int, int] | None:
        """How many examples there are for training and for testing; None where problems are not made of examples."""
        return None

    def resolve_num_workers(self, config: Config) -> int:
        """The number of workers: the user's, or else what the topology is made for, or else what the task suits."""
        return config.num_workers or config.topology.implied_num_workers() or self.default_num_workers

    def describe(self, config: Config) -> DataDescription | None:
        """What models are built from: the data; None of a task that has none. Without torch."""
        return config.data.inspect() if "data" in self.uses else None

    def check(self, config: Config) -> None:
        """Refuse, quickly and without torch, what cannot work. Raises ConfigError."""
        return None

    def prepare(self, config: Config) -> None:
        """Do slow things once, before any worker starts: download, decode. Raises ConfigError."""
        return None

    def useful_processes(self, config: Config) -> float:
        """The most processes that `processes=auto` should start; math.inf for one per core."""
        return 1

    def num_parameters(self, config: Config) -> int:
        """P, of the model that is trained. Here: by opening the problem for one worker."""
        import torch

        problem = self.open(config, range(1), torch.device("cpu"))
        try:
            return problem.init().numel()
        finally:
            problem.close()

    @abstractmethod
    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The problem, for the local workers."""


class Problem(ABC):
    """n functions F_i on R^P with a stochastic gradient, and what can be said of a model."""

    metrics: tuple[Metric, ...]
    """What evaluation gives; the first is what a run is judged by."""

    loss_unit: str = ""
    """Of the training loss, such as nats."""

    notes: tuple[str, ...] = ()
    """What a reader of the metrics has to know, for example on which data batch-norm statistics were recomputed."""

    facts: Mapping[str, Any] = {}
    """How it computes, for the provenance."""

    data_s: float = 0.0
    """How long the gradients so far have waited for their batches."""

    steps_per_epoch: float

    @abstractmethod
    def init(self) -> Tensor:
        """The initial model x^0 [P], the same for all workers, on the device."""

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
        return None

    @abstractmethod
    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Statistics of local workers' own models x [k, P]: [r, S], float64 on the CPU.

        Of all k of them, or of those of `workers`: places among the local ones, each once.

        Statistics are what the metrics are computed from once they are added up over test examples: how many were
        recognised, the sum of their losses, and how many there are, say. See `finish`.
        """

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """The same statistics of one model, the average of all: [P] -> [S], float64 on the CPU.

        What this returns for part = 0, ..., parts - 1 adds up to those of the same test examples: every process looks
        at its share of them. Here, for what is no set of examples, the first part is all of it.
        """
        found = self.worker_statistics(x[None], scope=scope)[0]
        return found if part == 0 else found.new_zeros(found.shape)

    def finish(self, statistics: Tensor) -> Tensor:
        """Metrics from statistics that are complete: [..., S] -> [..., len(metrics)].

        For example accuracy = correct / count, or perplexity = exp(sum of nats / tokens). Metrics that are no functions
        of sums are statistics themselves: then this is the identity, as it is here.
        """
        return statistics

    def suspects(self) -> tuple[str, ...]:
        """What in the data may have made the run diverge, a sentence each; asked for once it has."""
        return ()

    def keep_seconds(self) -> list[float] | None:
        """A list of how long each gradient [r] of the last call of `gradient` took, from now on; None where gradients
        of several workers are computed together, or nobody can tell."""
        return None

    def save_tables(self, directory: Path) -> None:
        """Write what describes the problem, such as the distribution of the data (partition.csv)."""
        return None

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
        return None

    def model_tensors(self, x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        """A model x [P] with one of the `model_states` as it is kept, which is the module's `state_dict`.

        {} where no `nn.Module` is trained: x then says little without its problem, and no models are kept.
        """
        return {}

    def layout(self, x: Tensor) -> RowLayout:
        """The parameters of a model x [P], one after the other; by default it is one vector."""
        return RowLayout.flat(len(x))

    def average_states(self, net: Network) -> None:
        """Let the averaged model have what fits it of the `model_states` of all workers: all processes call this
        before `average_statistics` and `averaged_tensors`."""
        return None

    def averaged_tensors(self, x: Tensor) -> dict[str, Any]:
        """The `model_tensors` of the averaged model x [P]."""
        return self.model_tensors(x, {})

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """The model x^0 [P] with these tensors, by name, for all workers, and their states.

        Raises ConfigError if they are those of another model, or there are no modules here.
        """
        raise ConfigError("init= is for tasks that train networks, such as task=images: leave it out.")

    def close(self) -> None:
        """Release what the problem holds."""
        return None
