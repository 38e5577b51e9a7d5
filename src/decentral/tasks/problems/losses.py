"""Classification losses, and user functions in their place."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decentral.errors import ConfigError
from decentral.gradients.execution import Loss
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import function, taken

_TRIED = 64  # examples, at least: some losses keep the hardest k


def squared_error(outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """Return the mean over classes of the squared distance of outputs [B, C] to 1 for the target, 0 for the others."""
    each = (outputs - F.one_hot(targets, outputs.shape[1])).square().mean(1)
    return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()


class OwnLoss:
    """A user's loss: `function(outputs [B, C], targets [B])` -> a number for each example of a worker's batch [B], or
    their mean.

    For a class, such as torch.nn:MultiMarginLoss, an object is created. Both get `num_classes` if they have this
    parameter.
    """

    foreign: ClassVar[bool] = True

    def __init__(self, name: str, num_classes: int) -> None:
        """Load `name`, module:function, and try it on outputs of zeros. Raises ConfigError for an invalid result."""
        target = function("task.loss", name)
        given, self.name, self.function = {"num_classes": num_classes}, name, target
        with blame.calling(f"task.loss={name}"):
            if isinstance(target, type):
                self.function = target(**taken(target, given))
            self._given = taken(self.function, given)
        own = self.function if isinstance(self.function, nn.Module) else nn.Module()
        if trained := [key for key, parameter in own.named_parameters() if parameter.requires_grad]:
            raise ConfigError(
                f"task.loss={name} has the parameter {trained[0]}, which would not be trained: put it into the model."
            )
        number = -(-_TRIED // (num_classes + 1)) * (num_classes + 1)
        outputs = torch.zeros(number, num_classes, requires_grad=True)
        targets = torch.arange(number) % num_classes

        def called(times: int = 1) -> float:
            with torch.enable_grad(), seeded(0, "try the loss"):
                return self(outputs.repeat(times, 1), targets.repeat(times)).item()

        if (once := called()) and abs(called(2) / once - 2) < 1e-3:
            raise ConfigError(
                f"task.loss={name} returns the sum over the examples: return their mean, or one number per example."
            )

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Return the mean or sum of the losses."""
        if isinstance(self.function, nn.Module):
            self.function.to(outputs.device)
        with blame.calling(f"task.loss={self.name}"):
            losses: Any = self.function(outputs.clone(), targets.clone(), **self._given)  # it may change them in place
        if not isinstance(losses, Tensor) or losses.shape not in ((), targets.shape):
            kind = list(losses.shape) if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise ConfigError(
                f"task.loss={self.name} returns {kind} for {len(targets)} examples: return a tensor with one number "
                "per example, or their mean."
            )
        if outputs.requires_grad and torch.is_grad_enabled() and not losses.requires_grad:
            raise ConfigError(
                f"task.loss={self.name} returns a number without a gradient: compute it from the outputs by torch, "
                "without detach() or item()."
            )
        return losses.mean() if reduction == "mean" else losses.sum() * (1 if losses.dim() else len(targets))


def losses(name: str, label_smoothing: float, num_classes: int) -> tuple[Loss, Loss, str]:
    """Return the training loss, the test loss, and its unit."""
    if name == "cross_entropy":
        smoothed = partial(F.cross_entropy, label_smoothing=label_smoothing) if label_smoothing else F.cross_entropy
        return smoothed, F.cross_entropy, "nats"
    loss = squared_error if name == "mse" else OwnLoss(name, num_classes)
    return loss, loss, ""
