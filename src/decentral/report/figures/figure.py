"""The contract of a figure of a study."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from decentral.report.results import Results


class Line(NamedTuple):
    """One line of a panel. `low` and `high` bound its band, None if it has none."""

    panel: str
    key: tuple[str, ...]
    """The values of the labels in `lines`."""
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    points: bool = False
    """Whether each value is a measurement of its own, with a marker."""
    thin: bool = False
    """One of many that are not told apart, such as single workers."""
    among: str = ""
    """What its values are the center of, one of them: 'seed'."""
    least: int = 1
    most: int = 1
    """How many of these there are, at the place with the fewest and at the one with the most."""
    lost: bool = False
    """Whether some of these have no value somewhere: there the center is the median, in which they are the worst."""


@dataclass
class StudyFigure(ABC):
    """A dataclass whose fields are its keys in the YAML; the subclass has a `name`, which is its `kind`.

    file      name of the figure (`name` in the YAML)
    metric    which of the study's metrics; '': the first
    panels    a label: one panel per value of it; '': one panel
    lines     labels that tell lines apart
    center    of what is not told apart (seeds): mean or median; of numbers of runs the median where some of them have
              none, as they diverged or never got to the target: there these are the worst (as in the tables' verdicts)
    spread    band around it: none, std (standard deviation), range, or confidence: where the mean lies with 90 %
              (Student's t, as if the series were independent and normal)
    among     what these are called in the legend, one of them; '': seed (the report's `repeats`), or the label that
              tells them apart
    only      labels and the values that are drawn, for example {alpha: [0.01]}
    title     '': the study's
    """

    file: str = "figure"
    title: str = ""
    caption: str = ""
    metric: str = ""
    panels: str = ""
    lines: list[str] = field(default_factory=list)
    only: dict[str, list[Any]] = field(default_factory=dict)
    center: Literal["mean", "median"] = "mean"
    spread: Literal["none", "std", "range", "confidence"] = "none"
    among: str = ""
    logx: bool = False
    logy: bool = False
    xlabel: str = ""
    ylabel: str = ""
    xlim: list[float | None] = field(default_factory=list)
    ylim: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key in ("xlim", "ylim"):
            if len(getattr(self, key)) not in (0, 2):
                raise ConfigError(
                    f"the figure '{self.file}' has a {key} that is not two numbers (null for one of them)."
                )

    @abstractmethod
    def data(self, results: Results) -> list[Line]:
        """What is drawn. Raises ConfigError if a label or metric does not exist."""

    @abstractmethod
    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """The matplotlib Figure of what `data` gave, as wide as `output` says."""

    def seeds(self, results: Results) -> int:
        """How many seeds there are in it."""
        return int(results.values[results.values["chosen"]]["seed"].nunique())

    def over(self, panel: str) -> str:
        """What the x axis of a panel is: an axis of the metrics, or its name."""
        return str(getattr(self, "x", ""))

    def published(self, results: Results) -> list[Line]:
        """The paper's numbers, where they can be drawn beside ours."""
        return []

    def selected(self, table: pandas.DataFrame, results: Results, extra: tuple[str, ...] = ()) -> pandas.DataFrame:
        """The rows of one metric and of `only`. Raises ConfigError for a label or metric that the study does not
        have."""
        limited = self.limited(table, results, extra)
        metrics = list(dict.fromkeys(table["metric"]))
        if self.metric and metrics and self.metric not in metrics and not results.values.empty:
            where = f"study {results.study}: the figure '{self.file}'"
            raise ConfigError(f"{where} shows metric={self.metric}.{suggest(self.metric, metrics)}")
        return limited[limited["metric"] == (self.metric or (metrics[0] if metrics else ""))]

    def limited(self, table: pandas.DataFrame, results: Results, extra: tuple[str, ...] = ()) -> pandas.DataFrame:
        """The rows of `only`, of all metrics. Raises ConfigError for a label that the study does not have."""
        from decentral.report.entries import plain

        if results.values.empty:
            return table.iloc[:0]
        where = f"study {results.study}: the figure '{self.file}'"
        for label in (*self.lines, *([self.panels] if self.panels else ()), *self.only, *extra):
            if label not in results.labels:
                raise ConfigError(f"{where} uses a label '{label}'.{suggest(label, results.labels)}")
        for label, values in self.only.items():
            table = table[table[label].isin([plain(value) for value in values])]
        return table

    def parts(self, table: pandas.DataFrame) -> Iterator[tuple[str, tuple[str, ...], pandas.DataFrame]]:
        """(panel, line, rows) of each combination of those labels, in the order of the rows."""
        labels = [*([self.panels] if self.panels else []), *self.lines]
        for key, rows in table.groupby(labels, sort=False) if labels else [((), table)]:
            values = tuple(str(value) for value in key)
            yield (values[0], values[1:], rows) if self.panels else ("", values, rows)

    def by_place(self, rows: pandas.DataFrame, results: Results) -> pandas.DataFrame:
        """The values of runs that have ended, a row for each x and a column for each run there.

        A run without a value is infinitely bad, if it is known which end that is; where that holds for half of them or
        more, there is no row.
        """
        larger = results.larger_is_better(self.metric or results.metric)
        worst = math.nan if larger is None else -math.inf if larger else math.inf
        rows = rows.assign(
            number=rows.groupby("x").cumcount(), value=rows["value"].where(rows["value"].abs() < math.inf, worst)
        )
        wide = rows.pivot(index="x", columns="number", values="value")
        return wide[wide.median(axis=1).abs() < math.inf]

    def aggregate(self, table: pandas.DataFrame) -> tuple[list[float], list[float] | None, list[float] | None]:
        """Center and bounds of each row of `table`, whose columns are the series that are not told apart.

        A row in which one is infinite has the median for its center, and no band.
        """
        lost, median = (table.abs() == math.inf).any(axis=1), table.median(axis=1)
        table = table.mask(lost)
        center = (median if self.center == "median" else table.mean(axis=1)).where(~lost, median)
        if self.spread == "none" or table.shape[1] < 2:
            return center.tolist(), None, None
        least, most = table.min(axis=1).fillna(center), table.max(axis=1).fillna(center)
        if self.spread == "range":
            return center.tolist(), least.tolist(), most.tolist()
        half = table.std(axis=1)
        if self.spread == "confidence":
            half = half * _half_width(table.count(axis=1))
        half = half.fillna(0.0)
        low = center - half
        if self.logy:  # a band that reaches below zero ends at the smallest value
            low = low.where(low > 0, least)
        return center.tolist(), low.tolist(), (center + half).tolist()

    def counted(self, part: pandas.DataFrame, wide: pandas.DataFrame, results: Results) -> dict[str, Any]:
        """`among`, `least` and `most` of the line of `part`, which `aggregate` makes of `wide`."""
        counts = wide.notna().sum(axis=1)
        most = int(counts.max()) if len(counts) else 0
        repeats = results.spec.repeats
        labels = [label for label in results.labels if part[label].nunique() == most]
        among = repeats if part["seed"].nunique() == most else self.among or next(iter(labels), "run")
        lost = bool((wide.abs() == math.inf).any(axis=None))
        return {"among": among, "least": int(counts.min()) if most else 0, "most": most, "lost": lost}


def _half_width(counts: pandas.Series) -> pandas.Series:
    """t / sqrt(n) with the 95 % quantile t of Student's distribution, n - 1 degrees of freedom; nan for n = 1."""
    from scipy.stats import t

    return counts.map(lambda n: float(t.ppf(0.95, n - 1)) / n**0.5 if n > 1 else float("nan"))
