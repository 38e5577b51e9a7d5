"""Execution modes for the gradients of a process's workers: the interface, and one class for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.gradients.passes.layers import Way
    from decentral.gradients.passes.passes import Passes
    from decentral.gradients.passes.worker_models import WorkerModels
    from decentral.gradients.precision import Precision


class Loss(Protocol):
    """The task's loss, such as torch's `cross_entropy`: for each target, or their mean or sum.

    Ignored targets have the loss 0, and do not count in the mean.
    """

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Return the loss of a model's outputs [B, ...] for targets [B, ...]: a number, or [B, ...] with
        reduction="none"."""


class Workload(NamedTuple):
    """A process's work per step: the gradients of the loss for its workers' models.

    models        models of the local workers
    batch_shape   shape of one worker's input in a step, such as (B, C, H, W) for images
    precision     precision of the arithmetic
    loss          minimized loss, as its mean over the batch
    ignored       targets of this value are excluded from the loss and its mean, such as padding
    """

    models: WorkerModels
    batch_shape: tuple[int, ...]
    precision: Precision
    loss: Loss
    ignored: int | None = None


class Execution(ABC):
    """A way to compute the gradients of all local workers, `execution=` on the command line; all give the same
    gradients.

    Each is a dataclass without settings.
    """

    name: str

    @abstractmethod
    def passes(self, workload: Workload) -> Passes:
        """Return the forward and backward passes for this work. Raises ConfigError if this way cannot compute the
        model."""

    def instead(self, workload: Workload, reason: str) -> Passes:
        """Return passes for work that this mode cannot compute. Raises ConfigError if the mode was selected by name."""
        raise ConfigError(
            f"execution={self.name} cannot batch the workers of this model, since {reason}: it needs a plain sequence "
            "of layers, such as model=mlp or model=cnn; use execution=auto or loop."
        )

    def proven(
        self, workload: Workload, passes: Passes, x: Tensor, inputs: Any, targets: Any
    ) -> tuple[Passes, tuple[str, ...]]:
        """Return `passes` if they are right for a batch of all local workers at models near x; otherwise other passes
        and a note."""
        reason = passes.doubt(x, inputs, targets)
        if reason is None:
            return passes, ()
        note = f"gradients are computed worker by worker (execution=loop), since {reason}"
        return self.instead(workload, reason), (note,)


@dataclass
class Loop(Execution):
    """A forward and a backward pass for each worker in turn: any model, and the memory of one worker's activations."""

    name: str = "loop"

    def passes(self, workload: Workload) -> Passes:
        """Return a pass for each worker in turn; it supports all models."""
        from decentral.gradients.passes.passes import OneByOne
        from decentral.gradients.passes.replayed import replayed

        return replayed(OneByOne(workload.models, workload.precision, workload.loss))


@dataclass
class Batched(Execution):
    """Several workers in each call of a layer: batched matrix products and, on a CPU, grouped convolutions.

    It supports plain sequences of the layers in `passes.layers`, on a GPU those in `passes.columns`, including dropout.
    Many small calls become few larger ones. On a CPU this is faster only for small models, since batched kernels are
    slower than those of a single model.
    """

    name: str = "batched"

    def passes(self, workload: Workload) -> Passes:
        """Return a pass for each group of workers. Raises ConfigError unless the model is a plain sequence of known
        layers."""
        from decentral.gradients.passes.layers import shared
        from decentral.gradients.passes.passes import SideBySide
        from decentral.gradients.passes.replayed import replayed

        way = _way(workload)
        layers = shared(workload, way)
        if isinstance(layers, str):
            return self.instead(workload, layers)
        return replayed(SideBySide(workload, *layers, way))


@dataclass
class Auto(Execution):
    """Automatic choice: small models batched, all others one by one; on a GPU, convolutional ones up to VGG-11 batched.

    The rule depends on model, batch size and number of workers, never on time: a resumed run must take exactly the same
    steps. `passes.layers.CallSizes` has the rule and its basis.
    """

    name: str = "auto"

    def passes(self, workload: Workload) -> Passes:
        """Return the passes of the way chosen by `choice`."""
        return self.choice(workload).passes(workload)

    def choice(self, workload: Workload) -> Execution:
        """Return `batched` if it was measured to be faster, otherwise `loop`."""
        from decentral.gradients.passes.layers import shared

        layers, models = shared(workload, _way(workload)), workload.models
        if isinstance(layers, str) or not layers[1].batched_is_faster(len(models.modules), models.device):
            return Loop()
        return Batched()

    def instead(self, workload: Workload, reason: str) -> Passes:
        """Return the passes of `loop`."""
        return Loop().passes(workload)


def _way(workload: Workload) -> Way:
    """Return how workers share calls on this device."""
    if workload.models.device.type == "cpu":
        from decentral.gradients.passes import layers

        return layers.WAY
    from decentral.gradients.passes import columns

    return columns.WAY
