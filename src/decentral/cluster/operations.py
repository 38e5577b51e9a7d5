"""What a worker does next: the operations that the program of an asynchronous method is made of.

In simulated time (`begin`) an operation says when the worker can go on, or a meeting lets it go on. For real
(`carry_out`) a thread of the worker does it, and waits. What is done to the worker's rows is the same: functions that
the method gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from decentral.cluster.clock import Use
from decentral.network.traffic import WEIGHT_BYTES

if TYPE_CHECKING:
    from decentral.cluster.groups import Groups
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
            f"the program of worker {i} ended after {gradients} of {share:g} gradients: yield operations until the "
            "caller stops asking, as in `while True:` or `for t in range(team.num_steps):`"
        )


class _All:
    """Who has arrived where all meet."""

    def __init__(self, place: object, timeline: Timeline) -> None:
        self.timeline = timeline
        self.arrived: list[tuple[float, int]] = []

    def arrive(self, i: int, now: float) -> None:
        self.arrived.append((now, i))
        timeline, n = self.timeline, self.timeline.n
        if len(self.arrived) < n:
            return
        arrived, self.arrived = self.arrived, []
        timeline.critical[i] += 1
        begins = max(now, *timeline.out, *timeline.into)
        chosen, seconds = timeline.costs.all_reduce(n, timeline.bytes_per_row, begins)
        messages, rows = timeline.costs.sends(chosen.value, n)
        if timeline.rows is not None:
            timeline.rows.mean()
        ends = begins + seconds
        timeline.leaving.append((ends, round(rows * timeline.bytes_per_row), round(messages)))
        timeline.busy(range(n), rows / n * timeline.bytes_per_row, begins, ends)
        for at, j in arrived:
            timeline.resume(j, at, begins, ends, None)


@dataclass(slots=True)
class Mean(Operation):
    """x_i <- 1/n sum_j x_j: all workers wait for the last one, then for an all-reduce."""

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """The meeting lets it go on."""
        timeline.meeting(Mean, _All).arrive(i, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Wait for all, and for the mean."""
        host.mean(i)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Where workers meet in pairs.

    average    (state, i, j, time in seconds) -> averages the rows of both, at once
    exchange   (state, i, what was sent of x_i [P], what came of x_j [P], time) -> the same for the row of i alone,
               which may have changed since: what a process does that has one of the two
    prepare    (state, i, time) -> what is done to the row of i first, whenever it is sent or averaged
    """

    average: Callable[..., object]
    exchange: Callable[..., object]
    prepare: Callable[..., object] | None = None


class _Strands:
    """Until when the communication strand of each worker is busy with what it asked for."""

    def __init__(self, place: Pairs, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.own_until = [0.0] * timeline.n

    def ask(self, i: int, j: int, now: float) -> None:
        """i and j exchange rows once both strands are idle, and then take the mean; j is not asked if it is absent."""
        if j in self.timeline.away:
            return
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self.timeline.bytes_per_row
        busy = timeline.out  # which the port in is as long
        begins = max(now, busy[i], busy[j])
        ends = begins + costs.pair_s(i, j, num_bytes, begins)
        for here, there in ((i, j), (j, i)) if costs.shared else ():
            gone = max(timeline.crosses(way, here, there, num_bytes, begins) for way in ("out", "into"))
            ends = max(ends, gone + costs.hop_s(here, there))
        busy[i] = busy[j] = self.own_until[i] = ends
        if timeline.ledger is not None:
            timeline.busy((i, j), num_bytes, begins, ends)
        timeline.leaving.append((ends, 2 * num_bytes, 2))
        timeline.at(ends, partial(self._average, i, j))

    def _average(self, i: int, j: int, now: float) -> None:
        if self.timeline.rows is not None:
            self.timeline.rows.call(self.place.average, i, j, now)


@dataclass(slots=True)
class Average(Operation):
    """Let the communication strand average with a partner, meanwhile go on; but wait for the averaging before."""

    pairs: Pairs
    partner: int

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Over at once if the averaging that this worker asked for before is over."""
        strands = timeline.meeting(self.pairs, _Strands)
        until = strands.own_until[i]
        if until <= now:
            strands.ask(i, self.partner, now)
            return now
        timeline.resume(i, now, now, until, lambda later: strands.ask(i, self.partner, later))
        return None

    def carry_out(self, host: Host, i: int) -> None:
        """By the communication strand of this worker."""
        host.average(i, self.pairs, self.partner)


_Coming = dict[int, tuple[float, int]]
"""The senders whose share a receiver has not taken, with the time when it arrives and its version."""
_Way = tuple[int, float, _Coming, float, float]
"""Receiver and weight of a share, where it waits, how long it is in a port, and the latency of its link."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Where shares wait for their receivers.

    share      (state, i, weight) -> tensors: what travels
    kept       (state, i, weight): what is left of the row of i; both before anything is scaled
    receive    (state, i, *tensors): adds a share to the row of i
    """

    share: Callable[..., Any]
    kept: Callable[..., object]
    receive: Callable[..., object]


class _Slots:
    """What waits for each receiver."""

    def __init__(self, place: Slots, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.coming: list[_Coming] = [{} for _ in range(timeline.n)]
        self.takes = [partial(self.take, i) for i in range(timeline.n)]
        self._number = count()
        self._later: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        """What leaves a port, or comes to one, at a time that has not been looked at yet: a heap."""
        self._num_bytes, costs = timeline.bytes_per_row + WEIGHT_BYTES, timeline.costs
        self._plain = costs.devices is None and not costs.shared and timeline.ledger is None
        self._in_order = costs.uniform and costs.ways == 1
        """Whether shares come to ports in the order in which they leave others."""

    def push(self, i: int, push: Push, now: float) -> None:
        """Leave shares, side by side through the port; a share for a slot that is not empty stays."""
        timeline, own, ways = self.timeline, push.own, push.ways
        if self._later and self._later[0][0] < now:
            self._go_on_to(now, including=False)
        rows, version, num_bytes = timeline.rows, timeline.drawn[i] - 1, self._num_bytes
        if ways is None:
            ways, costs = [], timeline.costs
            push.ways = ways
            for j, weight in push.shares:
                hop_s = costs.hop_s(i, j)
                ways.append((j, weight, self.coming[j], costs.message_s(i, j, num_bytes) - hop_s, hop_s))
        leaving = [way for way in ways if i not in way[2]]
        for way in ways if len(leaving) < len(ways) else ():
            if i in way[2]:
                own += way[1]
        if leaving:
            begins, sent = timeline.out[i], len(leaving)
            if begins < now:
                begins = now
            left = begins + (leaving[0][3] if sent == 1 else sum(way[3] for way in leaving))
            if not self._plain:
                left = self._left(i, leaving, begins, left)
            timeline.out[i] = left
            timeline.leaving.append((left, sent * num_bytes, sent))
            if rows is not None:
                for j, weight, *_ in leaving:
                    rows.put(("share", i, j), self.place.share, i, weight)
            if begins > now:
                for way in leaving:
                    way[2][i] = inf, version
                heappush(self._later, (begins, next(self._number), self._leave, (i, leaving, version, left)))
            else:
                self._leave(now, i, leaving, version, left)
        if rows is not None and own != 1:
            rows.call(self.place.kept, i, own)

    def _left(self, i: int, leaving: list[_Way], begins: float, left: float) -> float:
        """When shares have left, by machines of their own and by what machines share; by the link at `left`."""
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self._num_bytes
        if costs.devices is not None:
            left = costs.devices[i].ends("out", begins, len(leaving) * num_bytes)
        left = max(left, *(timeline.crosses("out", i, way[0], num_bytes, begins) for way in leaving))
        if timeline.ledger is not None:
            timeline.ledger += [Use(i, "out", num_bytes, begins, left)] * len(leaving)
        return left

    def _taken(self, i: int, j: int, opens: float, taken: float, arrives: float) -> float:
        """The same for when worker j has taken in a share of i."""
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self._num_bytes
        if costs.devices is not None:
            taken = costs.devices[j].ends("into", opens, num_bytes)
        taken = max(taken, timeline.crosses("into", j, i, num_bytes, opens), arrives)
        if timeline.ledger is not None:
            timeline.ledger.append(Use(j, "into", num_bytes, opens, taken))
        return taken

    def _go_on_to(self, now: float, *, including: bool) -> None:
        """What has left ports, and come to others, before now, or by now."""
        later = self._later
        while later and (later[0][0] < now or (including and later[0][0] == now)):
            time, _, what, arguments = heappop(later)
            what(time, *arguments)

    def _leave(self, now: float, i: int, leaving: list[_Way], version: int, left: float) -> None:
        """Shares leave the port of worker i until `left`."""
        first = left if self.timeline.into is self.timeline.out else now
        for way in leaving:
            if self._in_order:
                self._come(first + way[4], i, way, version, left)
            else:
                way[2][i] = inf, version
                heappush(self._later, (first + way[4], next(self._number), self._come, (i, way, version, left)))

    def _come(self, opens: float, i: int, way: _Way, version: int, left: float) -> None:
        """A share of worker i comes to the port of its receiver, which takes in one after the other."""
        j, _, slots, port_s, hop_s = way
        into, arrives = self.timeline.into, left + hop_s
        if opens < into[j]:
            opens = into[j]
        taken = opens + port_s
        if not self._plain:
            taken = self._taken(i, j, opens, taken, arrives)
        if arrives < taken:
            arrives = taken
        into[j] = arrives
        slots[i] = arrives, version

    def take(self, i: int, now: float) -> None:
        """Worker i takes all that has arrived."""
        timeline, coming = self.timeline, self.coming[i]
        if not coming:
            return
        if self._later and self._later[0][0] <= now:
            self._go_on_to(now, including=True)
        ages, rows, newest = timeline.ages, timeline.rows, timeline.drawn[i] - 1
        for j in sorted(coming):
            arrives, version = coming[j]
            if arrives > now:
                continue
            del coming[j]
            age = newest - version if newest > version else 0
            ages[age] = ages.get(age, 0) + 1
            if rows is not None:
                rows.take(("share", j, i), self.place.receive, i)


@dataclass(slots=True)
class Push(Operation):
    """Leave these shares (receiver, weight) with others; what is not given away stays: own weight."""

    slots: Slots
    shares: tuple[tuple[int, float], ...]
    own: float
    ways: list[_Way] | None = None
    """Of each share, known once it has been sent."""

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once: messages travel by themselves."""
        timeline.meeting(self.slots, _Slots).push(i, self, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """Between processes, methods with shares go in rounds, through windows (`Network.push`)."""
        raise AssertionError("shares go through windows")


@dataclass(slots=True)
class Take(Operation):
    """Take all shares that have arrived, also those that others push at this very time."""

    slots: Slots

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Over at once, but after all that others do now."""
        slots = timeline.meeting(self.slots, _Slots)
        if timeline.nobody_else_at(now):
            slots.take(i, now)
            return now
        timeline.defer(i, slots.takes[i])
        return None

    def carry_out(self, host: Host, i: int) -> None:
        """See `Push.carry_out`."""
        raise AssertionError("shares go through windows")


class Host(Protocol):
    """The process of some workers. i is a global number; all methods wait, and raise if another process is gone."""

    def gradient(self, i: int, copied: bool) -> None:
        """The next gradient of worker i, after the delay that it straggles by."""

    def local(self, i: int, what: OnRow, timed: bool) -> None:
        """what(state, place of the worker, its newest gradient, its step); `timed`: and the seconds since the start."""

    def publish(self, i: int, groups: Groups, version: int) -> None:
        """Leave what worker i contributes in its send buffer."""

    def join(self, i: int, groups: Groups, version: int) -> None:
        """Publish, and receive the sum of the worker's group."""

    def mean(self, i: int) -> None:
        """x_i <- 1/n sum_j x_j, once all workers ask for it."""

    def average(self, i: int, pairs: Pairs, partner: int) -> None:
        """Begin to average with a partner, once the averaging before is over."""


class RowExecutor(Protocol):
    """The rows of all workers, and what is on its way between them. Called in the order of simulated time.

    What is on its way (a sum of a group, a share, a copy of a row) has a key, and lies in tensors until it is dropped.
    """

    def begin_gradient(self, i: int, copied: bool) -> None:
        """From now on worker i computes its next gradient, at its model as it is now."""

    def end_gradient(self, i: int) -> None:
        """Worker i has its gradient."""

    def local(self, i: int, what: OnRow, *arguments: Any) -> None:
        """what(state, i, the worker's newest gradient, *arguments)."""

    def call(self, what: Callable[..., object], *arguments: Any) -> None:
        """what(state, *arguments)."""

    def mean(self) -> None:
        """x_i <- 1/n sum_j x_j."""

    def keep(self, key: Hashable, i: int, emptied: bool) -> None:
        """A copy of worker i's send buffer; `emptied`: there are zeros in the buffer afterwards."""

    def total(self, key: Hashable, members: Sequence[int], kept: dict[int, Hashable], emptied: bool) -> None:
        """The sum of the send buffers of these workers, in their order; of some of them a kept copy is taken instead,
        and dropped."""

    def put(self, key: Hashable, what: Callable[..., Any], *arguments: Any) -> None:
        """What what(state, *arguments) gives, a tuple of tensors, is on its way."""

    def take(self, key: Hashable, what: Callable[..., object], *arguments: Any, drop: bool = True) -> None:
        """what(state, *arguments, *the tensors with this key); they stay unless dropped."""

    def drop(self, key: Hashable) -> None:
        """Nobody will ask for this any more."""
