"""The contract of a task (its configuration) and of the problem it opens (what a run works on)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.config import Config

DEFAULT_NUM_WORKERS = 16


@dataclass(frozen=True)
class Metric:
    """A number that evaluation gives for a model: accuracy on test data, say."""

    split: str
    name: str
    larger_is_better: bool = False
    percent: bool = False

    def format(self, value: float) -> str:
        """The value as a person reads it."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3g}"


class Task(ABC):
    """A dataclass whose fields are its configuration."""

    uses: ClassVar[tuple[str, ...]] = ()
    """The groups of the configuration that this task reads: they are part of the run's identity."""

    eval_every_epochs: ClassVar[float] = 1.0
    """How often to evaluate unless told otherwise."""

    has_samples: ClassVar[bool] = True
    """Whether x - gradient(x) is a sample in the space of the models (relay_mean averages those)."""

    can_be_ensemble: ClassVar[bool] = False
    """Whether `decentral.ensembles` can solve many of its problems side by side, as one run."""

    def resolve_num_workers(self, config: Config) -> int:
        """The number of workers: the user's, or else what the topology is made for, or else 16."""
        return config.num_workers or config.topology.implied_num_workers() or DEFAULT_NUM_WORKERS

    def check(self, config: Config) -> None:
        """Refuse, quickly and without torch, what cannot work. Raises ConfigError."""
        return None

    def prepare(self, config: Config) -> None:
        """Do slow things once, before any worker starts: download, decode. Raises ConfigError."""
        return None

    def worth_processes(self, config: Config) -> bool:
        """Whether a step is long enough for `processes=auto` to start one process per core."""
        return False

    @abstractmethod
    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The problem, for the local workers."""


class Problem(ABC):
    """n functions F_i on R^P with a stochastic gradient, and what can be said of a model."""

    metrics: tuple[Metric, ...]
    """What evaluation gives; the first is the one to show."""

    notes: tuple[str, ...] = ()
    """What a reader of the metrics has to know, for example on which data batch-norm statistics were recomputed."""

    facts: Mapping[str, Any] = {}
    """How it computes, for the provenance."""

    steps_per_epoch: float

    @abstractmethod
    def init(self, seed: int) -> Tensor:
        """The initial model x^0 [P], the same for all workers, on the device."""

    @abstractmethod
    def gradient(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Losses [k] and gradients g [k, P] of the local workers at x [k, P].

        `index` numbers the gradients that a worker draws from 0 on: the batch and all randomness are addressed by it.
        The returned tensors are the caller's until the next call, who may overwrite them.
        """

    @abstractmethod
    def evaluate_workers(self, x: Tensor) -> Tensor:
        """Metrics of the local workers' own models: [k, P] -> [k, len(metrics)], float64 on the CPU."""

    @abstractmethod
    def evaluate_average(self, x: Tensor, part: int, parts: int) -> Tensor:
        """Metrics of one averaged model: [P] -> [len(metrics)], float64 on the CPU.

        What this returns for part = 0, ..., parts - 1 adds up to the metrics: every process does a share of the work.
        """

    def save_tables(self, directory: Path) -> None:
        """Write what describes the problem, such as the distribution of the data (partition.csv)."""
        return None

    def buffers(self) -> dict[str, Tensor]:
        """State of the local workers beside their models (batch-norm statistics), each [k, ...]; tensors that alias
        it."""
        return {}

    def close(self) -> None:
        """Release what the problem holds."""
        return None
