"""Average consensus against time, with a worker that is slower than the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

from decentral.config.composition import compose_all
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.jobs.computation import check_losses, without_seed_and_rate
from decentral.jobs.race import Race, RaceSettings
from decentral.study.job_cell import JobCell
from decentral.study.study import Cell, Curve, Labels, Point, Study, Value

TURNS, END = "turns", "error at the end"
P_ERROR, MASS_ERROR, SMALLEST_P = "|sum of p - n|", "relative error of the sum of x", "smallest p on the way"
ERROR = "relative error"
METHODS = {True: "asynchronous push-sum", False: "synchronous averaging"}
_POINTS = 100  # of a curve


@dataclass
class RacedGraph:
    """A row: the topology as tables and figures show it, and overrides that choose it."""

    topology: str = ""
    base: list[str] = field(default_factory=list)


@dataclass
class StragglerCell(JobCell[Race]):
    """One method on one graph with one slowdown, for all seeds; the cells of a graph share their job."""

    slowdown: float
    asynchronous: bool
    target: float
    axis: str = "wall_s"
    """Of the curves: where seconds belong."""

    @property
    def sharing(self) -> int:
        """The slowdowns, with each method."""
        return len(self.job.slowdowns) * len(METHODS)

    def read(self) -> Iterator[Value]:
        """When the worst of the fast workers, and the straggler, have come to the target for good, how many turns they
        took, and where they are when all has come home; and what became of the sums."""
        for line in self._lines():
            for who, workers in _groups(line["workers"]).items():
                reached = max(_reached(one, self.target) for one in workers)
                turns = sum(len(one["errors"]) for one in workers) / len(workers)
                time = self._value(who, f"seconds to a relative error of {self.target:g}", reached, line)
                yield time if math.isfinite(reached) else time._replace(value=math.nan, status="not reached")
                yield self._value(who, TURNS, turns, line)
                yield self._value(who, END, max(one["end"] for one in workers), line)
            yield self._value("", MASS_ERROR, line["mass_error"], line)
            if self.asynchronous:
                yield self._value("", P_ERROR, line["p_error"], line)
                yield self._value("", SMALLEST_P, min(one["smallest_p"] for one in line["workers"]), line)

    def read_curves(self) -> Iterator[Curve]:
        """The error of the worst of the fast workers, and of the straggler, over seconds."""
        duration = self.job.settings.duration_s
        times = [duration * number / _POINTS for number in range(1, _POINTS + 1)]
        for line in self._lines():
            for who, workers in _groups(line["workers"]).items():
                errors = [(t, max(_error_at(one, t) for one in workers)) for t in times]
                points = [Point(error, {self.axis: t}) for t, error in errors if math.isfinite(error)]
                yield Curve(self.labels | {"who": who}, ERROR, "", line["seed"], points)

    def _lines(self) -> list[dict[str, Any]]:
        return self.job.of(self.slowdown, self.asynchronous)

    def _value(self, who: str, metric: str, value: float, line: dict[str, Any]) -> Value:
        return Value(self.labels | {"who": who}, value, metric, line["seed"])


@dataclass
class Straggler(Study):
    """Asynchronous push-sum beside synchronous averaging on the graphs of `rows`, with the last of num_workers workers
    slower by each of `slowdowns`; a process for each worker. See `Race`.

    pause_s      of work in each turn of the others
    duration_s   of the whole
    target       the relative error whose time is a value
    dimension    of the vectors
    """

    name: str = "straggler"
    rows: list[RacedGraph] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    pause_s: float = 0.005
    duration_s: float = 4.0
    target: float = 1e-6
    dimension: int = 1000

    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})
    axis: ClassVar[str] = "wall_s"

    def __post_init__(self) -> None:
        for key in ("pause_s", "duration_s", "target"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"{key}={getattr(self, key):g} makes no sense: it has to be above 0.")
        if not all(slowdown >= 1 for slowdown in self.slowdowns):
            raise ConfigError(f"slowdowns={self.slowdowns} have to be at least 1.")

    def decided_keys(self) -> set[str]:
        """Also the rate (there are no gradients), and the processes: one for each worker."""
        return super().decided_keys() | {"lr", "processes", "device"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Row by row, first push-sum."""
        configs = compose_all([[*self.base, *row.base, *overrides] for row in self.rows], config_dir)
        cells: list[Cell] = []
        for row, config in zip(self.rows, configs, strict=True):
            _check(config)
            job = self.job(without_seed_and_rate(config), f"race, {row.topology}")
            for (asynchronous, method), slowdown in product(METHODS.items(), self.slowdowns):
                labels: Labels = {"method": method, "topology": row.topology, "slowdown": slowdown, "who": ""}
                cells.append(StragglerCell(labels, job, slowdown, asynchronous, self.target, self.axis))
        return cells

    def job(self, config: Config, title: str) -> Race:
        """A race between processes, one for each worker."""
        config = replace(config, processes=str(config.num_workers), device="cpu")
        return Race(config, title, tuple(self.seeds), tuple(self.slowdowns), self.settings)

    @property
    def settings(self) -> RaceSettings:
        """Of every race."""
        return RaceSettings(self.pause_s, self.duration_s, self.dimension)


def _check(config: Config) -> None:
    """Refuse what cannot be raced. Raises ConfigError."""
    check_losses(config)
    assert config.num_workers is not None
    if config.num_workers < 2:
        raise ConfigError("num_workers=1 cannot be used: one worker waits for nobody, use 2 or more.")
    if config.rounds().period > 1:
        raise ConfigError(
            f"topology={config.topology.name} changes from round to round, but there are no rounds where nobody waits: "
            "use a static one, such as chain."
        )


def _groups(workers: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The last one is the straggler."""
    return {"fast workers": workers[:-1], "straggler": workers[-1:]}


def _reached(one: dict[str, Any], target: float) -> float:
    """Seconds until a worker's error is below the target for good; infinite if it is not."""
    above = [number for number, error in enumerate(one["errors"]) if not error <= target]
    first = above[-1] + 1 if above else 0
    return float(one["seconds"][first]) if first < len(one["seconds"]) else math.inf


def _error_at(one: dict[str, Any], t: float) -> float:
    """A worker's error at a time: that of its last turn; infinite before the first."""
    known = [error for second, error in zip(one["seconds"], one["errors"], strict=True) if second <= t]
    return float(known[-1]) if known else math.inf
