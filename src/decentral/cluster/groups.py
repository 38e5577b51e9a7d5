"""Wait-avoiding group all-reduce in simulated time.

The rules are those of `network.asynchronous.protocol`. Each worker's communication engine runs versions in order. Sums
use recursive doubling, the papers' butterfly, regardless of `cluster.links.collective`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.cluster.links import RECURSIVE_DOUBLING
from decentral.cluster.operations import Operation
from decentral.network.asynchronous.protocol import GroupRules, Member, is_fresh

if TYPE_CHECKING:
    from decentral.cluster.operations import Host, OnRow
    from decentral.cluster.timeline import Timeline

_REMEMBERED = 1024  # workers: for more, a number per pair takes too much memory
Receive = Callable[..., object]
"""(state, index of the worker, its step, whether its contribution is fresh, S, sum of the group [P])."""


@dataclass(frozen=True, eq=False)
class Groups(GroupRules):
    """The groups of workers, and what they do with their rows.

    publish       writes a worker's contribution to its send buffer, the rows `send` of the state
    receive       processes the sum of a worker's group
    """

    publish: OnRow
    receive: Receive


@dataclass(slots=True)
class Result:
    """The sum of a group in a version, its time, and the version of each member's contribution."""

    version: int
    begins: float
    ends: float
    contributed: dict[int, int]
    key: Hashable


@dataclass(slots=True, eq=False)
class _Version:
    """A version that some groups have not begun."""

    number: int
    place: int
    """Number of versions opened before: every engine runs them in this order."""
    groups: list[list[int]]
    group_of: list[int]
    arrived: list[float]
    """Arrival time of each worker; inf: not yet."""
    takes_part: list[float]
    """The earlier of each worker's arrival and its activation; inf: unknown."""
    absent: list[int]
    """Number of missing members of each group."""
    missing: int
    begun: bool = False
    kept: dict[int, tuple[int, Hashable]] = field(default_factory=dict)
    """For workers that overwrote their buffer after contributing: the version, and the key of the copy."""
    due: dict[int, float] = field(default_factory=dict)
    """The known start time of each group that has not begun."""


class Meeting:
    """The state of all groups at a simulated time. All workers request the same versions, in ascending order."""

    def __init__(self, place: Groups, timeline: Timeline) -> None:
        n = timeline.n
        self.place, self.timeline, self.waits = place, timeline, place.waits
        self.members: list[Member[Result]] = [Member(place.depth) for _ in range(n)]
        self.engine_free = timeline.out  # an engine uses the ports exclusively
        self.carried_out = [0] * n
        """Number of versions that each worker's engine has begun."""
        self.underway: list[Result | None] = [None] * n
        """The current or last sum of each worker's engine that the worker has not requested."""
        self.versions: dict[int, _Version] = {}
        self.in_order: dict[int, _Version] = {}
        """The same by opening order."""
        self.opened, self.newest = 0, -1
        """Number of opened versions, and the last one."""
        self.users: dict[Hashable, int] = {}
        """Number of workers that may still take a sum, if there are rows."""
        self.postponed: list[tuple[_Version, int]] = []
        self.exchange_s = timeline.costs.collective_s(
            RECURSIVE_DOUBLING, place.schedule.group_size, timeline.bytes_per_row
        )
        self.copy_s = timeline.costs.copy_s(timeline.bytes_per_row)
        self._word: dict[int, np.ndarray] = {}
        """Activation latency to each worker, for some activators."""
        self._workers = np.arange(n)
        self._ones = np.array([i.bit_count() for i in range(1 << (n - 1).bit_length())])

    def publish(self, i: int, version: int, now: float) -> None:
        """Let worker i overwrite its send buffer; versions it already contributed to keep the old content."""
        rows = self.timeline.rows  # the engine has not begun versions after the next one
        one = None if self.waits else self.in_order.get(self.carried_out[i])
        if (
            one is not None
            and one.begun
            and one.takes_part[i] < now
            and i not in one.kept
            and self._start(one, i) < now
        ):
            key = ("kept", one.number, i)
            one.kept[i] = self.members[i].published, key
            if rows is not None:
                rows.keep(key, i, self.place.empties)
        if rows is not None:
            rows.local(i, self.place.publish, version)
        self.members[i].published = version

    def join(self, i: int, version: int, now: float) -> None:
        """Let worker i request the sum of its group in this version, and wait for it only."""
        self.publish(i, version, now)
        one = self._opened(version) if version > self.newest else self.versions.get(version)
        if one is None or one.place < self.carried_out[i]:
            self._come_late(i, version, now)
            return
        group, begun, waits = one.group_of[i], one.begun, self.waits
        foretold = self._start(one, i) if begun and not waits else now
        one.arrived[i] = now
        if now < one.takes_part[i]:
            one.takes_part[i] = now
        if waits:
            one.absent[group] -= 1
            if not one.absent[group]:
                one.begun = True
                self._finish(one, group, now)
        elif not begun:
            if self.place.may_set_off(i, version):
                self._begin(one, i, now)
        elif foretold > now and foretold >= one.due[group]:  # it arrives before the activation that the group awaits
            self._schedule(one, group)

    def _come_late(self, i: int, version: int, now: float) -> None:
        """Handle a request of worker i for a version that its engine has already begun."""
        result = self.underway[i]
        if result is not None and result.version == version:
            self.underway[i] = None
        elif self.timeline.rows is None:  # the choice of the sum does not affect time
            self.timeline.resume(i, now, now, now + self.copy_s, None)
            return
        else:
            if result is not None and result.ends <= now:
                self._end(i, result)
            result = self.members[i].take(version)
        self._deliver(i, version, now, result)
        if result.version == version and self.timeline.rows is not None:
            self._drop(result)

    def _end(self, i: int, result: Result) -> None:
        """End the current exchange of worker i's engine."""
        self.underway[i] = None
        given_up = self.members[i].finish(result.version, result)
        if given_up is not None:
            self._drop(given_up)

    def _opened(self, version: int) -> _Version:
        groups, group_of = self.place.schedule.groups(version)
        never, absent = [inf] * self.timeline.n, [len(group) for group in groups]
        one = _Version(version, self.opened, groups, group_of, never, never.copy(), absent, missing=len(groups))
        self.versions[version] = self.in_order[self.opened] = one
        self.opened, self.newest = self.opened + 1, version
        return one

    def _begin(self, one: _Version, i: int, now: float) -> None:
        """Let worker i activate a version along a binomial tree."""
        timeline, workers = self.timeline, self._workers
        one.begun = True
        word = self._word.get(i)
        if word is None:
            word = self._latency_s(i)
            if len(workers) <= _REMEMBERED:
                self._word[i] = word
        one.takes_part = list(map(min, one.arrived, (now + word).tolist()))
        timeline.leaving.append((now, 8 * (timeline.n - 1), timeline.n - 1))
        for group in range(len(one.groups)):
            self._schedule(one, group)

    def _latency_s(self, i: int) -> np.ndarray:
        """Return the activation latency from worker i to each [n]: the tree's path to j passes workers whose number
        differs from i in lower bits of i ^ j only."""
        apart = i ^ self._workers
        if len(apart) == 1:
            return np.zeros(1)
        bits = [1 << b for b in range(int(apart.max()).bit_length())]
        stops = [i ^ (apart & (bit - 1)) for bit in bits] + [self._workers]
        hops = [self.timeline.costs.of(*ends)[0] for ends in pairwise(stops)]
        taken = np.concatenate([hop[apart & bit > 0] for hop, bit in zip(hops, bits, strict=True)])
        if (taken == taken[0]).all():
            return np.asarray(taken[0] * self._ones[apart])
        return np.asarray(np.sum(hops, axis=0))

    def _schedule(self, one: _Version, group: int) -> None:
        """Schedule a group to begin once all its members contribute."""
        one.due[group] = max(self._starts(one, group))
        self.timeline.at(one.due[group], partial(self._finish, one, group))

    def _start(self, one: _Version, j: int) -> float:
        """Return when worker j contributes, after its engine has finished earlier versions."""
        starts, free = one.takes_part[j], self.engine_free[j]
        return starts if starts > free else free

    def _starts(self, one: _Version, group: int) -> list[float]:
        """Return the same for all members of a group, in order."""
        starts, free = one.takes_part, self.engine_free
        return [starts[j] if starts[j] > free[j] else free[j] for j in one.groups[group]]

    def _finish(self, one: _Version, group: int, now: float) -> None:
        """Complete a group whose members have all contributed."""
        if group not in one.due and not self.waits:
            return  # it began earlier
        members, carried_out, place = one.groups[group], self.carried_out, one.place
        if any([carried_out[j] != place for j in members]):
            self.postponed.append((one, group))
            return
        starts = self._starts(one, group)
        begins = max(starts)
        if begins > now:  # an engine was still busy
            self._schedule(one, group)
            return
        one.due.pop(group, None)
        self.timeline.critical[members[starts.index(begins)]] += 1
        self._sum(one, group, begins)
        one.missing -= 1
        if not one.missing:  # no worker is behind it
            del self.versions[one.number], self.in_order[place]
        postponed, self.postponed = self.postponed, []
        for later, its_group in postponed:
            self.timeline.at(now, partial(self._finish, later, its_group))

    def _sum(self, one: _Version, group: int, begins: float) -> None:
        """Sum the contributions of a group; members that have arrived continue with the sum."""
        members, timeline, kept = one.groups[group], self.timeline, one.kept
        seconds = self.exchange_s
        if timeline.costs.devices is not None:
            seconds = timeline.costs.collective_s(
                RECURSIVE_DOUBLING, len(members), timeline.bytes_per_row, begins, members
            )
        ends, key = begins + seconds, (one.number, group)
        has_rows = timeline.rows is not None
        if timeline.rows is not None:
            copies = {j: kept[j][1] for j in members if j in kept}
            timeline.rows.total(key, members, copies, self.place.empties)
        messages, sent = timeline.costs.sends(RECURSIVE_DOUBLING, len(members))
        timeline.leaving.append((ends, round(sent * timeline.bytes_per_row), round(messages)))
        timeline.busy(members, sent / len(members) * timeline.bytes_per_row, begins, ends)
        of_all = self.members
        contributed = {j: of_all[j].published for j in members}
        if kept:
            contributed |= {j: kept[j][0] for j in members if j in kept}
        for version, times in Counter(contributed.values()).items():
            timeline.ages[one.number - version] += times
        result = Result(one.number, begins, ends, contributed, key)
        carried_out, underway, all_arrived = self.carried_out, self.underway, one.arrived
        if has_rows:
            self.users[key] = len(members)
        for j in members:
            if has_rows and (before := underway[j]) is not None:
                self._end(j, before)
            carried_out[j] = one.place + 1
            if (arrived := all_arrived[j]) < inf:
                self._deliver(j, one.number, arrived, result)
                if has_rows:
                    self._drop(result)
            else:
                underway[j] = result

    def _drop(self, result: Result) -> None:
        """Drop a reference to this sum."""
        rows: Any = self.timeline.rows
        self.users[result.key] -= 1
        if not self.users[result.key]:
            del self.users[result.key]
            rows.drop(result.key)

    def _deliver(self, i: int, version: int, arrived: float, result: Result) -> None:
        """Let worker i, which requested this version, continue with this sum."""
        timeline = self.timeline
        begins, ends, then = result.begins, result.ends, None
        if arrived > begins:
            begins = arrived
            if arrived > ends:
                ends = arrived
        if timeline.rows is not None:
            self.users[result.key] += 1
            then = partial(self._receive, i, version, result)
        timeline.resume(i, arrived, begins, ends + self.copy_s, then)

    def _receive(self, i: int, version: int, result: Result, now: float) -> None:
        rows: Any = self.timeline.rows
        fresh = is_fresh(version, result.version, result.contributed[i])
        rows.take(result.key, self.place.receive, i, version, fresh, self.place.schedule.group_size, drop=False)
        self._drop(result)


@dataclass(slots=True)
class Publish(Operation):
    """Write this worker's contribution to its send buffer, as this version, and continue."""

    groups: Groups
    version: int

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Complete immediately."""
        timeline.meeting(self.groups, Meeting).publish(i, self.version, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """Write to the buffer of this worker's thread."""
        host.publish(i, self.groups, self.version)


@dataclass(slots=True)
class Join(Operation):
    """Publish, and take the sum of this worker's group in this version."""

    groups: Groups
    version: int

    def begin(self, timeline: Timeline, i: int, now: float) -> None:
        """Wait until the meeting resumes the worker."""
        timeline.meeting(self.groups, Meeting).join(i, self.version, now)

    def carry_out(self, host: Host, i: int) -> None:
        """Activate the version if necessary, and wait for the sum."""
        host.join(i, self.groups, self.version)
