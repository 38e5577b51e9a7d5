"""How fast methods are in a virtual cluster: time alone, nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, check_at_least, suggest
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.simulated_time import SimulatedTime, cluster_of
from decentral.published import key as published_key
from decentral.scheduling.job import Job
from decentral.store import Status
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row, overrides_of, points
from decentral.study.study import Cell, Labels, Meaning, Study, Value, title_of

THROUGHPUT, STEP, WAITING = "throughput (steps/s)", "time per step (s)", "waiting share (%)"
STALE, AGE, SENT = "stale contributions (%)", "mean age of a contribution (versions)", "MB sent per worker and step"
_MEANINGS = {
    THROUGHPUT: Meaning(True, "1/s"),
    STEP: Meaning(False, "s"),
    WAITING: Meaning(False, "%"),
    STALE: Meaning(None, "%"),
    AGE: Meaning(None, "versions"),
    SENT: Meaning(False, "MB"),
}


@dataclass
class TimedRow(Row):
    """A method; `only`: columns that it is timed at, if not all: {num_workers: [16]}."""

    only: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Timeline(Study):
    """A row for every method, a column for every setting; `steps` steps of each pass in simulated time.

    rows       the methods
    columns    label -> values, for example {num_workers: [4, 8]}; every combination is a column
    keys       label -> key of decentral-run, where the label is not the key itself: {waits for: cluster.waits_for}
    baseline   the method that each is held against in the same column, with the same delays: its speed-up is the
               ratio of the times per step, how many times as long the row takes
    seeds      of the delays
    steps      of every run; the time per step is that of all of them together
    setting    how the published table writes a column
    published_at  label -> values of the columns that the paper gives numbers for; {}: all
    compares   which metric the published numbers are, and with it the first one: speed-up, or throughput
    """

    name: str = "timeline"
    rows: list[TimedRow] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    baseline: str = ""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    steps: int = 200
    setting: str = ""
    published_at: dict[str, list[Any]] = field(default_factory=dict)
    compares: Literal["speed-up", "throughput"] = "speed-up"

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps)
        unknown = next((label for label in self.published_at if label not in self.columns), None)
        if unknown is not None:
            raise ConfigError(f"published_at: {unknown} is no column.{suggest(unknown, self.columns)}")
        methods = [row.method for row in self.rows]
        if self.baseline not in methods:
            raise ConfigError(f"baseline={self.baseline} is the method of no row.{suggest(self.baseline, methods)}")
        twice = next((one for one, other in pairwise(sorted(methods)) if one == other), None)
        if twice is not None:
            raise ConfigError(f"rows: two have the method {twice}: give each its own.")
        if next(row for row in self.rows if row.method == self.baseline).only:
            raise ConfigError(
                f"rows: {self.baseline} is the baseline, which is needed in every column: leave out only."
            )

    @property
    def speed_up(self) -> str:
        """The name of the metric."""
        return f"speed-up of {self.baseline}"

    def decided_keys(self) -> set[str]:
        """Also the keys of the columns, and the rate: nothing is trained."""
        return super().decided_keys() | {"lr"} | {self.keys.get(label, label) for label in self.columns}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        settings = [(row, point) for row in self.rows for point in points(self.columns, row.only)]
        commands = [[*self.base, *row.base, *overrides_of(point, self.keys), *overrides] for row, point in settings]
        jobs: list[tuple[TimedRow, dict[str, Any], SimulatedTime]] = []
        for (row, point), config in zip(settings, compose_all(commands, config_dir), strict=True):
            check_losses(config)
            if cluster_of(config).num_parameters is None:
                raise ConfigError(
                    "cluster.num_parameters is not given: nothing is trained here, say how large the model is whose "
                    "messages are timed."
                )
            title = title_of({"method": row.method, "topology": row.topology, **point})
            job = SimulatedTime(without_seed_and_rate(config), title, tuple(self.seeds), self.steps)
            jobs.append((row, point, job))
        baselines = {_place(point): job for row, point, job in jobs if row.method == self.baseline}
        return [self._cell(row, point, job, baselines[_place(point)]) for row, point, job in jobs]

    def _cell(self, row: TimedRow, point: dict[str, Any], job: SimulatedTime, baseline: SimulatedTime) -> TimelineCell:
        labels: Labels = {"method": row.method, "topology": row.topology, **point}
        given = all(point[label] in values for label, values in self.published_at.items())
        published = published_key(row.published, self.setting, **point) if given else ""
        return TimelineCell(labels, job, self, baseline, published)


def _place(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point.values())


@dataclass
class TimelineCell(JobCell[SimulatedTime]):
    """One method in one setting, for all seeds, beside the baseline in the same setting."""

    study: Timeline
    baseline: SimulatedTime
    published: str

    def jobs(self) -> list[Job]:
        """Its own, and the baseline's, without which there is no speed-up."""
        return list({job.id: job for job in (self.job, self.baseline)}.values())

    def values(self) -> list[Value]:
        """Nothing before both jobs are done."""
        return super().values() if self.baseline.finished() is Status.done else []

    def meanings(self) -> dict[str, Meaning]:
        """More of what the baseline is compared by is better for the baseline: neither good nor bad of the row."""
        return {**_MEANINGS, self.study.speed_up: Meaning(None, "x")}

    def read(self) -> Iterator[Value]:
        """For each seed what is compared, then the rest."""
        theirs = {line["seed"]: line for line in self.baseline.found()}
        compared = THROUGHPUT if self.study.compares == "throughput" else self.study.speed_up
        for line in self.job.found():
            numbers = {
                self.study.speed_up: line["step_s"] / theirs[line["seed"]]["step_s"],
                THROUGHPUT: 1 / line["step_s"],
                STEP: line["step_s"],
                WAITING: 100 * line["waiting_share"],
                SENT: line["mb_sent"],
            }
            if line["stale_share"] is not None:
                numbers |= {STALE: 100 * line["stale_share"], AGE: line["mean_age"]}
            for metric in sorted(numbers, key=lambda metric: metric != compared):
                published = self.published if metric == compared else ""
                yield Value(self.labels, numbers[metric], metric, line["seed"], published=published)
