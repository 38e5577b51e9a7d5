"""Groups that change from version to version, and the tree by which one worker calls all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentral.config.composition import compose_all
from decentral.errors import ConfigError
from decentral.jobs.computation import without_seed_and_rate
from decentral.jobs.group_facts import GroupFacts
from decentral.study.job_cell import JobCell
from decentral.study.study import Cell, Curve, Labels, Point, Study, Value
from decentral.topology.groups import check_groups

REACH, PERIOD = "versions until everybody knows", "versions until the groups repeat"
HOPS = "hops until all are called"
GROUP, PARENT, HOP = "group", "called by", "hop"


@dataclass
class GroupsCell(JobCell[GroupFacts]):
    """One number of workers and size of groups; all share a job."""

    size: tuple[int, int]

    @property
    def sharing(self) -> int:
        """All sizes."""
        return len(self.job.sizes)

    def read(self) -> Iterator[Value]:
        """What follows from the groups."""
        line = self._line()
        for metric, value in ((REACH, line["reach"]), (PERIOD, line["period"]), (HOPS, max(line["hops"]))):
            yield Value(self.labels, float(value), metric, 0)

    def read_curves(self) -> Iterator[Curve]:
        """Of every worker its group in each version, and in which place of the tree it is."""
        line = self._line()
        for i in range(self.size[0]):
            groups = [Point(float(groups[i]), {"step": t}) for t, groups in enumerate(line["groups"])]
            yield Curve(self.labels, GROUP, str(i), 0, groups)
            for metric, values in ((PARENT, line["parents"]), (HOP, line["hops"])):
                yield Curve(self.labels, metric, str(i), 0, [Point(float(values[i]), {"step": 0})])

    def _line(self) -> dict[str, Any]:
        return next(line for line in self.job.found() if (line["num_workers"], line["group_size"]) == self.size)


@dataclass
class Groups(Study):
    """`sizes`: pairs [number of workers, size of groups], both powers of two, groups of at least two."""

    name: str = "groups"
    sizes: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for size in self.sizes:
            if len(size) != 2 or min(size) < 2:
                raise ConfigError(f"sizes: {size} has to be a number of workers and a size of groups, 2 or more each.")
            check_groups(size[0], size[1], key="sizes: the size")

    def decided_keys(self) -> set[str]:
        """Also the rate: nothing is trained."""
        return super().decided_keys() | {"lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Size by size."""
        (config,) = compose_all([[*self.base, *overrides]], config_dir)
        sizes = [(n, size) for n, size in self.sizes]
        job = GroupFacts(without_seed_and_rate(config), "groups", tuple(sizes))
        cells: list[Cell] = []
        for n, size in sizes:
            labels: Labels = {"groups": f"{n} workers in groups of {size}", "num_workers": n, "group_size": size}
            cells.append(GroupsCell(labels, job, (n, size)))
        return cells
