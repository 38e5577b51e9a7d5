"""The numbers of a study, a cell at a time: values.csv, grouped by its labels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decentral.measurements.values import NOT_REACHED
from decentral.store import AXES, Status
from decentral.study.measure import DAMAGED

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Entry:
    """One cell: what its chosen runs gave."""

    labels: dict[str, str]
    metric: str
    values: tuple[float, ...]
    """Of the runs that have a finite value, by seed."""
    runs: int
    """How many have ended, done or diverged; those whose numbers are damaged are still to come."""
    diverged: int
    at_edge: bool
    """Whether the learning rate of one of them lies at the edge of what was searched."""
    rates: tuple[float, ...]
    """The chosen learning rates, sorted."""
    published: str
    """'algorithm|topology|setting', or ''."""
    wanted: int = 0
    """How many runs there are in the end; 0: not known, or those that there are."""
    never: int = 0
    """How many have ended without a value, as they have not come to the target."""
    by_seed: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The values again, by the seeds of their runs; empty where several runs have one seed."""

    @property
    def unfinished(self) -> str:
        """'1 of 3 runs' where some are still to come, else ''."""
        return f"{self.runs} of {self.wanted} runs" if self.runs < self.wanted else ""

    @property
    def mean(self) -> float:
        """Over the runs that have a value; nan if none has."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def lost(self) -> int:
        """How many have ended without a value, diverged or short of the target: the mean is of the others alone."""
        return self.runs - len(self.values)

    def level(self, larger_is_better: bool) -> float:
        """By what the cell is compared: the mean, or where runs are lost the median, in which they are the worst there
        is."""
        if not self.lost:
            return self.mean
        worst = -math.inf if larger_is_better else math.inf
        return statistics.median([*self.values, *[worst] * self.lost])

    @property
    def std(self) -> float | None:
        """Over the seeds, with n - 1; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None if it is not known."""
        return None if self.std is None else self.std / math.sqrt(len(self.values))

    @property
    def where(self) -> str:
        """As `where` says it."""
        return where(self.labels)


@dataclass(frozen=True)
class Search:
    """A cell of which no run that counts has ended, but runs of the search for its learning rate."""

    labels: dict[str, str]
    rates: Mapping[float, float] = field(hash=False)
    """Learning rate -> mean over the runs that have a finite value; nan if none has."""

    @property
    def where(self) -> str:
        """As `where` says it."""
        return where(self.labels)

    @property
    def words(self) -> str:
        """'0.1 (45.2), 0.2 (no value)': each rate with what it gave."""
        given = {rate: "no value" if math.isnan(mean) else f"{mean:.4g}" for rate, mean in sorted(self.rates.items())}
        return ", ".join(f"{rate:.6g} ({mean})" for rate, mean in given.items())


def where(labels: Mapping[str, str]) -> str:
    """For example 'RelaySGD, dbt, alpha=0.1': words as they are, numbers with their name."""
    return ", ".join(
        value if number_of(value) is None else f"{name}={value}" for name, value in labels.items() if value
    )


def plain(value: Any) -> str:
    """A label's value as it is compared and shown: 1, 1.0 and '1' are the same."""
    number = None if isinstance(value, bool) else number_of(value)
    if number is None or not math.isfinite(number):
        return str(value).strip()
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.10g}"


def number_of(value: Any) -> float | None:
    """A label's value as a number, if it is one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


Wanted = list[tuple[dict[str, str], int]]
"""Labels of cells -> how many runs they have in the end."""


def group(values: pandas.DataFrame, labels: list[str], of: str = "value", wanted: Wanted | None = None) -> list[Entry]:
    """The chosen runs as cells, in the order in which they first appear. `of`: value, worst, mean or averaged."""
    chosen = values[values["chosen"]]
    found: dict[tuple[str, ...], list[Any]] = {}
    for row in chosen.to_dict("records"):
        found.setdefault((*[row[name] for name in labels], row["metric"]), []).append(row)
    named = [(dict(zip(labels, key, strict=False)), key[-1], rows) for key, rows in found.items()]
    return [_entry(own, metric, rows, of, _wanted(own, wanted or [])) for own, metric, rows in named]


def searches(values: pandas.DataFrame, labels: list[str]) -> list[Search]:
    """The cells that are still searched for a learning rate, by the first metric of each."""
    chosen: set[tuple[str, ...]] = set()
    tried: dict[tuple[str, ...], list[Any]] = {}
    for row in values.to_dict("records"):
        key = tuple(row[name] for name in labels)
        if row["chosen"]:
            chosen.add(key)
        elif math.isfinite(number_of(row["rate"]) or math.nan):
            tried.setdefault(key, []).append(row)
    return [
        Search(
            dict(zip(labels, key, strict=True)), _by_rate([row for row in rows if row["metric"] == rows[0]["metric"]])
        )
        for key, rows in tried.items()
        if key not in chosen
    ]


def _by_rate(rows: list[Any]) -> dict[float, float]:
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(float(row["rate"]), []).extend([row["value"]] if math.isfinite(row["value"]) else [])
    return {rate: statistics.fmean(numbers) if numbers else math.nan for rate, numbers in found.items()}


def _wanted(labels: dict[str, str], wanted: Wanted) -> int:
    """Of the cell that these are the labels of.

    A cell's values may have further ones, such as the step, or, if there is no such cell, say what it leaves open, such
    as a bandwidth.
    """
    closed = [({name: word for name, word in own.items() if word}, number) for own, number in wanted]
    for cells in (wanted, closed):
        fitting = [(len(own), number) for own, number in cells if own.items() <= labels.items()]
        if fitting:
            return max(fitting)[1]
    return 0


def _entry(labels: dict[str, str], metric: str, rows: list[Any], of: str, wanted: int) -> Entry:
    whole = [row for row in rows if row["status"] != DAMAGED]
    wanted = wanted if len(whole) == len(rows) else max(wanted, len(rows))
    rows = sorted(whole, key=lambda row: row["seed"])
    rates = [number_of(row["rate"]) for row in rows]
    by_seed = {str(row["seed"]): row[of] for row in rows if math.isfinite(row[of])}
    values = tuple(row[of] for row in rows if math.isfinite(row[of]))
    return Entry(
        labels=labels,
        metric=metric,
        values=values,
        runs=len(rows),
        diverged=sum(row["status"] == "diverged" for row in rows),
        at_edge=any(row["at_edge"] for row in rows),
        rates=tuple(sorted({rate for rate in rates if rate is not None and math.isfinite(rate)})),
        published=next((row["published"] for row in rows if row["published"]), ""),
        wanted=wanted,
        never=sum(_never(row, metric, of) for row in rows),
        by_seed=by_seed if len(by_seed) == len(values) else {},
    )


def _never(row: Any, metric: str, of: str) -> bool:
    """Whether whom the entry is `of` has not come to the target, be it that the model which counts has."""
    place = metric.partition(" to ")[0] in AXES  # 'simulated_s to test accuracy 95 %'
    ended = row["status"] == NOT_REACHED or (row["status"] == Status.done and place)
    return ended and not math.isfinite(row[of])
