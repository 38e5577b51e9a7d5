"""The contract of a local update rule, and the rule as an algorithm holds it (with its learning rate)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Buffers = tuple["Tensor", ...]


class Optimizer(ABC):
    """u_i^t = Opt(g_i^t), for the local workers at once: rows [k, P], elementwise.

    Weight decay is L2: g <- g + weight_decay x before anything else, on every parameter, biases included (the RelaySGD
    authors exempt batch-norm weights; their VGG-11 has none).
    """

    weight_decay: float

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """The gradient with weight decay, g + weight_decay x, in g's memory."""
        return g.add_(x, alpha=self.weight_decay) if self.weight_decay else g

    @abstractmethod
    def init(self, x: Tensor) -> Buffers:
        """The rule's own row tensors, each [k, P]."""

    @abstractmethod
    def direction(self, g: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """The d [k, P] of the update u = -lr d at local step t = 0, 1, ..., and the new buffers.

        It lies in g's memory or is one of the buffers: whoever asks for it may read it, and overwrite g.
        """


class LocalRule(NamedTuple):
    """An optimizer with its learning rate gamma_t: what the papers write as u_i = Opt(g_i, gamma_t)."""

    optimizer: Optimizer
    lr: Callable[[int], float]  # step -> gamma_t; or a row of rates [1, P], one for each coordinate

    def init(self, x: Tensor) -> Buffers:
        """The optimizer's buffers for these rows."""
        return self.optimizer.init(x)

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """The update u_i^t [k, P] (already times -gamma_t, or -lr) in g's memory, and the new buffers."""
        d, buffers = self.optimizer.direction(self.optimizer.regularised(g, x), buffers, t)
        scale = self.lr(t) if lr is None else lr
        return (g if d is g else g.copy_(d)).mul_(-scale), buffers

    def moved(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, keep: bool = False, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """y_i = x_i + u_i^t [k, P] in x's memory, or (keep) in g's, and the new buffers. One pass less than with u."""
        d, buffers = self.optimizer.direction(self.optimizer.regularised(g, x), buffers, t)
        return move(x, d, self.lr(t) if lr is None else lr, out=g if keep else x), buffers


def move(x: Tensor, d: Tensor, lr: float | Tensor, out: Tensor) -> Tensor:
    """x - lr d, written to `out`, which may be either."""
    import torch

    if isinstance(lr, torch.Tensor):
        return torch.addcmul(x, d, lr, value=-1, out=out)
    return torch.add(x, d, alpha=-lr, out=out)


def is_zero(lr: float | Tensor) -> bool:
    """Whether a learning rate is 0, or each of a row of them: as in the first step of a warm-up."""
    return not (lr if isinstance(lr, float | int) else lr.any())


def check_range(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside [low, high)."""
    if not low <= value < high:
        limits = f"at least {low:g}" if high == float("inf") else f"in [{low:g}, {high:g})"
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be {limits}.")
