"""What carries out the operations of a timeline on rows; a timeline alone has nobody who does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from decentral.cluster.operations import OnRow


class CarriesOut(Protocol):
    """The rows of all workers, and what is on its way between them. Called in the order of simulated time.

    What is on its way (a sum of a group, a share, a copy of a row) has a key, and lies in tensors until it is dropped.
    """

    def begin_gradient(self, i: int, copied: bool) -> None:
        """From now on worker i computes its next gradient, at its model as it is now."""
        ...

    def end_gradient(self, i: int) -> None:
        """Worker i has its gradient."""
        ...

    def local(self, i: int, what: OnRow, *arguments: Any) -> None:
        """what(state, i, the worker's newest gradient, *arguments)."""
        ...

    def call(self, what: Callable[..., object], *arguments: Any) -> None:
        """what(state, *arguments)."""
        ...

    def mean(self) -> None:
        """x_i <- 1/n sum_j x_j."""
        ...

    def keep(self, key: Hashable, i: int, emptied: bool) -> None:
        """A copy of worker i's send buffer; `emptied`: there are zeros in the buffer afterwards."""
        ...

    def total(self, key: Hashable, members: Sequence[int], kept: dict[int, Hashable], emptied: bool) -> None:
        """The sum of the send buffers of these workers, in their order; of some of them a kept copy is taken instead,
        and dropped."""
        ...

    def put(self, key: Hashable, what: Callable[..., Any], *arguments: Any) -> None:
        """What what(state, *arguments) gives, a tuple of tensors, is on its way."""
        ...

    def take(self, key: Hashable, what: Callable[..., object], *arguments: Any, drop: bool = True) -> None:
        """what(state, *arguments, *the tensors with this key); they stay unless dropped."""
        ...

    def drop(self, key: Hashable) -> None:
        """Nobody will ask for this any more."""
        ...
