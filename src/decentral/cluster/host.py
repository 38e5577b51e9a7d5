"""What carries out the operations of the workers of a process for real, each worker in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from decentral.cluster.groups import Groups
    from decentral.cluster.operations import OnRow
    from decentral.cluster.pairs import Pairs


class Host(Protocol):
    """The process of some workers. i is a global number; all methods wait, and raise if another process is gone."""

    def gradient(self, i: int, copied: bool) -> None:
        """The next gradient of worker i, after the delay that it straggles by."""
        ...

    def local(self, i: int, what: OnRow, timed: bool) -> None:
        """what(state, place of the worker, its newest gradient, its step); `timed`: and the seconds since the start."""
        ...

    def publish(self, i: int, groups: Groups, version: int) -> None:
        """Leave what worker i contributes in its send buffer."""
        ...

    def join(self, i: int, groups: Groups, version: int) -> None:
        """Publish, and receive the sum of the worker's group."""
        ...

    def mean(self, i: int) -> None:
        """x_i <- 1/n sum_j x_j, once all workers ask for it."""
        ...

    def average(self, i: int, pairs: Pairs, partner: int) -> None:
        """Begin to average with a partner, once the averaging before is over."""
        ...
