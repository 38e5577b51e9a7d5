"""How long averaging takes, over the number of workers and the size of their models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from decentral.config.composition import compose_all
from decentral.errors import ConfigError, suggest
from decentral.jobs.exchange_times import ExchangeTimes, Timed
from decentral.study.job_cell import JobCell
from decentral.study.rows import Row
from decentral.study.study import Cell, Labels, Study, Value

WALL_MS, CPU_MS = "wall time (ms)", "CPU time per worker (ms)"


@dataclass
class ExchangeRow(Row):
    """A way to average.

    verb                what of the network is timed: mix (with the topology's matrices) or mean (an all-reduce)
    num_workers         if they are not the study's
    """

    verb: Literal["mix", "mean"] = "mix"
    num_workers: list[int] = field(default_factory=list)


@dataclass
class Exchanges(Study):
    """`rows` over `num_workers` and `megabytes`; all rows are timed in turn in the same processes, a worker in each.

    rows         the ways to average
    num_workers  numbers of workers; as many processes
    megabytes    sizes of a worker's row, in 10^6 bytes of float32
    baseline     the method that the ratios are to, in the same round
    rounds       how often each is timed: each is a value of its own, with its number as `seed`
    warm_up      rounds before that
    """

    name: str = "exchanges"
    rows: list[ExchangeRow] = field(default_factory=list)
    num_workers: list[int] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    baseline: str = ""
    rounds: int = 10
    warm_up: int = 2

    timed: ClassVar[frozenset[str]] = frozenset({"network.transport"})

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warm_up < 0:
            raise ConfigError(f"rounds={self.rounds} has to be at least 1, and warm_up={self.warm_up} at least 0.")
        if min(self.num_workers, default=2) < 2 or min(self.megabytes, default=1) <= 0:
            raise ConfigError(
                f"num_workers={self.num_workers} have to be at least 2, and megabytes={self.megabytes} above 0."
            )
        methods = [row.method for row in self.rows]
        if self.baseline not in methods:
            raise ConfigError(f"baseline={self.baseline} is the method of no row.{suggest(self.baseline, methods)}")
        if len(set(methods)) < len(methods):
            raise ConfigError(f"rows: two have the same method, of {', '.join(methods)}: give each its own.")

    def decided_keys(self) -> set[str]:
        """Also the numbers of workers and processes."""
        return super().decided_keys() | {"num_workers", "processes"}

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Size by size, row by row; all rows with the same number of workers share a job."""
        points = [(n, row) for n in self.num_workers for row in self.rows if n in (row.num_workers or self.num_workers)]
        commands = [[*self.base, *row.base, *overrides, f"num_workers={n}", f"processes={n}"] for n, row in points]
        configs = compose_all(commands, config_dir)
        elsewhere = next((config.device for config in configs if config.device.startswith("cuda")), None)
        if elsewhere is not None:
            raise ConfigError(f"device={elsewhere} cannot be used: exchanges are timed on the CPU; leave it out.")
        jobs: dict[int, ExchangeTimes] = {}
        for n in self.num_workers:
            timed = tuple(
                Timed(row.method, config, row.verb) for (m, row), config in zip(points, configs, strict=True) if m == n
            )
            sizes = tuple(self.megabytes)
            jobs[n] = ExchangeTimes(timed[0].config, f"{n} workers", timed, sizes, self.rounds, self.warm_up)
        return [
            ExchangeCell(_labels(row, size, n), jobs[n], size, self.baseline)
            for size in self.megabytes
            for row in self.rows
            for n in row.num_workers or self.num_workers
            if n in jobs
        ]


def _labels(row: ExchangeRow, megabytes: float, num_workers: int) -> Labels:
    return {"method": row.method, "topology": row.topology, "megabytes": megabytes, "num_workers": num_workers}


@dataclass
class ExchangeCell(JobCell[ExchangeTimes]):
    """One way to average, for one size and number of workers; a value of each metric for each round."""

    megabytes: float
    baseline: str

    @property
    def sharing(self) -> int:
        """Every way to average, for every size."""
        return len(self.job.megabytes) * len(self.job.exchanges)

    def read(self) -> Iterator[Value]:
        """Times, and their ratios to the baseline's in the same round."""
        times = self.job.times()[self.megabytes]
        for clock, metric, workers in (("wall", WALL_MS, 1), ("CPU", CPU_MS, self.job.num_workers)):
            seconds = times[f"{clock.lower()}_s"]
            own, baseline = seconds[str(self.labels["method"])], seconds[self.baseline]
            numbers = {
                metric: [1e3 * value / workers for value in own],
                f"{clock} time / {self.baseline}'s": [a / b for a, b in zip(own, baseline, strict=True)],
            }
            for name, values in numbers.items():
                for number, value in enumerate(values):
                    yield Value(self.labels, value, name, number)
