"""A worker leaves shares of its row with others, and takes what has come by then, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from decentral.cluster.operations import Host
    from decentral.cluster.timeline import Timeline

_Coming = dict[int, tuple[float, int]]
"""The senders whose share a receiver has not taken, with the time when it arrives and its version."""
_Way = tuple[int, float, _Coming, float, float]
"""Receiver and weight of a share, where it waits, how many seconds it is on its way, and the latency of that."""


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
    """What waits for each receiver."""

    def __init__(self, place: Slots, timeline: Timeline) -> None:
        self.place, self.timeline = place, timeline
        self.coming: list[_Coming] = [{} for _ in range(timeline.n)]
        self.takes = [partial(self.take, i) for i in range(timeline.n)]

    def push(self, i: int, push: Push, now: float) -> None:
        """Leave shares, one after the other through one port; a share for a slot that is not empty stays."""
        timeline, own, ways = self.timeline, push.own, push.ways
        rows, version, leaves = timeline.rows, timeline.drawn[i] - 1, now
        if ways is None:
            ways = push.ways = [self._way(i, j, weight) for j, weight in push.shares]
        timeline.messages_sent += len(ways)
        timeline.bytes_sent += len(ways) * (timeline.bytes_per_row + 8)
        for j, weight, slots, message_s, hop_s in ways:
            if i in slots:
                own += weight
                continue
            arrives = leaves + message_s
            leaves = arrives - hop_s
            slots[i] = arrives, version
            if rows is not None:
                rows.put(("share", i, j), self.place.share, i, weight)
        if rows is not None and own != 1:
            rows.call(self.place.kept, i, own)

    def _way(self, i: int, j: int, weight: float) -> _Way:
        costs = self.timeline.costs
        return j, weight, self.coming[j], costs.message_s(i, j, self.timeline.timed_bytes), costs.hop_s(i, j)

    def take(self, i: int, now: float) -> None:
        """Worker i takes all that has arrived."""
        timeline, coming = self.timeline, self.coming[i]
        if not coming:
            return
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
        timeline.meeting(self.slots).push(i, self, now)
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
        slots = timeline.meeting(self.slots)
        if timeline.nobody_else_at(now):
            slots.take(i, now)
            return now
        timeline.defer(i, slots.takes[i])
        return None

    def carry_out(self, host: Host, i: int) -> None:
        """See `Push.carry_out`."""
        raise AssertionError("shares go through windows")
