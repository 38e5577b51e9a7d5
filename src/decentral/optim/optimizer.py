"""Local optimizers, u = Opt(g): the contract of one, and what an algorithm asks of one with its learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from decentral.optim.rows import add, clip, copy, scale, sub
from decentral.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

Buffers = tuple["Tensor", ...]


class Optimizer(Settings, ABC, where="optim"):
    """A local optimizer on rows: from the gradients g to the directions d of the updates u = -lr d, without the rate.

    Everything is elementwise, so that the k workers of a process are updated at once: all tensors are [k, P]. Nothing
    is communicated. Weight decay is L2: g <- g + weight_decay x before anything else, on every parameter, biases
    included (the RelaySGD authors exempt batch-norm weights; their VGG-11 has none).
    """

    weight_decay: float
    clip_norm: float | None = None
    """c: gradients g of workers with ||g|| > c are made that long, g <- g c / (||g|| + 1e-6), each worker's by itself;
    as `torch.nn.utils.clip_grad_norm_`. Before weight decay. What algorithms hand to the local optimizer is what is
    clipped: a worker's own gradient, or the mean of all with an algorithm that averages gradients."""

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """The gradient, clipped and with weight decay, c(g) + weight_decay x [k, P], in the memory of g."""
        if self.clip_norm is not None:
            g = clip(g, self.clip_norm)
        return add(g, x, alpha=self.weight_decay) if self.weight_decay else g

    def decayed(self, d: Tensor, x: Tensor) -> Tensor:
        """The direction d at x [k, P] with weight decay that is not part of the gradient, in the memory of d; here
        there is none."""
        return d

    @abstractmethod
    def init(self, x: Tensor) -> Buffers:
        """What the optimizer remembers between steps, for models x [k, P]: rows [k, P], as they are before step 0."""

    @abstractmethod
    def direction(self, g: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """The direction d [k, P] of step t = 0, 1, ... for the regularised gradient g [k, P], and the new buffers.

        d lies in the memory of g or is one of the buffers: the caller may read it, and overwrite g.
        """


class LocalOptimizer(Protocol):
    """What an algorithm asks of the local optimizer, the papers' u_i = Opt(g_i, gamma_t): for rows [k, P].

    One of three things: the update u (calling it), the model after it, x + u (`adapt`), or the direction d of the
    update -gamma_t d (`direction`, of a `regularised` gradient), where the algorithm has a momentum of its own.
    `LocalRule` is that for the optimizers of this package; a script's torch optimizer is another one
    (`decentral.wrap`).
    """

    def lr(self, t: int) -> float:
        """The learning rate gamma_t of step t; or a row of rates [1, P], one for each coordinate."""

    def init(self, x: Tensor) -> Buffers:
        """What the optimizer remembers between steps, for models x [k, P]: `opt` in the state of an algorithm."""

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """The update u^t = Opt(g, gamma_t) [k, P] in the memory of g, and the new buffers; x stays as it is.

        g [k, P] is the gradient at x [k, P], without weight decay; `lr` is used instead of gamma_t.
        """

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """x^{t+1/2} = x + u^t [k, P] in the memory of x, or of `out` (then x stays as it is), and the new buffers.

        g [k, P] is the gradient at x [k, P], without weight decay, and is overwritten: `out` may be g. `lr` is used
        instead of gamma_t.
        """

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """The gradient g [k, P] at x [k, P] with weight decay, g + weight_decay x, in the memory of g."""

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """The direction d [k, P] of the update -gamma_t d for a regularised gradient g [k, P] at x [k, P], and the new
        buffers.

        d lies in the memory of g or of a buffer: it may be read, and g overwritten. x stays as it is.
        """


class LocalRule(NamedTuple):
    """A `LocalOptimizer` made of an optimizer of this package and a learning rate."""

    optimizer: Optimizer
    lr: Callable[[int], float]
    """step t -> gamma_t; or a row of rates [1, P], one for each coordinate"""

    def init(self, x: Tensor) -> Buffers:
        """The optimizer's buffers, rows [k, P] as they are before step 0."""
        return self.optimizer.init(x)

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """The update u^t = -gamma_t d (or -lr d) [k, P] in the memory of g, and the new buffers."""
        d, buffers = self.direction(self.optimizer.regularised(g, x), x, buffers, t)
        return scale(g if d is g else copy(d, out=g), -(self.lr(t) if lr is None else lr)), buffers

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """x^{t+1/2} = x - gamma_t d (or - lr d) [k, P] in the memory of x or `out`: a pass less than x + u."""
        d, buffers = self.direction(self.optimizer.regularised(g, x), x, buffers, t)
        return sub(x, d, self.lr(t) if lr is None else lr, out=out), buffers

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """g + weight_decay x [k, P], in the memory of g."""
        return self.optimizer.regularised(g, x)

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """The optimizer's direction d [k, P] for a regularised gradient at x, in the memory of g or of a buffer."""
        d, buffers = self.optimizer.direction(g, buffers, t)
        return self.optimizer.decayed(d, x), buffers


def is_zero(lr: float | Tensor) -> bool:
    """Whether a learning rate is 0, or each of a row of them: as in the first step of a warm-up."""
    return not (lr if isinstance(lr, float | int) else lr.any())
