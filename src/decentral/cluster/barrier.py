"""All workers meet: a blocking all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from decentral.cluster.host import Host
    from decentral.cluster.timeline import Timeline


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
