"""What a worker does next: the operations that the program of an asynchronous method is made of.

In simulated time (`begin`) an operation says when the worker can go on, or a meeting lets it go on. For real
(`carry_out`) a thread of the worker does it, and waits. What is done to the worker's rows is the same: functions that
the method gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from decentral.cluster.groups import Groups
    from decentral.cluster.pairs import Pairs
    from decentral.cluster.timeline import Timeline

OnRow = Callable[..., object]
"""(state, place of the worker among the rows, its gradient [P], number of its step) -> changes the worker's rows."""


class Operation(ABC):
    """Something that a worker does, in simulated time or for real."""

    @abstractmethod
    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Worker i begins it now: when it can go on; None if somebody else will say (`Timeline.resume`)."""

    @abstractmethod
    def carry_out(self, host: Host, i: int) -> None:
        """Worker i does it for real, in a thread of its own; returns when it can go on."""


@dataclass(frozen=True)
class Gradient(Operation):
    """g_i = grad F_i(x_i; xi_i) with the next sample xi_i, at the model as it is when this begins.

    copied    others may change x_i while this goes on: it is taken at a copy
    """

    copied: bool = False

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Over after the time that the worker's machine takes for this gradient."""
        return timeline.begin_gradient(i, now, self.copied)

    def carry_out(self, host: Host, i: int) -> None:
        """By the host, once it lets the worker go on."""
        host.gradient(i, self.copied)


@dataclass(frozen=True)
class Local(Operation):
    """Something that a worker does to its own rows, with its newest gradient; it takes no time.

    timed    what(state, i, gradient [P], number of its step, seconds): the simulated time matters, too
    """

    what: OnRow
    timed: bool = False

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once."""
        if timeline.rows is not None:
            timeline.rows.local(i, self.what, timeline.drawn[i] - 1, *((now,) if self.timed else ()))
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """While nobody averages with the worker's row."""
        host.local(i, self.what, timed=self.timed)


def check_ended(i: int, gradients: int, share: float) -> None:
    """The program of worker i gives no operation any more. Raises RuntimeError if it took fewer gradients than its
    share."""
    if gradients < share:
        raise RuntimeError(
            f"the program of worker {i} ended after {gradients} of {share:g} gradients: it has to give operations "
            "until nobody asks for another one, as in `while True:` or `for t in range(team.num_steps):`"
        )


class _All:
    """Who has arrived."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.arrived: list[tuple[float, int]] = []

    def arrive(self, i: int, now: float) -> None:
        self.arrived.append((now, i))
        timeline = self.timeline
        if len(self.arrived) < timeline.n:
            return
        arrived, self.arrived = self.arrived, []
        n, num_bytes = timeline.n, timeline.bytes_per_row
        timeline.critical[i] += 1
        timeline.sent(2 * (n - 1) * n, 2 * (n - 1) * num_bytes)
        if timeline.rows is not None:
            timeline.rows.mean()
        ends = now + timeline.costs.all_reduce_s(n, timeline.timed_bytes)
        for at, j in arrived:
            timeline.resume(j, at, now, ends, None)


class _Everyone:
    """Where all meet."""

    def open(self, timeline: Timeline) -> _All:
        """Nobody is there yet."""
        return _All(timeline)


_EVERYONE = _Everyone()


@dataclass(slots=True)
class Mean(Operation):
    """x_i <- 1/n sum_j x_j: all workers wait for the last one, then for an all-reduce."""

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """The meeting lets it go on."""
        timeline.meeting(_EVERYONE).arrive(i, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Wait for all, and for the mean."""
        host.mean(i)


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


class RowExecutor(Protocol):
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
