"""The operations in the programs of asynchronous methods.

In simulated time (`begin`) an operation returns when the worker continues, or a meeting resumes it. Between processes
(`carry_out`) the worker's thread executes it and waits. The row updates are the same: functions of the method.
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
    from decentral.network.asynchronous.protocol import Server

OnRow = Callable[..., object]
"""(state, row index of the worker, its gradient [P], its step) -> updates the worker's rows."""


class Operation(ABC):
    """An operation of a worker, in simulated or real time."""

    @abstractmethod
    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Begin it for worker i; return when the worker continues, or None if `Timeline.resume` decides."""

    @abstractmethod
    def carry_out(self, host: Host, i: int) -> None:
        """Execute it for worker i, in the worker's thread; return when the worker can continue."""


@dataclass(frozen=True)
class Gradient(Operation):
    """A gradient g_i = grad F_i(x_i; xi_i) with the next sample xi_i, at the model at its beginning.

    copied    compute it at a copy, since others may change x_i meanwhile
    """

    copied: bool = False

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Complete after the worker's time for this gradient."""
        return timeline.begin_gradient(i, now, self.copied)

    def carry_out(self, host: Host, i: int) -> None:
        """Let the host compute it, once the worker may continue."""
        host.gradient(i, self.copied)


@dataclass(frozen=True)
class Local(Operation):
    """An update of a worker's own rows with its latest gradient; takes no time.

    timed    pass the simulated time, too: what(state, i, gradient [P], number of its step, seconds)
    """

    what: OnRow
    timed: bool = False

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Complete immediately."""
        if timeline.rows is not None:
            timeline.rows.local(i, self.what, timeline.drawn[i] - 1, *((now,) if self.timed else ()))
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """Execute it with the worker's row locked against averaging."""
        host.local(i, self.what, timed=self.timed)


def check_ended(i: int, gradients: int, share: float) -> None:
    """Raise RuntimeError if the ended program of worker i took fewer gradients than its share."""
    if gradients < share:
        raise RuntimeError(
            f"the program of worker {i} ended after {gradients} of {share:g} gradients: yield operations until the "
            "caller stops asking, as in `while True:` or `for t in range(team.num_steps):`"
        )


class _All:
    """The workers that have arrived at a global mean."""

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
    """The mean over all workers, x_i <- 1/n sum_j x_j: all wait for the last one, then for an all-reduce."""

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """Wait until the meeting resumes the worker."""
        timeline.meeting(Mean, _All).arrive(i, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Wait for all workers and for the mean."""
        host.mean(i)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairwise averaging of workers.

    average    (state, i, j, time in seconds): averages the rows of both, immediately
    exchange   (state, i, the sent copy of x_i [P], the received copy of x_j [P], time): does the same for the row of i
               alone, which may have changed since; for a process with one of the two workers
    prepare    (state, i, time): prepares the row of i whenever it is sent or averaged
    """

    average: Callable[..., object]
    exchange: Callable[..., object]
    prepare: Callable[..., object] | None = None


class _Strands:
    """The time until which each worker's communication strand is busy with its request."""

    def __init__(self, place: Pairs, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.own_until = [0.0] * timeline.n

    def ask(self, i: int, j: int, now: float) -> None:
        """Let i and j exchange rows once both strands are idle, then average; skip an absent j."""
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
    """Let the communication strand average with a partner and continue, after the previous averaging."""

    pairs: Pairs
    partner: int

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Complete at once if this worker's previous averaging is over."""
        strands = timeline.meeting(self.pairs, _Strands)
        until = strands.own_until[i]
        if until <= now:
            strands.ask(i, self.partner, now)
            return now
        timeline.resume(i, now, now, until, lambda later: strands.ask(i, self.partner, later))
        return None

    def carry_out(self, host: Host, i: int) -> None:
        """Let this worker's communication strand average."""
        host.average(i, self.pairs, self.partner)


_Coming = dict[int, tuple[float, int]]
"""Sender -> arrival time and version of its share that the receiver has not taken."""
_Way = tuple[int, float, _Coming, float, float]
"""Receiver and weight of a share, its slot, its time in a port, and the latency of its link."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Slots in which shares wait for their receivers.

    share      (state, i, weight) -> the tensors to send
    kept       (state, i, weight): scales the rest of the row of i; called after share
    receive    (state, i, *tensors): adds a share to the row of i
    """

    share: Callable[..., Any]
    kept: Callable[..., object]
    receive: Callable[..., object]


class _Slots:
    """The shares that wait for each receiver."""

    def __init__(self, place: Slots, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.coming: list[_Coming] = [{} for _ in range(timeline.n)]
        self.takes = [partial(self.take, i) for i in range(timeline.n)]
        self._number = count()
        self._later: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        """A heap of pending departures from and arrivals at ports."""
        self._num_bytes, costs = timeline.bytes_per_row + WEIGHT_BYTES, timeline.costs
        self._plain = costs.devices is None and not costs.shared and timeline.ledger is None
        self._in_order = costs.uniform and costs.ways == 1
        """True if shares arrive at ports in the order in which they leave others."""

    def push(self, i: int, push: Push, now: float) -> None:
        """Push shares, in parallel through the port; a share for a nonempty slot stays."""
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
        """Return when shares have left, considering devices and shared uplinks; by the link alone at `left`."""
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self._num_bytes
        if costs.devices is not None:
            left = costs.devices[i].ends("out", begins, len(leaving) * num_bytes)
        left = max(left, *(timeline.crosses("out", i, way[0], num_bytes, begins) for way in leaving))
        if timeline.ledger is not None:
            timeline.ledger += [Use(i, "out", num_bytes, begins, left)] * len(leaving)
        return left

    def _taken(self, i: int, j: int, opens: float, taken: float, arrives: float) -> float:
        """Return when worker j has received a share of i, likewise."""
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self._num_bytes
        if costs.devices is not None:
            taken = costs.devices[j].ends("into", opens, num_bytes)
        taken = max(taken, timeline.crosses("into", j, i, num_bytes, opens), arrives)
        if timeline.ledger is not None:
            timeline.ledger.append(Use(j, "into", num_bytes, opens, taken))
        return taken

    def _go_on_to(self, now: float, *, including: bool) -> None:
        """Process departures and arrivals before (or up to) now."""
        later = self._later
        while later and (later[0][0] < now or (including and later[0][0] == now)):
            time, _, what, arguments = heappop(later)
            what(time, *arguments)

    def _leave(self, now: float, i: int, leaving: list[_Way], version: int, left: float) -> None:
        """Let shares leave the port of worker i until `left`."""
        first = left if self.timeline.into is self.timeline.out else now
        for way in leaving:
            if self._in_order:
                self._come(first + way[4], i, way, version, left)
            else:
                way[2][i] = inf, version
                heappush(self._later, (first + way[4], next(self._number), self._come, (i, way, version, left)))

    def _come(self, opens: float, i: int, way: _Way, version: int, left: float) -> None:
        """Let a share of worker i arrive at its receiver's port, which receives sequentially."""
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
        """Let worker i take all arrived shares."""
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
    """Push these shares (receiver, weight) to others; the worker keeps its own weight."""

    slots: Slots
    shares: tuple[tuple[int, float], ...]
    own: float
    ways: list[_Way] | None = None
    """The route of each share, known once it is sent."""

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Complete at once: messages travel in the background."""
        timeline.meeting(self.slots, _Slots).push(i, self, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """Raise AssertionError: between processes, methods with shares run synchronously, through windows
        (`Network.push`)."""
        raise AssertionError("shares go through windows")


@dataclass(slots=True)
class Take(Operation):
    """Take all arrived shares, including those pushed at this very time."""

    slots: Slots

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Complete at once, but after all operations of others at this time."""
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
    """The process of some workers. i is a global index; all methods wait, and raise if another process is gone."""

    def gradient(self, i: int, copied: bool) -> None:
        """Compute the next gradient of worker i, after its straggler delay."""

    def local(self, i: int, what: OnRow, timed: bool) -> None:
        """Call what(state, index of the worker, its latest gradient, its step); `timed`: also seconds since start."""

    def publish(self, i: int, groups: Groups, version: int) -> None:
        """Write worker i's contribution to its send buffer."""

    def join(self, i: int, groups: Groups, version: int) -> None:
        """Publish, and receive the sum of the worker's group."""

    def mean(self, i: int) -> None:
        """Compute x_i <- 1/n sum_j x_j, once all workers request it."""

    def average(self, i: int, pairs: Pairs, partner: int) -> None:
        """Begin to average with a partner, once the previous averaging is over."""

    def outer(self, i: int, server: Server) -> None:
        """Deliver worker i's change to the server, and take its model once it answers."""


class RowExecutor(Protocol):
    """The rows of all workers, and data in flight between them. Called in the order of simulated time.

    Data in flight (a sum of a group, a share, a copy of a row) has a key, and is kept in tensors until dropped.
    """

    def begin_gradient(self, i: int, copied: bool) -> None:
        """Begin the next gradient of worker i, at its current model."""

    def end_gradient(self, i: int) -> None:
        """End the gradient of worker i."""

    def local(self, i: int, what: OnRow, *arguments: Any) -> None:
        """Call what(state, i, the worker's latest gradient, *arguments)."""

    def call(self, what: Callable[..., object], *arguments: Any) -> None:
        """Call what(state, *arguments)."""

    def mean(self) -> None:
        """Compute x_i <- 1/n sum_j x_j."""

    def keep(self, key: Hashable, i: int, emptied: bool) -> None:
        """Keep a copy of worker i's send buffer; `emptied`: zero the buffer afterwards."""

    def total(self, key: Hashable, members: Sequence[int], kept: dict[int, Hashable], emptied: bool) -> None:
        """Sum the send buffers of these workers, in order; for some, use a kept copy instead and drop it."""

    def put(self, key: Hashable, what: Callable[..., Any], *arguments: Any) -> None:
        """Store the tuple of tensors that what(state, *arguments) returns, as data in flight."""

    def take(self, key: Hashable, what: Callable[..., object], *arguments: Any, drop: bool = True) -> None:
        """Call what(state, *arguments, *the tensors with this key), and by default drop these."""

    def drop(self, key: Hashable) -> None:
        """Drop the data of this key."""
