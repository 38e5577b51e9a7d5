"""Average consensus, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from decentral.config.composition import compose_all
from decentral.errors import ConfigError
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.consensus import ConsensusRounds
from decentral.study.job_cell import JobCell
from decentral.study.study import Cell, Curve, Labels, Study, Value, in_steps

ERROR = "relative distance of the vectors from their mean"


@dataclass
class Graph:
    """A row: which graph, as tables and figures show it, how the workers average on it, and overrides of its runs."""

    graph: str = ""
    averaging: str = ""
    base: list[str] = field(default_factory=list)


@dataclass
class ConsensusCell(JobCell[ConsensusRounds]):
    """One graph, for all seeds."""

    at: list[int]

    def read(self) -> Iterator[Value]:
        """The error after some rounds."""
        for line in self.job.found():
            for t in self.at:
                yield Value(self.labels | {"after_rounds": t}, line["errors"][t], ERROR, line["seed"])

    def read_curves(self) -> Iterator[Curve]:
        """The error after every round."""
        for line in self.job.found():
            yield Curve(self.labels, ERROR, "", line["seed"], in_steps(enumerate(line["errors"])))


@dataclass
class Consensus(Study):
    """The relative distance of all workers' vectors from their mean, for each of `rows`, over `rounds` rounds.

    at          the rounds whose error is a value
    dimension   of the vectors
    """

    name: str = "consensus"
    rows: list[Graph] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    rounds: int = 100
    at: list[int] = field(default_factory=list)
    dimension: int = 100

    def __post_init__(self) -> None:
        if not all(0 <= t <= self.rounds for t in self.at) or not self.at:
            raise ConfigError(f"at={self.at} has to name rounds from 0 to rounds={self.rounds}.")

    def decided_keys(self) -> set[str]:
        """Also the rate: there are no gradients."""
        return super().decided_keys() | {"lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        cells: list[Cell] = []
        configs = compose_all([[*self.base, *row.base, *overrides] for row in self.rows], config_dir)
        for row, config in zip(self.rows, configs, strict=True):
            check_losses(config)
            own = tuple(self.seeds), self.rounds, self.dimension
            job = ConsensusRounds(without_seed_and_rate(config), f"{row.graph}, {row.averaging}", *own)
            labels: Labels = {"graph": row.graph, "averaging": row.averaging, "after_rounds": ""}
            cells.append(ConsensusCell(labels, job, self.at))
        return cells
