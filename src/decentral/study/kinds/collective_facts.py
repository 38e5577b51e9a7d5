"""The factors of latency and bandwidth in what collectives cost, and where two of them cost the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, suggest
from decentral.jobs.collective_costs import CROSSOVERS, PARTS, SCHEMES, CollectiveFacts
from decentral.jobs.computation import without_seed_and_rate
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Labels, Study, Value

FACTOR = "factor"


@dataclass
class CollectiveRow(Row):
    """A way to average; here `published` is 'algorithm|topology|setting' with {n} and {part} in it.

    scheme      a key of jobs.collective_costs.SCHEMES or CROSSOVERS
    """

    scheme: str = ""


@dataclass
class CollectiveFactCell(JobCell[CollectiveFacts]):
    """One factor for one number of workers; all cells of the study share a job."""

    scheme: str
    part: str
    n: int
    published: str
    cells_of_job: int

    @property
    def sharing(self) -> int:
        """All cells."""
        return self.cells_of_job

    def read(self) -> Iterator[Value]:
        """The number."""
        wanted = {"scheme": self.scheme, "part": self.part, "num_workers": self.n}
        line = next(line for line in self.job.found() if wanted.items() <= line.items())
        yield Value(self.labels, float(line["value"]), FACTOR, 0, published=self.published)


@dataclass
class CollectiveFactors(Study):
    """`rows` over `num_workers`: of a scheme the factor of each of PARTS, of a crossover the one number."""

    name: str = "collective_facts"
    rows: list[CollectiveRow] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = [*SCHEMES, *CROSSOVERS]
        for row in self.rows:
            if row.scheme not in known:
                raise ConfigError(f"scheme={row.scheme} is unknown.{suggest(row.scheme, known)}")
        if not self.num_workers or min(self.num_workers) < 4:
            raise ConfigError(f"num_workers={self.num_workers}: give numbers from 4 on, below which a tree is a ring.")

    def decided_keys(self) -> set[str]:
        """Also the number of workers and the rate: nothing is trained."""
        return super().decided_keys() | {"num_workers", "lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, part by part."""
        (config,) = compose_all([[*self.base, *overrides]], config_dir)
        schemes = tuple(dict.fromkeys(row.scheme for row in self.rows))
        job = CollectiveFacts(without_seed_and_rate(config), "collectives", schemes, tuple(self.num_workers))
        found = [
            (row, part, n)
            for row in self.rows
            for part in ([""] if row.scheme in CROSSOVERS else PARTS)
            for n in self.num_workers
        ]
        cells: list[Cell] = []
        for row, part, n in found:
            labels: Labels = {"method": row.method, "part": part, "num_workers": n}
            published = row.published.format(n=n, part=part)
            cells.append(CollectiveFactCell(labels, job, row.scheme, part, n, published, len(found)))
        return cells
