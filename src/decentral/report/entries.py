"""Cells of a study: the rows of values.csv, grouped by their labels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decentral.measurements.values import NOT_REACHED
from decentral.store import AXES, Status

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Entry:
    """The numbers of one cell from the runs that count."""

    labels: dict[str, str]
    metric: str
    values: tuple[float, ...]
    """The finite values, in the order of the seeds."""
    runs: int
    """Number of ended runs, done or diverged."""
    diverged: int
    at_edge: bool
    """True if the learning rate of any of them is at the edge of the searched range."""
    rates: tuple[float, ...]
    """The chosen learning rates, sorted."""
    published: str
    """'algorithm|topology|setting', or ''."""
    wanted: int = 0
    """Final number of runs; 0: unknown, or the current ones."""
    never: int = 0
    """Number of runs that ended without reaching the target."""
    by_seed: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The values again, by the seeds of their runs; empty where several runs have one seed."""

    @property
    def unfinished(self) -> str:
        """'1 of 3 runs' where some are still to come, else ''."""
        return f"{self.runs} of {self.wanted} runs" if self.runs < self.wanted else ""

    @cached_property
    def mean(self) -> float:
        """The mean over the runs that have a value; nan if none has."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def lost(self) -> int:
        """Number of runs without a value, diverged or short of the target: the mean excludes them."""
        return self.runs - len(self.values)

    def level(self, larger_is_better: bool) -> float:
        """Return the number by which the cell is compared: the mean, or with lost runs the median, where a lost run is
        worse than any other."""
        if not self.lost:
            return self.mean
        worst = -math.inf if larger_is_better else math.inf
        return statistics.median([*self.values, *[worst] * self.lost])

    @cached_property
    def std(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None if it is unknown."""
        return None if self.std is None else self.std / math.sqrt(len(self.values))


def where(labels: Mapping[str, str]) -> str:
    """Format labels, for example 'RelaySGD, dbt, alpha=0.1': words as values only, numbers with their name."""
    return ", ".join(
        value if number_of(value) is None else f"{name}={value}" for name, value in labels.items() if value
    )


def plain(value: Any) -> str:
    """Return a label's value in canonical form: 1, 1.0 and '1' are the same."""
    number = None if isinstance(value, bool) else number_of(value)
    if number is None or not math.isfinite(number):
        return str(value).strip()
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.10g}"


def number_of(value: Any) -> float | None:
    """Return a label's value as a number; None if it is not one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


Wanted = list[tuple[dict[str, str], int]]
"""Labels of cells, each with the final number of runs."""


def group(values: pandas.DataFrame, labels: list[str], of: str, wanted: Wanted) -> list[Entry]:
    """Group runs into cells, in the order of their first appearance. `of`: value, worst, mean or averaged.

    A cell's values may have more labels than the cell in `wanted`, such as the step or a bandwidth.
    """
    closed = [({name: word for name, word in own.items() if word}, number) for own, number in wanted]
    entries = []
    keys = [*labels, "metric"]
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {
        key: [] for key in values[keys].itertuples(index=False, name=None)
    }
    for row in values.sort_values("seed", kind="stable").to_dict("records"):
        cells[tuple(row[key] for key in keys)].append(row)
    for (*key, metric), rows in cells.items():
        own = dict(zip(labels, key, strict=True))
        fitting = [(len(cell), number) for cell, number in closed if cell.items() <= own.items()]
        with_value = [row for row in rows if math.isfinite(row[of])]
        to_reach = metric.partition(" to ")[0] in AXES  # 'simulated_s to test accuracy 95 %': who is done may have none
        short = [NOT_REACHED, Status.done] if to_reach else [NOT_REACHED]
        by_seed = {str(row["seed"]): row[of] for row in with_value}
        entries.append(
            Entry(
                labels=own,
                metric=metric,
                values=tuple(row[of] for row in with_value),
                runs=len(rows),
                diverged=sum(row["status"] == Status.diverged for row in rows),
                at_edge=any(row["at_edge"] for row in rows),
                rates=tuple(sorted({row["rate"] for row in rows if math.isfinite(row["rate"])})),
                published=next((row["published"] for row in rows if row["published"]), ""),
                wanted=max(fitting, default=(0, 0))[1],
                never=sum(row["status"] in short and not math.isfinite(row[of]) for row in rows),
                by_seed=by_seed if len(by_seed) == len(with_value) else {},
            )
        )
    return entries
