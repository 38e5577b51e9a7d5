"""Which way to average costs least, over latency, bandwidth, the share that is kept and the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, check_at_least, suggest
from decentral.jobs.collective_costs import SCHEMES, CollectiveMap
from decentral.jobs.computation import without_seed_and_rate
from decentral.study.job_cell import JobCell
from decentral.study.kinds.collective_facts import CollectiveRow
from decentral.study.study import Cell, Labels, Meaning, Study, Value

SECONDS = "seconds of an exchange"
PLACES = ("num_workers", "keep", "latency_ms", "gbps")


@dataclass
class CollectiveMapCell(JobCell[CollectiveMap]):
    """One way to average at all places."""

    def read(self) -> Iterator[Value]:
        """The seconds at each place."""
        (line,) = self.job.found()
        axes = [getattr(self.job, name) for name in PLACES]
        flat = [value for n in line["seconds"] for keep in n for latency in keep for value in latency]
        for place, seconds in zip(product(*axes), flat, strict=True):
            yield Value(self.labels | dict(zip(PLACES, place, strict=True)), seconds, SECONDS, 0)

    def meanings(self) -> dict[str, Meaning]:
        """Less time is better."""
        return {SECONDS: Meaning(False, "s")}


@dataclass
class CollectiveMapStudy(Study):
    """Formulas alone: the time of an exchange of a gradient by each of `rows`, whose places are labels of a map.

    num_parameters  of the model
    num_workers, keep, latency_ms, gbps   the places: every combination; `keep` is the share of the coordinates that
                    the ways with `topk` send
    """

    name: str = "collective_map"
    rows: list[CollectiveRow] = field(default_factory=list)
    num_parameters: int = 25_557_032
    num_workers: list[int] = field(default_factory=list)
    keep: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    gbps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_at_least("num_parameters", self.num_parameters)
        for row in self.rows:
            if row.scheme not in SCHEMES:
                raise ConfigError(f"scheme={row.scheme} is unknown.{suggest(row.scheme, SCHEMES)}")
        for key, least in zip(PLACES, (1, 0, 0, 0), strict=True):
            numbers = getattr(self, key)
            if not numbers or min(numbers) <= least:
                raise ConfigError(f"{key}={numbers} makes no sense: give numbers above {least}.")
        if max(self.keep) > 1:
            raise ConfigError(f"keep={self.keep} makes no sense: a share is at most 1.")

    def decided_keys(self) -> set[str]:
        """Also the number of workers and the rate: nothing is trained."""
        return super().decided_keys() | {"num_workers", "lr"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row."""
        (config,) = compose_all([[*self.base, *overrides]], config_dir)
        config = without_seed_and_rate(config)
        places = [tuple(getattr(self, name)) for name in ("num_workers", "keep", "gbps", "latency_ms")]
        cells: list[Cell] = []
        for row in self.rows:
            labels: Labels = {"method": row.method, **dict.fromkeys(PLACES, "")}
            job = CollectiveMap(config, row.method, row.scheme, self.num_parameters, *places)
            cells.append(CollectiveMapCell(labels, job))
        return cells
