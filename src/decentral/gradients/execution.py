"""The contract of a way to compute the gradients of a process's workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from decentral.errors import ConfigError

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

    def instead(self, workload: Workload, reason: str) -> Passes:
        """Passes for work that this way cannot compute. Raises ConfigError, unless it was not asked for by name."""
        raise ConfigError(
            f"execution={self.name} cannot compute the workers of this model side by side, since {reason}: it is for "
            "plain sequences of layers, such as model=mlp or model=cnn; use execution=auto or loop."
        )

    def proven(
        self, workload: Workload, passes: Passes, x: Tensor, inputs: Any, targets: Any
    ) -> tuple[Passes, tuple[str, ...]]:
        """`passes`, if they are right for a batch of all local workers at models near x, else others and a note."""
        reason = passes.doubt(x, inputs, targets)
        if reason is None:
            return passes, ()
        note = f"gradients are computed worker by worker (execution=loop), since {reason}"
        return self.instead(workload, reason), (note,)
