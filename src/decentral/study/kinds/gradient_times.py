"""How the times of gradients are distributed in a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.errors import check_at_least
from decentral.jobs.computation import without_seed_and_rate
from decentral.jobs.simulated_time import GradientTimeDistribution, cluster_of
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Curve, Labels, Point, Study, Value

SHARE = "gradients that take no longer (%)"
_QUANTILES = {"median (s)": 50, "95 % take at most (s)": 95, "least (s)": 0, "most (s)": 100}


@dataclass
class GradientTimesCell(JobCell[GradientTimeDistribution]):
    """The gradients of one cluster, for all seeds."""

    def read(self) -> Iterator[Value]:
        """Median, high quantile, range and mean in seconds."""
        for line in self.job.found():
            for metric, percent in _QUANTILES.items():
                yield Value(self.labels, line["quantiles"][percent], metric, line["seed"])
            yield Value(self.labels, line["mean"], "mean (s)", line["seed"])

    def read_curves(self) -> Iterator[Curve]:
        """The share that takes no longer, over seconds."""
        for line in self.job.found():
            points = [Point(float(p), {"simulated_s": seconds}) for p, seconds in enumerate(line["quantiles"])]
            yield Curve(self.labels, SHARE, "", line["seed"], points)


@dataclass
class GradientTimes(Study):
    """The clusters of `rows`: how long the first `steps` gradients of each of num_workers workers take, by seed."""

    name: str = "gradient_times"
    rows: list[Row] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [1])
    steps: int = 1000

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps)

    def decided_keys(self) -> set[str]:
        """Also the rate: nothing is trained."""
        return super().decided_keys() | {"lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        configs = compose_all([[*self.base, *row.base, *overrides] for row in self.rows], config_dir)
        cells: list[Cell] = []
        for row, config in zip(self.rows, configs, strict=True):
            cluster_of(config)
            job = GradientTimeDistribution(without_seed_and_rate(config), row.method, tuple(self.seeds), self.steps)
            labels: Labels = {"method": row.method, "topology": row.topology}
            cells.append(GradientTimesCell(labels, job))
        return cells
