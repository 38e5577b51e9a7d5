"""A torch optimizer as the local optimizer of an algorithm: the part independent of where it keeps its state."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decentral.optim.optimizer import Buffers
from decentral.optim.rows import copy, sub

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class TorchRule(ABC):
    """A `LocalOptimizer` whose update u = Opt(g) is the change of parameters x by a torch optimizer's `step()` with
    gradients g."""

    def __init__(self) -> None:
        self._scratch = threading.local()

    @abstractmethod
    def step_at(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, lr: float | None, regularised: bool = False
    ) -> None:
        """Take the optimizer's step on the rows x [k, P], in place; at its own learning rate if `lr` is None.

        `regularised` gradients g [k, P] already include L2 weight decay.
        """

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return the update u [k, P] in g's memory: 5 more passes over memory than the optimizer's own."""
        return sub(self._beside(x, g, buffers, t, lr), x, out=g), buffers

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return x + u [k, P]: in x's memory, at no extra cost; or in `out`, with 2 more passes."""
        if out is None:
            self.step_at(x, g, buffers, t, lr)
            return x, buffers
        y = self._beside(x, g, buffers, t, lr)
        return y if out.data_ptr() == g.data_ptr() else copy(y, out=out), buffers

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """Return the d [k, P] of u = -lr d for a regularized gradient; in g's memory.

        It is the optimizer's update at learning rate 1, as updates are linear in the rate.
        """
        return sub(x, self._beside(x, g, buffers, t, lr=1.0, regularised=True), out=g), buffers

    def _beside(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, lr: float | None, regularised: bool = False
    ) -> Tensor:
        """Return x + u in memory that this thread reuses in the next step."""
        import torch

        moved = getattr(self._scratch, "moved", None)
        if moved is None or moved.shape != x.shape:
            moved = self._scratch.moved = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.step_at(moved.copy_(x), g, buffers, t, lr, regularised)
        return moved


def l2(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    """Return the L2 weight decay of a parameter group, which is added to the gradient first; 0 if it is decoupled, as
    in AdamW."""
    import torch

    coupled = isinstance(optimizer, tuple(getattr(torch.optim, name) for name in _DECAYS_GRADIENTS))
    if not coupled or isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay"):
        return 0.0
    return float(group.get("weight_decay", 0.0))


_DECAYS_GRADIENTS: Sequence[str] = (
    *("SGD", "Adam", "NAdam", "RAdam", "Adamax"),
    *("Adagrad", "Adadelta", "RMSprop", "ASGD"),
)
