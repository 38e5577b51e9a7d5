"""Numbers that follow from the graphs alone, over the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from decentral.composition import compose_all
from decentral.ensembles.facts import QUANTITIES, FactJob
from decentral.ensembles.job import check_losses, same
from decentral.errors import ConfigError, suggest
from decentral.launch.job import Job
from decentral.study.row import Row
from decentral.study.study import Cell, Labels, Study, Value


@dataclass
class FactRow(Row):
    """A quantity of a graph; here `published` is 'algorithm|topology|setting' with {n} in it.

    quantity            a key of ensembles.facts.QUANTITIES
    num_workers         if they are not the study's
    """

    quantity: str = ""
    num_workers: list[int] = field(default_factory=list)


@dataclass
class FactCell(Cell):
    """One quantity for one number of workers; the cells of a row share their job."""

    labels: Labels
    job: FactJob
    n: int
    metric: str
    published: str

    def jobs(self) -> list[Job]:
        """The row's."""
        return [self.job]

    def values(self) -> list[Value]:
        """The number, when the job is done."""
        if self.job.finished() is None:
            return []
        found, wall_s = self.job.numbers()[self.n], self.job.wall_s() / len(self.job.num_workers)
        return [Value(self.labels, found, self.metric, 0, published=self.published, run=self.job.id, wall_s=wall_s)]


@dataclass
class Facts(Study):
    """`rows` over `num_workers`; `metric` says what the numbers are."""

    name: str = "facts"
    rows: list[FactRow] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)
    metric: str = ""

    def decided_keys(self) -> set[str]:
        """Also the numbers of workers, and the rate, which is 1 where one is needed."""
        return super().decided_keys() | {"num_workers", "lr"}

    def cells(self, overrides: Sequence[str], results_dir: Path, config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        configs = compose_all([[*self.base, *row.base, *overrides] for row in self.rows], config_dir)
        cells: list[Cell] = []
        for row, config in zip(self.rows, configs, strict=True):
            if row.quantity not in QUANTITIES:
                raise ConfigError(f"quantity={row.quantity} is unknown.{suggest(row.quantity, QUANTITIES)}")
            check_losses(config)
            sizes = row.num_workers or self.num_workers
            config = replace(same(config, results_dir), num_workers=sizes[0])
            job = FactJob(config, f"{row.method}, {row.topology}", row.quantity, tuple(sizes))
            for n in sizes:
                labels: Labels = {"method": row.method, "topology": row.topology, "num_workers": n}
                cells.append(FactCell(labels, job, n, self.metric or row.quantity, row.published.format(n=n)))
        return cells
