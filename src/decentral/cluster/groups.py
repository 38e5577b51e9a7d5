"""Workers meet in groups without waiting for who is late: wait-avoiding group all-reduce, in simulated time.

Every version is carried out by all groups, as soon as the first of all workers asks for it: who has not come by then
takes part with what lies in its send buffer (Li et al., 2021, section 3). Each worker's communication engine carries
out versions one after the other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.cluster.operations import Operation

if TYPE_CHECKING:
    from decentral.cluster.host import Host
    from decentral.cluster.operations import OnRow
    from decentral.cluster.timeline import Timeline
    from decentral.topology.groups import GroupSchedule

Receive = Callable[..., object]
"""(state, place of the worker, number of its step, whether its contribution is fresh, S, sum of the group [P])."""


def never(version: int) -> bool:
    """Of no version."""
    return False


@dataclass(frozen=True, eq=False)
class Groups:
    """Where workers meet in groups.

    schedule      who is in a group in which version
    publish       puts what a worker contributes into its send buffer, the rows `send` of the state
    receive       what a worker does with the sum of its group
    synchronizes  of a version: whether it is none, since all workers meet in it
    waits         a group waits for all of its members: everybody contributes to the version that it asked for
    empties       what has been contributed is taken out of the buffer: late contributions add up there (gradients)
    depth         the sums of how many versions a worker keeps, for when it is late; then it takes the oldest of them
    activator     version -> the one worker who sets it off; None: whoever is first
    """

    schedule: GroupSchedule
    publish: OnRow
    receive: Receive
    synchronizes: Callable[[int], bool] = never
    waits: bool = False
    empties: bool = False
    depth: int = 2
    activator: Callable[[int], int] | None = None

    def open(self, timeline: Timeline) -> Meeting:
        """No version has been set off."""
        return Meeting(self, timeline)


@dataclass(slots=True)
class Result:
    """The sum of a group in a version, when it was computed, and the version of what each member contributed."""

    version: int
    begins: float
    ends: float
    contributed: dict[int, int]
    key: Hashable


@dataclass(slots=True, eq=False)
class _Version:
    """A version that some groups have not finished yet."""

    number: int
    groups: list[list[int]]
    group_of: list[int]
    members: list[np.ndarray]
    """The groups, to index with."""
    arrived: np.ndarray
    """When each worker has come, float64 [n]; inf: not yet."""
    told: np.ndarray
    """When it is told that the version has begun, float64 [n]; inf: never."""
    absent: list[int]
    """How many members of each group have not come."""
    missing: int
    begun: bool = False
    kept: dict[int, tuple[int, Hashable]] = field(default_factory=dict)
    """Of workers that have overwritten their buffers since they took part: the version, and where the copy is."""
    due: dict[int, float] = field(default_factory=dict)
    """When each group that is not finished begins, as far as is known."""


class Meeting:
    """The state of all groups at a simulated time."""

    def __init__(self, place: Groups, timeline: Timeline) -> None:
        n = timeline.n
        self.place, self.timeline = place, timeline
        self.published = [-1] * n
        self.engine_free = np.zeros(n)
        self.results: list[deque[Result]] = [deque() for _ in range(n)]
        self.open: dict[int, _Version] = {}
        self.pending: list[deque[_Version]] = [deque() for _ in range(n)]
        self.users: dict[Hashable, int] = {}
        self.postponed: list[tuple[_Version, int]] = []
        self.exchange_s = timeline.costs.all_reduce_s(place.schedule.group_size, timeline.timed_bytes)
        self.copy_s = timeline.costs.copy_s(timeline.timed_bytes)
        self._workers = np.arange(n)
        self._ones = np.array([i.bit_count() for i in range(1 << (n - 1).bit_length())])

    def publish(self, i: int, version: int, now: float) -> None:
        """Worker i overwrites its send buffer; versions in which it took part before keep what was there."""
        rows = self.timeline.rows
        if self.pending[i] and not self.place.waits:
            one = self.pending[i][0]  # the engine has not begun with those behind it
            if one.begun and i not in one.kept and self._start(one, i) < now:
                key = ("kept", one.number, i)
                one.kept[i] = self.published[i], key
                if rows is not None:
                    rows.keep(key, i, self.place.empties)
        if rows is not None:
            rows.local(i, self.place.publish, version)
        self.published[i] = version

    def join(self, i: int, version: int, now: float) -> None:
        """Worker i wants the sum of its group in this version, and waits for nothing else."""
        self.publish(i, version, now)
        known = self.results[i]
        if known and known[-1].version >= version:
            for result in known:
                if result.version >= version:
                    self._deliver(i, version, now, result)
                    return
        one = self.open.get(version) or self._opened(version)
        group = one.group_of[i]
        foretold = self._start(one, i) if one.begun and not self.place.waits else now
        one.arrived[i] = now
        if self.place.waits:
            one.absent[group] -= 1
            if not one.absent[group]:
                one.begun = True
                self._finish(one, group, now)
        elif not one.begun:
            if self.place.activator is None or self.place.activator(version) == i:
                self._begin(one, i, now)
        elif foretold > now and foretold >= one.due[group]:  # it comes before word reaches it, which the group awaits
            self._schedule(one, group)

    def _opened(self, version: int) -> _Version:
        groups, group_of = self.place.schedule.groups(version)
        members, absent = [np.array(group) for group in groups], [len(group) for group in groups]
        arrived, told = np.full((2, self.timeline.n), inf)
        one = _Version(version, groups, group_of, members, arrived, told, absent, missing=len(groups))
        self.open[version] = one
        for pending in self.pending:
            pending.append(one)
        return one

    def _begin(self, one: _Version, i: int, now: float) -> None:
        """Worker i sets a version off: word of it is passed on along a binomial tree."""
        timeline, workers = self.timeline, self._workers
        one.begun = True
        one.told = now + timeline.costs.latency_s(np.array(i), workers) * self._ones[i ^ workers]
        timeline.sent(timeline.n - 1, 8 * (timeline.n - 1))
        for group in range(len(one.groups)):
            self._schedule(one, group)

    def _schedule(self, one: _Version, group: int) -> None:
        """Let a group begin once all of its members take part."""
        one.due[group] = float(self._starts(one, group).max())
        self.timeline.at(one.due[group], partial(self._finish, one, group))

    def _start(self, one: _Version, j: int) -> float:
        """When worker j takes part: it comes, or it is told; but its engine has to have finished what was before."""
        return max(min(one.arrived[j], one.told[j]), self.engine_free[j])  # type: ignore[no-any-return]

    def _starts(self, one: _Version, group: int) -> np.ndarray:
        """The same for all members of a group, in their order."""
        members = one.members[group]
        return np.maximum(np.minimum(one.arrived[members], one.told[members]), self.engine_free[members])

    def _finish(self, one: _Version, group: int, now: float) -> None:
        """All members of a group have taken part."""
        if group not in one.due and not self.place.waits:
            return  # it began sooner
        members, timeline, pending = one.groups[group], self.timeline, self.pending
        if any([pending[j][0] is not one for j in members]):
            self.postponed.append((one, group))
            return
        starts = self._starts(one, group)
        last = int(starts.argmax())
        begins = float(starts[last])
        if begins > now:  # an engine was still busy
            self._schedule(one, group)
            return
        one.due.pop(group, None)
        timeline.critical[members[last]] += 1
        self._sum(one, group, begins)
        one.missing -= 1
        if not one.missing:
            del self.open[one.number]
        postponed, self.postponed = self.postponed, []
        for later, its_group in postponed:
            timeline.at(now, partial(self._finish, later, its_group))

    def _sum(self, one: _Version, group: int, begins: float) -> None:
        """The members of a group add up what they contribute; those who have come go on with it."""
        members, timeline, kept, published = one.groups[group], self.timeline, one.kept, self.published
        ends, key = begins + self.exchange_s, (one.number, group)
        if timeline.rows is not None:
            copies = {j: kept[j][1] for j in members if j in kept}
            timeline.rows.total(key, members, copies, self.place.empties)
        rounds = (len(members) - 1).bit_length()
        timeline.sent(len(members) * rounds, len(members) * rounds * timeline.bytes_per_row)
        contributed = {j: kept[j][0] if j in kept else published[j] for j in members}
        for version, times in Counter(contributed.values()).items():
            timeline.aged(one.number - version, times)
        result = Result(one.number, begins, ends, contributed, key)
        self.engine_free[one.members[group]] = ends
        if timeline.rows is not None:
            self.users[key] = len(members)
        for j, arrived in zip(members, one.arrived[one.members[group]].tolist(), strict=True):
            known = self.results[j]
            known.append(result)
            if len(known) > self.place.depth:
                oldest = known.popleft()
                if timeline.rows is not None:
                    self._drop(oldest.key)
            self.pending[j].popleft()
            if arrived < inf:
                self._deliver(j, one.number, arrived, result)

    def _drop(self, key: Hashable) -> None:
        self.users[key] -= 1
        if not self.users[key]:
            del self.users[key]
            rows: Any = self.timeline.rows
            rows.drop(key)

    def _deliver(self, i: int, version: int, arrived: float, result: Result) -> None:
        """Worker i, which wants the sum of this version, goes on with this one."""
        timeline = self.timeline
        ends = (arrived if arrived > result.ends else result.ends) + self.copy_s
        begins = arrived if arrived > result.begins else result.begins
        then: Callable[[float], object] | None = None
        if timeline.rows is not None:
            self.users[result.key] += 1
            then = partial(self._receive, i, version, result)
        timeline.resume(i, arrived, begins, ends, then)

    def _receive(self, i: int, version: int, result: Result, now: float) -> None:
        rows: Any = self.timeline.rows
        fresh, size = result.contributed[i] == version, self.place.schedule.group_size
        rows.take(result.key, self.place.receive, i, version, fresh, size, drop=False)
        self._drop(result.key)


@dataclass(slots=True)
class Publish(Operation):
    """Put what this worker contributes into its send buffer, as this version, and go on."""

    groups: Groups
    version: int

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once."""
        timeline.meeting(self.groups).publish(i, self.version, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """In the buffer of this worker's thread."""
        host.publish(i, self.groups, self.version)


@dataclass(slots=True)
class Join(Operation):
    """Publish, and take the sum of this worker's group in this version."""

    groups: Groups
    version: int

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """The meeting lets it go on."""
        timeline.meeting(self.groups).join(i, self.version, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Call the others if nobody has, and wait for the sum."""
        host.join(i, self.groups, self.version)
