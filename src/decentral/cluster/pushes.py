"""A worker leaves shares of its row with others, and takes what has come by then, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from decentral.cluster.host import Host
    from decentral.cluster.timeline import Timeline


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

    def open(self, timeline: Timeline) -> _Slots:
        """All slots are empty."""
        return _Slots(self, timeline)


class _Slots:
    """For each receiver the senders whose share it has not taken, with the time when it arrives and its version."""

    def __init__(self, place: Slots, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.coming: list[dict[int, tuple[float, int]]] = [{} for _ in range(timeline.n)]
        self.takes = [partial(self._take, i) for i in range(timeline.n)]

    def push(self, i: int, shares: Sequence[tuple[int, float]], own: float, now: float) -> None:
        """Leave shares, one after the other through one port; a share for a slot that is not empty stays."""
        timeline, costs = self.timeline, self.timeline.costs
        rows, version, leaves = timeline.rows, timeline.drawn[i] - 1, now
        timeline.sent(len(shares), len(shares) * (timeline.bytes_per_row + 8))
        for j, weight in shares:
            slots = self.coming[j]
            if i in slots:
                own += weight
                continue
            arrives = leaves + costs.message_s(i, j, timeline.timed_bytes)
            leaves = arrives - costs.hop_s(i, j)
            slots[i] = arrives, version
            if rows is not None:
                rows.put(("share", i, j), self.place.share, i, weight)
        if rows is not None and own != 1:
            rows.call(self.place.kept, i, own)

    def _take(self, i: int, now: float) -> None:
        """Worker i takes all that has arrived."""
        timeline, coming = self.timeline, self.coming[i]
        for j in sorted(coming):
            arrives, version = coming[j]
            if arrives > now:
                continue
            del coming[j]
            timeline.aged(max(0, timeline.drawn[i] - 1 - version))
            if timeline.rows is not None:
                timeline.rows.take(("share", j, i), self.place.receive, i)


@dataclass(slots=True)
class Push(Operation):
    """Leave these shares (receiver, weight) with others; what is not given away stays: own weight."""

    slots: Slots
    shares: tuple[tuple[int, float], ...]
    own: float

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once: messages travel by themselves."""
        timeline.meeting(self.slots).push(i, self.shares, self.own, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """Between processes, methods with shares go in rounds, through windows (`Network.push`)."""
        raise AssertionError("shares go through windows")


@dataclass(slots=True)
class Take(Operation):
    """Take all shares that have arrived, also those that others push at this very time."""

    slots: Slots

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """Over at once, but after all that others do now."""
        timeline.defer(i, timeline.meeting(self.slots).takes[i])

    def carry_out(self, host: Host, i: int) -> None:
        """See `Push.carry_out`."""
        raise AssertionError("shares go through windows")
