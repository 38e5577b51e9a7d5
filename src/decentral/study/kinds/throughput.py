"""How many images a second methods train on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from decentral.config.composition import compose_all
from decentral.errors import ConfigError
from decentral.jobs.throughput import Pace
from decentral.jobs.throughput import Throughput as TimedJob
from decentral.published import key as published_key
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row, overrides_of, points
from decentral.study.study import Cell, Labels, Study, Value, title_of

IMAGES, RATIO = "throughput (images/s)", "ratio to all-reduce"


@dataclass
class Timed(Row):
    """A method; `only`: columns that it is timed at, if not all: {num_workers: [16]}."""

    only: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Throughput(Study):
    """A row for every method; each is timed in turn with the baseline, in the same processes.

    rows        the methods
    columns     label -> values, for methods and baseline alike, such as {model: [resnet50, vgg16]}; every combination
                is a column
    keys        label -> key of decentral-run, where the label is not the key itself
    baseline    overrides of what each is held against
    warm_up     steps before the clock starts
    iterations  how often the clock is read: each is a value of its own, with its number as `seed`
    steps       steps in an iteration
    setting     how the published table writes the set-up
    compares    which of the two the published numbers are: speed, or ratio
    """

    name: str = "throughput"
    rows: list[Timed] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    baseline: list[str] = field(default_factory=list)
    warm_up: int = 10
    iterations: int = 10
    steps: int = 10
    setting: str = ""
    compares: Literal["speed", "ratio"] = "speed"

    timed: ClassVar[frozenset[str]] = frozenset({"device", "processes", "network.transport"})

    def __post_init__(self) -> None:
        if min(self.iterations, self.steps) < 1 or self.warm_up < 0:
            raise ConfigError(f"iterations={self.iterations} and steps={self.steps} have to be at least 1.")

    def decided_keys(self) -> set[str]:
        """Also the keys of the columns."""
        return super().decided_keys() | {self.keys.get(label, label) for label in self.columns}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, column by column."""
        settings = [(row, point) for row in self.rows for point in points(self.columns, row.only)]
        both = [(base, point) for row, point in settings for base in (row.base, self.baseline)]
        commands = [[*self.base, *base, *overrides_of(point, self.keys), *overrides] for base, point in both]
        configs = compose_all(commands, config_dir)
        if any(config.processes == "auto" for config in configs):
            raise ConfigError("processes=auto cannot be used: how fast training is depends on it, give a number.")
        pace = Pace(self.warm_up, self.iterations, self.steps)
        found: list[Cell] = []
        for (row, point), config, baseline in zip(settings, configs[::2], configs[1::2], strict=True):
            labels: Labels = {"method": row.method, "topology": row.topology, **point}
            job = TimedJob(config, title_of(labels), baseline, pace)
            published = published_key(row.published, self.setting, **point)
            found.append(ThroughputCell(labels, job, published, IMAGES if self.compares == "speed" else RATIO))
        return found


@dataclass
class ThroughputCell(JobCell[TimedJob]):
    """One job; a value for each iteration of it."""

    published: str
    compared: str
    """The metric that the published number is one of."""

    def read(self) -> Iterator[Value]:
        """Images per second in total, and the ratio to the baseline's in the same iteration; first what is compared."""
        for metric in sorted((IMAGES, RATIO), key=lambda metric: metric != self.compared):
            for line in self.job.found():
                speed, baseline = float(line["images_per_s"]), float(line["baseline_images_per_s"])
                ratio = speed / baseline if baseline > 0 else math.nan
                value, number = (speed if metric == IMAGES else ratio), int(line["iteration"])
                published = self.published if metric == self.compared else ""
                yield Value(self.labels, value, metric, number, lr=self.job.config.lr, published=published)
