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
    def update(self, g: Tensor, buffers: Buffers, lr: float, t: int) -> tuple[Tensor, Buffers]:
        """The update u [k, P] at local step t = 0, 1, ..., in g's memory, and the new buffers."""


class LocalRule(NamedTuple):
    """An optimizer with its learning rate gamma_t: what the papers write as u_i = Opt(g_i, gamma_t)."""

    optimizer: Optimizer
    lr: Callable[[int], float]  # step -> gamma_t

    def init(self, x: Tensor) -> Buffers:
        """The optimizer's buffers for these rows."""
        return self.optimizer.init(x)

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """The update u_i^t [k, P] (already times -gamma_t, or -lr) in g's memory, and the new buffers."""
        return self.optimizer.update(self.optimizer.regularised(g, x), buffers, self.lr(t) if lr is None else lr, t)


def check_range(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside [low, high)."""
    if not low <= value < high:
        limits = f"at least {low:g}" if high == float("inf") else f"in [{low:g}, {high:g})"
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be {limits}.")
