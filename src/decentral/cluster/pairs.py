"""Two workers average their models at any time: the communication strand of AD-PSGD, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from decentral.cluster.operations import Host
    from decentral.cluster.timeline import Timeline


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

    def open(self, timeline: Timeline) -> _Strands:
        """All strands are idle."""
        return _Strands(self, timeline)


class _Strands:
    """Until when the communication strand of each worker is busy."""

    def __init__(self, place: Pairs, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.busy_until = [0.0] * timeline.n
        self.own_until = [0.0] * timeline.n

    def ask(self, i: int, j: int, now: float) -> None:
        """i and j exchange rows once both strands are idle, and then take the mean."""
        timeline, busy = self.timeline, self.busy_until
        ends = max(now, busy[i], busy[j]) + timeline.costs.pair_s(i, j, timeline.timed_bytes)
        busy[i] = busy[j] = self.own_until[i] = ends
        timeline.sent(2, 2 * timeline.bytes_per_row)
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
        strands = timeline.meeting(self.pairs)
        until = strands.own_until[i]
        if until <= now:
            strands.ask(i, self.partner, now)
            return now
        timeline.resume(i, now, now, until, lambda later: strands.ask(i, self.partner, later))
        return None

    def carry_out(self, host: Host, i: int) -> None:
        """By the communication strand of this worker."""
        host.average(i, self.pairs, self.partner)
