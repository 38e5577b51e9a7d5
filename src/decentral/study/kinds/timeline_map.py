"""Which method is fast where: the time of a step over bandwidth and over how slow slow workers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, check_at_least
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.simulated_time import TimesOverLinks, cluster_of
from decentral.study.job_cell import JobCell
from decentral.study.kinds.timeline import STEP
from decentral.study.rows import Row, overrides_of, points
from decentral.study.study import Cell, Labels, Meaning, Study, Value, title_of

SLOWDOWN, BANDWIDTH = "slowdown", "gbps"


@dataclass
class TimelineMapCell(JobCell[TimesOverLinks]):
    """One method in one kind of cluster, at all places of the map and for all seeds."""

    def read(self) -> Iterator[Value]:
        """The time of a step at each place."""
        for line in self.job.found():
            for slowdown, times in zip(self.job.slowdowns, line["step_s"], strict=True):
                for gbps, seconds in zip(self.job.gbps, times, strict=True):
                    yield Value(self.labels | {SLOWDOWN: slowdown, BANDWIDTH: gbps}, seconds, STEP, line["seed"])

    def meanings(self) -> dict[str, Meaning]:
        """Less time is better."""
        return {STEP: Meaning(False, "s")}


@dataclass
class TimelineMap(Study):
    """A row for every method, a column for every kind of cluster; a map for each of the columns. Nothing is trained.

    rows       the methods
    columns    label -> values, for example {cluster: [two_delayed, one_slow]}; every combination is a map
    keys       label -> key of decentral-run, where the label is not the key itself
    slowdowns  how many times as long slow workers take: from below to above, the label `slowdown`
    gbps       bandwidths of all links in Gbit/s: from left to right, the label `gbps`
    seeds      of the delays
    steps      of every run; the time per step is that of all of them together
    """

    name: str = "timeline_map"
    rows: list[Row] = field(default_factory=list)
    columns: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    slowdowns: list[float] = field(default_factory=list)
    gbps: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [1])
    steps: int = 100

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps)
        for key, least in (("slowdowns", 1.0), ("gbps", 0.0)):
            numbers = getattr(self, key)
            if not numbers or min(numbers) <= least:
                raise ConfigError(f"{key}={numbers} makes no sense: give numbers above {least:g}.")

    def decided_keys(self) -> set[str]:
        """Also the axes of the map, the keys of the columns, and the rate: nothing is trained."""
        known = {"lr", "cluster.stragglers.slowdown", "cluster.links.bandwidth_gbps"}
        return super().decided_keys() | known | {self.keys.get(label, label) for label in self.columns}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        settings = [(row, point) for row in self.rows for point in points(self.columns, {})]
        anywhere = f"cluster.stragglers.slowdown={self.slowdowns[0]!r}"
        commands = [
            [*self.base, *row.base, *overrides_of(point, self.keys), anywhere, *overrides] for row, point in settings
        ]
        cells: list[Cell] = []
        for (row, point), config in zip(settings, compose_all(commands, config_dir), strict=True):
            check_losses(config)
            if cluster_of(config).num_parameters is None:
                raise ConfigError(
                    "cluster.num_parameters is not given: say how large the model is, nothing is trained."
                )
            labels: Labels = {"method": row.method, "topology": row.topology, **point}
            job = TimesOverLinks(
                without_seed_and_rate(config),
                title_of(labels),
                tuple(self.seeds),
                self.steps,
                tuple(self.slowdowns),
                tuple(self.gbps),
            )
            cells.append(TimelineMapCell(labels | {SLOWDOWN: "", BANDWIDTH: ""}, job))
        return cells
