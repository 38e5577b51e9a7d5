"""Steps that others have timed on real machines, compared with the clock's predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.links import CollectiveName
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import Labels, Meaning, Value
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store.digests import file_digest
from decentral.store.files import at_home

MEASURED, PREDICTED = "measured (s)", "predicted (s)"
ERROR, CLOSED_FORM = "error of the clock (%)", "error of the closed form (%)"
_QUANTILES = {"median": 0.5, "95th percentile": 0.95}
_COLUMNS = ["algorithm", "period_steps", "link", "workers", "parameters", "steps", "steps_used", "step_ms"]
_BYTES = 4  # of a number


class Cell(NamedTuple):
    """Runs of an algorithm that differ only in their randomness."""

    period_steps: int
    link: str
    workers: int
    parameters: int
    steps: int
    steps_used: int
    measured_s: float
    """Mean of the last `steps_used` steps."""

    @property
    def share(self) -> float:
        """Return the share of the used steps that end with a communication."""
        first = self.steps - self.steps_used
        return (self.steps // self.period_steps - first // self.period_steps) / self.steps_used


@dataclass
class MeasuredSteps(Measurement):
    """Prediction of the time per step of other people's runs of a method, from the time of a single step, the number of
    parameters, the period, and the nominal speed of the link.

    Cells of an algorithm are predicted with two parameters of links (`links.stall_gbps`, `links.host_gbps`). These are
    fitted to the cells of all *other* algorithms, by least squares of the relative errors of

        step_s + share (latencies + c N (1/b + stall/b^2 + 1/host))

    where `share` is the share of steps that communicate, and c the factor of a row's N bytes in the time of the
    algorithm's collective. The prediction is the simulated time of config.algo with these links, for the same steps.
    The closed form for comparison assumes a ring and has no parameter: step_s + 2 (P - 1)/P N/b / period.

    A line for each cell: {"period_steps", "link", "predicted_s"}.

    algorithm    algorithm in the file; '': none, but the errors of all rows together
    collective   collective of its all-reduce
    file         a CSV file with columns algorithm, period_steps, link, workers, parameters, steps, steps_used, and
                 step_ms, the mean over the last steps_used of the steps; '': steps.csv, which comes with decentral
    step_s       time of a step without communication
    links        name of a link -> its nominal bandwidth in Gbit/s
    """

    name: str = "measured_steps"
    algorithm: str = ""
    collective: str = "ring"
    file: str = ""
    step_s: float = setting(1.0, above=0)
    links: dict[str, float] = field(default_factory=dict)
    others: Sequence[MeasuredSteps] = field(default_factory=list, metadata={"inner": True})
    """Rows of other algorithms."""

    folder: ClassVar[str] = "measured_steps"
    row_labels: ClassVar[tuple[str, ...]] = ("method",)
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "num_workers", "steps"})
    meanings: ClassVar[dict[str, Meaning]] = {
        MEASURED: Meaning(None, "s"),
        PREDICTED: Meaning(None, "s"),
        ERROR: Meaning(None, "%"),
        CLOSED_FORM: Meaning(None, "%"),
    }

    def check(self) -> None:
        """Check that there are machines and cells."""
        if not isinstance(self.config.cluster, Machines):
            raise ConfigError("measured_steps needs configurable links: use cluster=machines.")
        if self.algorithm and not self.measured():
            raise ConfigError(f"algorithm={self.algorithm} has no cell in {self.file or 'steps.csv'}.")

    def beside(self, column: Sequence[Self]) -> Self:
        """Return the measurement with the other rows."""
        others = [one for one in column if one.algorithm and one.algorithm != self.algorithm]
        return replace(self, others=others if self.algorithm else [one.beside(column) for one in others])

    def parameters(self) -> dict[str, Any]:
        """Return the predicted cells and the inputs of the prediction."""
        fitted = {one.algorithm: one.collective for one in self.others}
        own = {"algorithm": self.algorithm, "collective": self.collective, "step_s": self.step_s, "links": self.links}
        return {**own, "others": fitted, "file": file_digest(at_home(self.file)) if self.file else "steps.csv"}

    def measured(self) -> list[Cell]:
        """Return the cells of the algorithm, in the order of periods, with the links as in `links`."""
        return cells_of(self.file, self.algorithm, tuple(self.links))

    def parts(self) -> list[dict[str, Any]]:
        """Return a part for each cell."""
        return [{"period_steps": cell.period_steps, "link": cell.link} for cell in self.measured()]

    def jobs(self) -> list[Job]:
        """Return its own jobs, or those of all others."""
        return [self] if self.algorithm else [*self.others]

    def fitted(self) -> tuple[float, float]:
        """Return the parameters fitted to the cells of all other algorithms: stall, in Gbit/s, and 1 / host."""
        factors, rest = [], []
        for one in self.others:
            collective = CollectiveName[one.collective].value
            for cell in one.measured():
                gbps = one.links[cell.link]
                volume = cell.share * collective.seconds(cell.workers, _BYTES * cell.parameters, 0.0, 8e-9)
                known = self.step_s + cell.share * collective.seconds(cell.workers, 0.0, self._latency_s, 0.0)
                factors.append([volume / gbps**2 / cell.measured_s, volume / cell.measured_s])
                rest.append((cell.measured_s - known - volume / gbps) / cell.measured_s)
        found = np.maximum(np.linalg.lstsq(np.array(factors), np.array(rest), rcond=None)[0], 0.0)
        return float(found[0]), float(found[1])

    def line(self, period_steps: int, link: str) -> dict[str, Any]:
        """Return the clock's prediction for the cell."""
        from decentral.training.timing import timed

        cell = next(cell for cell in self.measured() if (cell.period_steps, cell.link) == (period_steps, link))
        stall_gbps, per_gbps = self.fitted()
        cluster = self.config.cluster
        assert isinstance(cluster, Machines)
        links = replace(
            cluster.links,
            bandwidth_gbps=self.links[link],
            stall_gbps=stall_gbps,
            host_gbps=1 / per_gbps if per_gbps else None,
            collective=CollectiveName[self.collective],
        )
        algo = replace(
            self.config.algo, **({"period_steps": period_steps} if hasattr(self.config.algo, "period_steps") else {})
        )
        machines = replace(
            cluster, compute=ComputeTimes(mean_s=self.step_s), links=links, num_parameters=cell.parameters
        )
        config = replace(self.config, algo=algo, cluster=machines, num_workers=cell.workers)
        until, before = (
            timed(prepare(config), steps, cell.parameters).simulated_s if steps else 0.0
            for steps in (cell.steps, cell.steps - cell.steps_used)
        )
        return {
            "predicted_s": (until - before) / cell.steps_used,
            "stall_gbps": stall_gbps,
            "host_gbps": 1 / per_gbps if per_gbps else None,
        }

    def cells(self) -> list[Labels]:
        """Return a cell for each measured one, and one for all of them together."""
        parts: list[Labels] = [*self.parts()] if self.algorithm else []
        together: list[Labels] = [{"period_steps": "all", "link": each} for each in _QUANTILES]
        return [self.labels | labels for labels in [*parts, *together]]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return both errors of a cell, with signs; for several cells, quantiles of absolute errors."""
        if labels["link"] in _QUANTILES:
            rows = [self] if self.algorithm else self.others
            each = [row.numbers(cell) for row in rows for cell in row.measured()]
            for metric in (ERROR, CLOSED_FORM):
                sizes = [abs(numbers[metric]) for numbers in each]
                yield Value(labels, float(np.quantile(sizes, _QUANTILES[str(labels["link"])])), metric, 0)
            return
        wanted = labels["period_steps"], labels["link"]
        cell = next(cell for cell in self.measured() if (cell.period_steps, cell.link) == wanted)
        for metric, number in self.numbers(cell).items():
            yield Value(labels, number, metric, 0)

    def numbers(self, cell: Cell) -> dict[str, float]:
        """Return the known numbers of a cell."""
        lines = {(line["period_steps"], line["link"]): line["predicted_s"] for line in self.found()}
        predicted = lines[cell.period_steps, cell.link]
        P, N = cell.workers, _BYTES * cell.parameters
        closed = self.step_s + 2 * (P - 1) / P * N * 8e-9 / self.links[cell.link] / cell.period_steps
        errors = {ERROR: predicted, CLOSED_FORM: closed}
        relative = {metric: 100 * (seconds / cell.measured_s - 1) for metric, seconds in errors.items()}
        return {**relative, MEASURED: cell.measured_s, PREDICTED: predicted}

    @property
    def _latency_s(self) -> float:
        cluster = self.config.cluster
        assert isinstance(cluster, Machines)
        return cluster.links.latency_s or 0.0


@cache
def cells_of(name: str, algorithm: str, links: tuple[str, ...]) -> list[Cell]:
    """Return the cells of an algorithm over these links, with repeats as one. Raises ConfigError if a column is
    missing."""
    import pandas as pd

    path = at_home(name) if name else files("decentral") / "published" / "steps.csv"
    with path.open() as file:  # type: ignore[union-attr]
        frame = pd.read_csv(file)
    if missing := [column for column in _COLUMNS if column not in frame]:
        raise ConfigError(f"file={name} has no column {', '.join(missing)}: it needs {', '.join(_COLUMNS)}.")
    rows = frame[(frame.algorithm == algorithm) & frame.link.isin(links)]
    keys = [column for column in _COLUMNS[1:] if column != "step_ms"]
    means = rows.groupby(keys, sort=True).step_ms.mean()
    cells = [Cell(*key, seconds / 1e3) for key, seconds in means.items()]  # type: ignore[misc, call-arg]
    return sorted(cells, key=lambda cell: (cell.period_steps, links.index(cell.link)))
