"""The contract of a way to compute the gradients of a process's workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.gradients.passes.passes import Passes
    from decentral.gradients.passes.worker_models import WorkerModels
    from decentral.gradients.precision import Precision


class Loss(Protocol):
    """The task's loss, such as torch's `cross_entropy`: of each target, their mean or their sum.

    Targets that are ignored have the loss 0, and no part in the mean.
    """

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Outputs [B, ...] of a model and targets [B, ...] -> a number, or [B, ...] with reduction="none"."""


class Workload(NamedTuple):
    """What a process computes in each step: the gradients of the loss for its workers' models.

    models        of the local workers
    batch_shape   of what one worker's model takes in a step, such as (B, C, H, W) for images
    precision     of the arithmetic
    loss          what is minimised, its mean over the batch
    ignored       targets of this value count for nothing, in the loss as in its mean: the padding of sequences, say
    """

    models: WorkerModels
    batch_shape: tuple[int, ...]
    precision: Precision
    loss: Loss
    ignored: int | None = None


class Execution(ABC):
    """A way to compute the gradients of all local workers: `execution=` on the command line. All give the same ones.

    A dataclass without settings.
    """

    name: str

    @abstractmethod
    def passes(self, workload: Workload) -> Passes:
        """The forward and backward passes for this work. Raises ConfigError if this way cannot compute the model."""
