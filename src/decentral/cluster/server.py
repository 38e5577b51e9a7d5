"""A server in simulated time: `network.asynchronous.protocol.Server`.

It is on the machine of its first worker, whose own rows therefore do not travel. All others send a row to it and get
one back, through the ports of both, in the order in which they ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from decentral.cluster.clock import Use
from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from decentral.cluster.operations import Host
    from decentral.cluster.timeline import Timeline
    from decentral.network.asynchronous.protocol import Server


class Meeting:
    """The arrivals at a server, in order of time; simultaneous ones in worker order."""

    def __init__(self, place: Server, timeline: Timeline) -> None:
        self.place, self.timeline, self.home = place, timeline, place.members[0]
        self.version, self.seen, self.merged = 0, [0] * timeline.n, 0
        self.coming: list[tuple[float, int]] = []
        """A heap of arrival times and workers."""
        self.asked = [(0.0, 0.0)] * timeline.n
        """Time of each worker's request, and the seconds that its row traveled."""
        self.waiting: list[int] = []
        """The workers that have arrived, and take the model at the end of the window."""
        self.closes, self._reminded = inf, False
        self.due = [self._foretold(i, 0.0, 0) for i in range(timeline.n)]
        """The earliest next arrival of each worker, if there are windows."""

    def ask(self, i: int, now: float) -> None:
        """Let worker i send its change."""
        begins, arrives = self._send(i, self.home, now)
        self.asked[i] = now, arrives - begins
        self.due[i] = arrives
        heappush(self.coming, (arrives, i))
        self.timeline.at(arrives, self._arrive)

    def _foretold(self, i: int, now: float, first: int) -> float:
        """Return the earliest arrival of worker i, which begins its next gradients now."""
        if not self.place.grace_s or i not in self.place.members:
            return inf
        ready = self.timeline.foretold(i, now, first, self.place.steps[i])
        return ready + self.timeline.costs.message_s(i, self.home, self.timeline.bytes_per_row)

    def _send(self, i: int, j: int, now: float) -> tuple[float, float]:
        """Send a row through the ports of i and j; return when it begins, and when it has arrived."""
        if i == j:
            return now, now
        timeline, costs, num_bytes = self.timeline, self.timeline.costs, self.timeline.bytes_per_row
        hop_s, devices = costs.hop_s(i, j), costs.devices
        port_s = costs.message_s(i, j, num_bytes) - hop_s
        begins = max(now, timeline.out[i], timeline.into[j] - hop_s)
        opens = begins + hop_s
        left = max(begins + port_s, timeline.crosses("out", i, j, num_bytes, begins))
        taken = max(opens + port_s, timeline.crosses("into", j, i, num_bytes, opens))
        if devices is not None:
            left = max(left, devices[i].ends("out", begins, num_bytes))
            taken = max(taken, devices[j].ends("into", opens, num_bytes))
        taken = max(taken, left + hop_s)
        timeline.out[i], timeline.into[j] = left, taken
        timeline.leaving.append((left, num_bytes, 1))
        if timeline.ledger is not None:
            timeline.ledger += [Use(i, "out", num_bytes, begins, left), Use(j, "into", num_bytes, opens, taken)]
        return begins, taken

    def _arrive(self, now: float) -> None:
        """Apply the earliest arrival; with the quorum, open a window, unless no other worker can arrive in it."""
        timeline, place = self.timeline, self.place
        _, i = heappop(self.coming)
        timeline.ages[self.version - self.seen[i]] += 1
        if timeline.rows is not None:
            timeline.rows.call(place.deliver, i)
        self.version += 1
        self.due[i] = inf
        self.waiting.append(i)
        if len(self.waiting) == place.quorum:
            self.closes = now + place.grace_s
        if self.closes < inf:
            if not place.grace_s or min(self.due) > self.closes:
                self._close(now)
            elif not self._reminded:
                self._remind(self.closes)
        if place.parent is not None and self.version == self.merged + place.parent.every:
            self._travel(place.parent.send, self.home, 0, now, self._ask)

    def _travel(self, what: Callable[..., Any], i: int, j: int, now: float, then: Callable[[float], object]) -> None:
        """Send a row of the server of i to that of j, and call `then` when it arrives, at once if i = j."""
        if self.timeline.rows is not None:
            self.timeline.rows.put(("server", self.home), what)
        _, arrives = self._send(i, j, now)
        if i == j:
            then(now)
        else:
            self.timeline.at(arrives, then)

    def _ask(self, now: float) -> None:
        """Let the global server step along the row of this one, and answer."""
        assert self.place.parent is not None
        if self.timeline.rows is not None:
            self.timeline.rows.take(("server", self.home), self.place.parent.step)
        self._travel(self.place.parent.answer, 0, self.home, now, self._merge)

    def _merge(self, now: float) -> None:
        """Let this server take the global model."""
        assert self.place.parent is not None
        if self.timeline.rows is not None:
            self.timeline.rows.take(("server", self.home), self.place.parent.merge)
        self.merged = self.version

    def _remind(self, time: float) -> None:
        self._reminded = True
        self.timeline.remind(time, lambda now: self.timeline.at(now, self._expire))

    def _expire(self, now: float) -> None:
        """Close the window at its end if somebody comes later than foretold."""
        self._reminded = False
        if now >= self.closes:
            self._close(now)
        elif self.closes < inf:
            self._remind(self.closes)

    def _close(self, now: float) -> None:
        """Send the model to all who wait for it."""
        timeline, waiting, self.waiting, self.closes = self.timeline, self.waiting, [], inf
        for i in waiting:
            if timeline.rows is not None:
                timeline.rows.call(self.place.collect, i)
            self.seen[i] = self.version
            begins, ends = self._send(self.home, i, now)
            asked, traveled = self.asked[i]
            timeline.resume(i, asked, ends - (traveled + ends - begins), ends, None)
            self.due[i] = self._foretold(i, ends, timeline.drawn[i])


@dataclass(slots=True)
class Outer(Operation):
    """Deliver this worker's change to the server, and go on from its model."""

    server: Server

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """Wait until the meeting resumes the worker."""
        timeline.meeting(self.server, Meeting).ask(i, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Wait for the server's answer."""
        host.outer(i, self.server)
