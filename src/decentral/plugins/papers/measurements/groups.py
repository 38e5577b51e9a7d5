"""The groups of methods that average in groups: their members, and how fast a contribution spreads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.config.identity import component_identity
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import Labels, Row, Value, curve
from decentral.topology.groups import GroupSchedule, activation_children, check_groups, dimension, group_period

if TYPE_CHECKING:
    pass


REACH, PERIOD = "versions until everybody knows", "versions until the groups repeat"
HOPS = "hops until all are called"
GROUP, PARENT, HOP = "group", "called by", "hop"


@dataclass
class GroupFacts(Measurement):
    """Group schedules of `sizes`, computed from the members of each group.

    A line for each size: {"num_workers", "group_size", "period": versions until the groups repeat, "reach": versions
    until a contribution has reached all workers, the maximum over the first versions, "groups": worker -> number of its
    group, for each version of a period, "parents": worker -> the worker that calls it when worker 1 starts a version
    (itself: none), "hops": worker -> number of hops of that call}.

    sizes   pairs [number of workers, size of groups], both powers of two, groups of at least two
    """

    name: str = "groups"
    sizes: list[list[int]] = field(default_factory=list)

    folder: ClassVar[str] = "group_facts"
    row_labels: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for size in self.sizes:
            if len(size) != 2 or min(size) < 2:
                raise ConfigError(
                    f"sizes: {size} is invalid: give a number of workers and a group size, each at least 2."
                )
            check_groups(size[0], size[1], key="sizes: the size")

    def parameters(self) -> dict[str, Any]:
        """Return the sizes, and the topology if the run's identity leaves it out."""
        return {"sizes": self.sizes, "over": component_identity(self.config.topology)}

    def parts(self) -> list[dict[str, Any]]:
        """Return a part for each size."""
        return [{"num_workers": n, "group_size": size} for n, size in self.sizes]

    def line(self, num_workers: int, group_size: int) -> dict[str, Any]:
        """Return the schedule's quantities."""
        schedule, period = GroupSchedule(num_workers, group_size), group_period(num_workers, group_size)
        parents, hops = called(1 % num_workers, num_workers)
        return {
            "period": period,
            "reach": max(versions_until_all_know(schedule, first) for first in range(period)),
            "groups": [schedule.groups(version)[1] for version in range(period)],
            "parents": parents,
            "hops": hops,
        }

    def cells(self) -> list[Labels]:
        """Return a cell for each size."""
        return [
            {"groups": f"{n} workers in groups of {size}", "num_workers": n, "group_size": size}
            for n, size in self.sizes
        ]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield the values derived from the groups."""
        line = self._line(labels)
        for metric, value in ((REACH, line["reach"]), (PERIOD, line["period"]), (HOPS, max(line["hops"]))):
            yield Value(labels, float(value), metric, 0)

    def curves(self, labels: Labels) -> Iterator[Row]:
        """Return the group of every worker in each version, and its position in the tree."""
        line = self._line(labels)
        for i in range(line["num_workers"]):
            groups = [(t, float(groups[i])) for t, groups in enumerate(line["groups"])]
            yield from curve(labels, GROUP, 0, groups, str(i), ["step"])
            for metric, values in ((PARENT, line["parents"]), (HOP, line["hops"])):
                yield from curve(labels, metric, 0, [(0, float(values[i]))], str(i), ["step"])

    def _line(self, labels: Labels) -> dict[str, Any]:
        return next(line for line in self.found() if all(line[k] == labels[k] for k in ("num_workers", "group_size")))


def versions_until_all_know(schedule: GroupSchedule, first: int) -> int:
    """Return the versions until worker 0's contribution to version `first` reaches all, by following it; S >= 2."""
    knows, version = {0}, first
    while len(knows) < schedule.num_workers:
        groups, _ = schedule.groups(version)
        knows |= {member for members in groups if knows & set(members) for member in members}
        version += 1
    return version - first


def called(root: int, num_workers: int) -> tuple[list[int], list[int]]:
    """Return the worker that calls each worker when the root starts a version, and the number of hops (the root:
    itself, 0)."""
    parents, hops = [root] * num_workers, [0] * num_workers
    waiting = [(root, -1)]
    while waiting:
        worker, came_over = waiting.pop()
        for child in activation_children(worker, came_over, num_workers):
            parents[child], hops[child] = worker, hops[worker] + 1
            waiting.append((child, dimension(worker, child)))
    return parents, hops
