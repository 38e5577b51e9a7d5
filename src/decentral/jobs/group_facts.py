"""How groups that change pass on what a worker contributes, and how one worker calls all: a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from decentral.config.identity import component_identity
from decentral.jobs.computation import Computation
from decentral.store.lines import LineFile
from decentral.topology.groups import GroupSchedule, activation_children, dimension, group_period


@dataclass(frozen=True)
class GroupFacts(Computation):
    """The groups of `sizes`, pairs (number of workers, group size), worked out from who is with whom.

    A line of groups.jsonl for each: {"num_workers", "group_size", "period": versions until the groups repeat, "reach":
    versions until a contribution has come to everybody, the most over all versions that it may begin with, "groups":
    worker -> number of its group, for each version of a period, "parents": worker -> who calls it when worker 1 sets a
    version off (itself: nobody), "hops": worker -> over how many workers that goes}.
    """

    sizes: tuple[tuple[int, int], ...] = ()

    folder: ClassVar[str] = "group_facts"
    lines: ClassVar[str] = "groups.jsonl"

    def parameters(self) -> dict[str, Any]:
        """The sizes, and the topology where the run's identity leaves it out."""
        return {"sizes": [list(size) for size in self.sizes], "over": component_identity(self.config.topology)}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One size after the other."""
        known = {(line["num_workers"], line["group_size"]) for line in lines.known}
        for number, (n, size) in enumerate(self.sizes):
            if (n, size) in known:
                continue
            if stop():
                return False
            schedule = GroupSchedule(n, size)
            period = group_period(n, size)
            parents, hops = called(1 % n, n)
            lines.append(
                {
                    "num_workers": n,
                    "group_size": size,
                    "period": period,
                    "reach": max(versions_until_all_know(schedule, first) for first in range(period)),
                    "groups": [schedule.groups(version)[1] for version in range(period)],
                    "parents": parents,
                    "hops": hops,
                }
            )
            show((number + 1) / len(self.sizes), f"n = {n}, S = {size}")
        return True


def versions_until_all_know(schedule: GroupSchedule, first: int) -> int:
    """Until what worker 0 contributes to version `first` has come to everybody, by following it; S >= 2."""
    knows, version = {0}, first
    while len(knows) < schedule.num_workers:
        groups, _ = schedule.groups(version)
        knows |= {member for members in groups if knows & set(members) for member in members}
        version += 1
    return version - first


def called(root: int, num_workers: int) -> tuple[list[int], list[int]]:
    """Who calls each worker when the root sets a version off, and over how many hops (the root: itself, 0)."""
    parents, hops = [root] * num_workers, [0] * num_workers
    waiting = [(root, -1)]
    while waiting:
        worker, came_over = waiting.pop()
        for child in activation_children(worker, came_over, num_workers):
            parents[child], hops[child] = worker, hops[worker] + 1
            waiting.append((child, dimension(worker, child)))
    return parents, hops
