"""Local optimizers, u = Opt(g): their interface, and the view of an algorithm, with the learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy as copy_of
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from decentral.errors import ConfigError
from decentral.optim.rows import add, clip, copy, scale, sub
from decentral.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.rows import RowLayout
    from decentral.topology.communication import LocalSteps

Buffers = tuple["Tensor", ...]
Taken = int | list[int]
"""Number of steps before this one: of all workers, or of each of them."""


class Optimizer(Settings, ABC, where="optim"):
    """A local optimizer on rows: from the gradients g to the directions d of the updates u = -lr d, without the rate.

    Everything is elementwise, so that the k workers of a process are updated at once: all tensors are [k, P]. There is
    no communication. Weight decay is L2: g <- g + weight_decay x before anything else, on every parameter, including
    biases (the RelaySGD authors exempt batch-norm weights; their VGG-11 has none).

    clip_norm   maximum norm of each worker's gradient, over all parameters (of the mean where gradients are averaged)
    """

    weight_decay: float
    clip_norm: float | None = None
    """Maximum norm c: each worker's gradient with ||g|| > c is scaled, g <- g c / (||g|| + 1e-6), as in
    `torch.nn.utils.clip_grad_norm_`, before weight decay. It clips the gradient that the algorithm passes: a worker's
    own, or the mean of all in an algorithm that averages gradients."""

    num_buffers: ClassVar[int | None] = None
    """The maximum number of rows [k, P] of `init` with a meaningful mean over workers; None: unknown."""

    counts_rows: ClassVar[bool] = False
    """True if `direction` takes a step count per row; otherwise, it is called for rows with equal counts."""

    def rule(self, lr: Callable[[int], float], layout: RowLayout) -> LocalOptimizer:
        """Return the algorithm's view: this optimizer with the learning rate lr(t), for rows of this layout.

        Optimizers that use names and shapes of parameters keep the layout here; see `optim/muon.py`.
        """
        return LocalRule(self, lr)

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the gradient, clipped and with weight decay, c(g) + weight_decay x [k, P], in the memory of g."""
        if self.clip_norm is not None:
            g = clip(g, self.clip_norm)
        return add(g, x, alpha=self.weight_decay) if self.weight_decay else g

    def decayed(self, d: Tensor, x: Tensor) -> Tensor:
        """Return the direction d at x [k, P] with decoupled weight decay, in the memory of d; none by default."""
        return d

    @abstractmethod
    def init(self, x: Tensor) -> Buffers:
        """Return the optimizer's buffers before step 0, for models x [k, P]: rows [k, P]."""

    @abstractmethod
    def direction(self, g: Tensor, buffers: Buffers, t: Taken) -> tuple[Tensor, Buffers]:
        """Return the direction d [k, P] of step t = 0, 1, ... for the regularized gradient g [k, P], and new buffers.

        Workers that were absent have taken fewer steps than others; then t has a number for each of them, if
        `counts_rows`.
        d is in the memory of g or is one of the buffers: the caller may read it, and overwrite g.
        """


class LocalOptimizer(Protocol):
    """The algorithm's view of the local optimizer, the papers' u_i = Opt(g_i, gamma_t), for rows [k, P].

    It returns the update u (by a call), the model after it, x + u (`adapt`), or the direction d of the update
    -gamma_t d (`direction`, of a `regularised` gradient), for algorithms with their own momentum. `LocalRule`
    implements it for the optimizers of this package; a script's torch optimizer is another implementation
    (`decentral.wrap`).
    """

    def lr(self, t: int) -> float:
        """Return the learning rate gamma_t of step t; or a row of rates [1, P], one per coordinate."""

    def init(self, x: Tensor) -> Buffers:
        """Return the optimizer's buffers for models x [k, P]: `opt` in the state of an algorithm."""

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return the update u^t = Opt(g, gamma_t) [k, P] in the memory of g, and the new buffers; x is unchanged.

        g [k, P] is the gradient at x [k, P], without weight decay; `lr` is used instead of gamma_t.
        """

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return x^{t+1/2} = x + u^t [k, P] in the memory of x or of `out` (then x is unchanged), and the new buffers.

        g [k, P] is the gradient at x [k, P], without weight decay, and is overwritten: `out` may be g. `lr` is used
        instead of gamma_t.
        """

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return the gradient g [k, P] at x [k, P] with weight decay, g + weight_decay x, in the memory of g."""

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """Return the direction d [k, P] of the update -gamma_t d for a regularized gradient g [k, P] at x [k, P], and
        the new buffers.

        d is in the memory of g or of a buffer: it may be read, and g overwritten. x is unchanged.
        """


class LocalRule(NamedTuple):
    """A `LocalOptimizer` from an optimizer of this package and a learning rate."""

    optimizer: Optimizer
    lr: Callable[[int], float]
    """Learning rate gamma_t of step t; or rates [1, P], one for each coordinate, or [k, 1], one for each worker."""
    taken: Callable[[int], Taken] = int
    """Number of earlier steps that the buffers have seen at step t."""
    changes: Callable[[int], dict[str, Any]] | None = None
    """Settings of the optimizer that the schedule changes at step t."""

    def scheduled(self, changes: Callable[[int], dict[str, Any]]) -> LocalRule:
        """Return the rule with these changes of the optimizer's settings."""
        return self._replace(changes=changes)

    def at(self, t: int) -> Optimizer:
        """Return the optimizer with the settings of step t."""
        values = {} if self.changes is None else self.changes(t)
        if not values:
            return self.optimizer
        changed = copy_of(self.optimizer)
        vars(changed).update(values)
        return changed

    def init(self, x: Tensor) -> Buffers:
        """Return the optimizer's buffers before step 0, rows [k, P]."""
        return self.at(0).init(x)

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return the update u^t = -gamma_t d (or -lr d) [k, P] in the memory of g, and the new buffers."""
        d, buffers = self._direction(self.at(t).regularised(g, x), x, buffers, t)
        return scale(g if d is g else copy(d, out=g), -(self.lr(t) if lr is None else lr)), buffers

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return x^{t+1/2} = x - gamma_t d (or - lr d) [k, P] in the memory of x or `out`: one pass less than x + u."""
        d, buffers = self._direction(self.at(t).regularised(g, x), x, buffers, t)
        return sub(x, d, self.lr(t) if lr is None else lr, out=out), buffers

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """Return g + weight_decay x [k, P], in the memory of g."""
        return self.optimizer.regularised(g, x)

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """Return the optimizer's direction d [k, P] for a regularized gradient at x, in the memory of g or of a
        buffer."""
        check_decay(self.changes, t)
        return self._direction(g, x, buffers, t)

    def _direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        taken, optimizer = self.taken(t), self.at(t)
        if isinstance(taken, int) or optimizer.counts_rows:
            d, buffers = optimizer.direction(g, buffers, taken)
            return optimizer.decayed(d, x), buffers
        for number in set(taken):
            rows = [i for i, each in enumerate(taken) if each == number]
            d, new = optimizer.direction(g[rows], tuple(buffer[rows] for buffer in buffers), number)
            _put(rows, (g, *buffers), (d, *new))
        return optimizer.decayed(g, x), buffers


def check_decay(changes: Callable[[int], dict[str, Any]] | None, t: int) -> None:
    """Raise ConfigError if the schedule changes the weight decay, which an algorithm has applied before."""
    if changes is not None and "weight_decay" in changes(t):
        raise ConfigError(
            "schedule= changes weight_decay, which this algorithm applies before its own momentum: use another "
            "schedule, or another algorithm, such as dpsgd."
        )


class UnevenRule(NamedTuple):
    """A `LocalOptimizer` whose workers take different numbers of steps: the update of an idle worker is 0.

    A worker's optimizer counts its own steps; its rate follows the run's step.
    """

    rule: LocalOptimizer
    local_steps: LocalSteps
    """The local steps of the k local workers."""

    def lr(self, t: int) -> float:
        """See `LocalOptimizer`."""
        return self.rule.lr(t)

    def init(self, x: Tensor) -> Buffers:
        """See `LocalOptimizer`."""
        return self.rule.init(x)

    def __call__(
        self, g: Tensor, x: Tensor, buffers: Buffers, t: int, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return the update u^t [k, P] in the memory of g, and the new buffers."""
        for rows, taken, rate in self._groups(t, lr):
            u, new = self.rule(g[rows], x[rows], tuple(buffer[rows] for buffer in buffers), taken, rate)
            _put(rows, (g, *buffers), (u, *new))
        g[~self.local_steps.active(t)] = 0.0
        return g, buffers

    def adapt(
        self, x: Tensor, g: Tensor, buffers: Buffers, t: int, *, out: Tensor | None = None, lr: float | None = None
    ) -> tuple[Tensor, Buffers]:
        """Return x^{t+1/2} = x + u^t [k, P] in the memory of x or `out`, and the new buffers."""
        u, buffers = self(g, x, buffers, t, lr)
        return add(x, u) if out is None else add(u, x, out=out), buffers

    def regularised(self, g: Tensor, x: Tensor) -> Tensor:
        """See `LocalOptimizer`."""
        return self.rule.regularised(g, x)

    def direction(self, g: Tensor, x: Tensor, buffers: Buffers, t: int) -> tuple[Tensor, Buffers]:
        """Raise NotImplementedError: methods that use directions are refused (`Feature.own_steps`)."""
        raise NotImplementedError

    def _groups(self, t: int, lr: float | Tensor | None) -> Iterator[tuple[list[int], int, Any]]:
        """Yield groups of active workers with equal step counts: their rows, the count, and their rates."""
        active, taken = self.local_steps.active(t), self.local_steps.taken(t)
        rate = self.rule.lr(t) if lr is None else lr
        for number in sorted(set(taken[active].tolist())):
            rows = np.flatnonzero(active & (taken == number)).tolist()
            yield rows, number, rate if isinstance(rate, float | int) or len(rate) == 1 else rate[rows]


def _put(rows: list[int], into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(into, values, strict=True):
        tensor[rows] = value


def by_taken(t: Taken, value: Callable[[int], float], like: Tensor) -> Any:
    """Return a number that depends on the earlier steps: one for all rows, or one per row, [k, 1]."""
    return value(t) if isinstance(t, int) else like.new_tensor([[value(each)] for each in t])


def is_zero(lr: float | Tensor) -> bool:
    """Return whether a learning rate, or every rate of a row, is 0, as in the first step of a warm-up."""
    return not (lr if isinstance(lr, float | int) else lr.any())
