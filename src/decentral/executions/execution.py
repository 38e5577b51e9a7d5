"""The contract of a way to compute the gradients of a process's workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from decentral.executions.passes.passes import Passes
    from decentral.executions.passes.worker_models import WorkerModels
    from decentral.precision import Precision


class Work(NamedTuple):
    """What is to be computed in each step."""

    models: WorkerModels
    pictures: tuple[int, int, int, int]  # (B, C, H, W), of one worker
    precision: Precision


class Execution(ABC):
    """A dataclass without settings; `name` is what `execution=` calls it. All of them give the same gradients."""

    name: str

    @abstractmethod
    def passes(self, work: Work) -> Passes:
        """What computes them. Raises ConfigError if it cannot for this model."""
