"""How many pictures a second methods train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decentral.composition import compose_all
from decentral.errors import ConfigError
from decentral.launch.job import Job
from decentral.published import key as published_key
from decentral.study.study import Cell, Labels, Study, Value
from decentral.throughput import Pace
from decentral.throughput import Throughput as TimedJob

IMAGES, RATIO = "throughput (images/s)", "ratio to all-reduce"


@dataclass
class Timed:
    """A method: as the table shows it, overrides of its runs, and 'algorithm|topology' of its published number."""

    method: str = ""
    topology: str = ""
    base: list[str] = field(default_factory=list)
    published: str = ""


@dataclass
class Throughput(Study):
    """A row for every method; each is timed in turn with the baseline, in the same processes.

    rows        the methods
    baseline    overrides of what each is held against
    warm_up     steps before the clock starts
    iterations  how often the clock is read: each is a value of its own, with its number as `seed`
    steps       steps in an iteration
    setting     how the published table writes the set-up
    """

    name: str = "throughput"
    rows: list[Timed] = field(default_factory=list)
    baseline: list[str] = field(default_factory=list)
    warm_up: int = 10
    iterations: int = 10
    steps: int = 10
    setting: str = ""

    def __post_init__(self) -> None:
        if min(self.iterations, self.steps) < 1 or self.warm_up < 0:
            raise ConfigError(f"iterations={self.iterations} and steps={self.steps} have to be at least 1.")

    def cells(self, overrides: Sequence[str], results_dir: Path, config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        commands = [[*self.base, *base, *overrides] for base in (self.baseline, *(row.base for row in self.rows))]
        baseline, *configs = compose_all(commands, config_dir)
        if any(config.processes == "auto" for config in (baseline, *configs)):
            raise ConfigError("processes=auto cannot be used: how fast training is depends on it, give a number.")
        pace = Pace(self.warm_up, self.iterations, self.steps)
        found: list[Cell] = []
        for row, config in zip(self.rows, configs, strict=True):
            job = TimedJob(config, f"{row.method}, {row.topology}", baseline, pace)
            published = published_key(row.published, self.setting)
            found.append(ThroughputCell({"method": row.method, "topology": row.topology}, job, published))
        return found


@dataclass
class ThroughputCell(Cell):
    """One job; a value for each iteration of it."""

    labels: Labels
    job: TimedJob
    published: str

    def jobs(self) -> list[Job]:
        """The one."""
        return [self.job]

    def values(self) -> list[Value]:
        """Pictures per second in total, and the ratio to the baseline's in the same iteration."""
        if self.job.finished() is None:
            return []
        found = []
        for line in self.job.found():
            speed, baseline = float(line["images_per_s"]), float(line["baseline_images_per_s"])
            common = Value(self.labels, speed, IMAGES, int(line["iteration"]), lr=self.job.config.lr, run=self.job.id)
            common = common._replace(wall_s=self.job.wall_s() / self.job.pace.iterations)
            found.append(common._replace(published=self.published))
            found.append(common._replace(metric=RATIO, value=speed / baseline if baseline > 0 else math.nan))
        return sorted(found, key=lambda value: value.metric != IMAGES)
