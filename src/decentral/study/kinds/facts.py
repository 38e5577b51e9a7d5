"""Numbers that follow from the graphs alone, over the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, suggest
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.graph_facts import QUANTITIES, GraphFacts
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Labels, Study, Value


@dataclass
class FactRow(Row):
    """A quantity of a graph; here `published` is 'algorithm|topology|setting' with {n} in it.

    quantity            a key of jobs.graph_facts.QUANTITIES
    num_workers         if they are not the study's
    """

    quantity: str = ""
    num_workers: list[int] = field(default_factory=list)


@dataclass
class FactCell(JobCell[GraphFacts]):
    """One quantity for one number of workers; the cells of a row share their job."""

    n: int
    metric: str
    published: str

    @property
    def sharing(self) -> int:
        """The numbers of workers."""
        return len(self.job.num_workers)

    def read(self) -> Iterator[Value]:
        """The number."""
        yield Value(self.labels, self.job.numbers()[self.n], self.metric, 0, published=self.published)


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

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        configs = compose_all([[*self.base, *row.base, *overrides] for row in self.rows], config_dir)
        cells: list[Cell] = []
        for row, config in zip(self.rows, configs, strict=True):
            if row.quantity not in QUANTITIES:
                raise ConfigError(f"quantity={row.quantity} is unknown.{suggest(row.quantity, QUANTITIES)}")
            check_losses(config)
            sizes = row.num_workers or self.num_workers
            config = replace(without_seed_and_rate(config), num_workers=sizes[0])
            job = GraphFacts(config, f"{row.method}, {row.topology}", row.quantity, tuple(sizes))
            for n in sizes:
                labels: Labels = {"method": row.method, "topology": row.topology, "num_workers": n}
                cells.append(FactCell(labels, job, n, self.metric or row.quantity, row.published.format(n=n)))
        return cells
