"""The interface of a study's figure, the description of its lines and bands, and the storage of figures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import yaml

from decentral.config.parsing import convert
from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.entries import number_of, plain

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from decentral.report.results import Results

WIDTHS = {"column": 3.25, "page": 6.75}
"""Inches of a column, and of a page, of a paper with two columns."""
METRIC = "metric"
"""The value of `panels` that gives each metric a panel."""
Format = Literal["png", "svg", "pdf"]
FORMATS = get_args(Format)
KEYS = ("figures.title", "figures.width", "figures.format")
_SPREADS = {
    "std": "\N{PLUS-MINUS SIGN} 1 standard deviation of",
    "range": "lowest to highest of",
    "confidence": "90 % confidence interval of the {center} of",
}


@dataclass(frozen=True)
class Output:
    """Settings `figures.title`, `figures.width` and `figures.format` of decentral-report.

    title      whether a figure has a title and a line on its origin: in a paper, the caption has them
    width      inches; None: as wide as its panels need, on a screen
    formats    file formats, see FORMATS
    """

    title: bool = True
    width: float | None = None
    formats: tuple[str, ...] = ("png",)

    @property
    def small(self) -> bool:
        """True if letters, lines and markers have the size that they have in print."""
        return self.width is not None


SCREEN = Output()
"""The default output."""


def output(settings: Mapping[str, str]) -> Output:
    """Parse the command-line settings in KEYS. Raises ConfigError with the key and valid values.

    >>> output({"figures.width": "column", "figures.format": "[pdf]"})
    Output(title=True, width=3.25, formats=('pdf',))
    """
    title = convert(bool, yaml.safe_load(settings.get("figures.title", "true")), "figures.title")
    text, wanted = settings.get("figures.width", "screen"), "screen, column, page, or inches from 2 to 20"
    width = None if text == "screen" else WIDTHS.get(text) or convert(float, text, "figures.width", wanted)
    if width is not None and not 2 <= width <= 20:
        raise ConfigError(f"figures.width={text} is out of range: use {wanted}.")
    names = [name.strip(" '\"") for name in settings.get("figures.format", "png").strip("[]").split(",")]
    convert(list[Format], names, "figures.format")
    return Output(title, width, tuple(name for name in FORMATS if name in names))


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
    """True if each value is a separate measurement, with a marker."""
    stairs: bool = False
    """True if a value holds from its place until the next one."""
    thin: bool = False
    """One of many undistinguished lines, such as single workers."""
    among: str = ""
    """The unit that its values aggregate, in the singular: 'seed'."""
    least: int = 1
    most: int = 1
    """How many of these there are, at the place with the fewest and at the one with the most."""
    kind: str = ""
    """Of a paper's numbers: published or reference."""
    lost: bool = False
    """True if some of these have no value somewhere: there the center is the median, in which they are the worst."""
    reached: float | None = None
    """The place at which it reaches the figure's target; None if it does not, or there is none."""


@dataclass
class StudyFigure(ABC):
    """A dataclass whose fields are its keys in the YAML; the subclass has a `name`, which is its `kind`.

    file      name of the figure (`name` in the YAML)
    metric    which of the study's metrics; '': the first
    panels    label with one panel per value; metric: one panel per metric of the curves; '': one panel
    lines     labels that distinguish lines
    center    center of repeated values (seeds): mean or median; the median where some runs have no value because they
              diverged or never reached the target, which ranks these as worst (as in the tables' verdicts)
    spread    band around it: none, std (standard deviation), range, or confidence: 90 % confidence interval of the mean
              (Student's t, as if the series were independent and normal)
    among     name of one repeated value in the legend; '': seed (the report's `repeats`), or the label that
              distinguishes them
    only      labels and their values to draw, for example {alpha: [0.01]}
    logy      whether the y axis is logarithmic; null: in curves of a metric that falls over more than two decades
    names     value of a label -> its display name; others are shown with spaces for underscores
    title     '': the study's
    """

    file: str = "figure"
    title: str = ""
    caption: str = ""
    metric: str = ""
    panels: str = ""
    lines: list[str] = field(default_factory=list)
    only: dict[str, list[Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    center: Literal["mean", "median"] = "mean"
    spread: Literal["none", "std", "range", "confidence"] = "none"
    among: str = ""
    logx: bool = False
    logy: bool | None = None
    xlabel: str = ""
    ylabel: str = ""
    xlim: list[float | None] = field(default_factory=list)
    ylim: list[float | None] = field(default_factory=list)
    drawn_as: ClassVar[str] = ""
    """What the center of repeated values is, where the caption tells that from a band."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Keys without which there is nothing to draw."""

    def __post_init__(self) -> None:
        self.logs = set[str]()  # metrics of curves that fall over more than two decades
        for key in self.needs:
            if not getattr(self, key):
                raise ConfigError(f"the figure '{self.file}' needs `{key}`.")
        for key in ("xlim", "ylim"):
            if len(getattr(self, key)) not in (0, 2):
                raise ConfigError(
                    f"the figure '{self.file}' has a {key} other than two numbers: give two (null for no limit)."
                )

    @abstractmethod
    def data(self, results: Results) -> list[Line]:
        """Return the lines to draw. Raises ConfigError if a label or metric does not exist."""

    @abstractmethod
    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Draw the lines of `data` as a matplotlib Figure, with the width of `output`."""

    def seeds(self, results: Results) -> int:
        """Return the number of its seeds."""
        return int(results.chosen["seed"].nunique())

    def over(self, panel: str) -> str:
        """Return the x axis of a panel: an axis of the metrics, or its name."""
        return str(getattr(self, "x", ""))

    def shown(self, results: Results, panel: str = "") -> str:
        """Return the metric that is drawn."""
        return panel if self.panels == METRIC else self.metric or results.metric

    def is_log(self, panel: str) -> bool:
        """Return whether the y axis is logarithmic."""
        return bool(self.logy) or (panel in self.logs if self.panels == METRIC else bool(self.logs))

    def published(self, results: Results) -> list[Line]:
        """Return the paper's numbers, if they can be drawn next to ours."""
        return []

    def called(self, label: str, value: str) -> str:
        """Return the name of a label's value in the figure: as `names` say, or in readable form."""
        said = f"{label}: {value}" if label == "availability" or value == "none" else style.pretty(label, value)
        return self.names.get(value) or (said if "." in label else said.replace("_", " "))

    def selected(self, table: pandas.DataFrame, results: Results, extra: tuple[str, ...] = ()) -> pandas.DataFrame:
        """The rows of one metric and of `only`. Raises ConfigError for a label or metric that the study does not
        have."""
        limited = self.limited(table, results, extra)
        metrics = list(dict.fromkeys(table["metric"]))
        if self.metric and metrics and self.metric not in metrics and not results.values.empty:
            where = f"study {results.study}: the figure '{self.file}'"
            raise ConfigError(f"{where} shows metric={self.metric}.{suggest(self.metric, metrics)}")
        if self.panels == METRIC:
            return limited
        return limited[limited["metric"] == (self.metric or (metrics[0] if metrics else ""))]

    def limited(self, table: pandas.DataFrame, results: Results, extra: tuple[str, ...] = ()) -> pandas.DataFrame:
        """The rows of `only`, of all metrics. Raises ConfigError for a label that the study does not have."""
        if results.values.empty:
            return table.iloc[:0]
        where = f"study {results.study}: the figure '{self.file}'"
        for label in (*self.lines, *([self.panels] if self.panels else ()), *self.only, *extra):
            if label not in (METRIC, *results.labels):
                raise ConfigError(f"{where} uses a label '{label}'.{suggest(label, results.labels)}")
        for label, values in self.only.items():
            table = table[table[label].isin([plain(value) for value in values])]
        return table

    def numbers(self, column: pandas.Series, results: Results) -> pandas.Series:
        """Return the values of a label as numbers. Raises ConfigError if one is not a number."""
        import pandas

        found = pandas.to_numeric(column, errors="coerce")
        if found.isna().any():
            where = f"study {results.study}: the figure '{self.file}' is drawn over {column.name}"
            raise ConfigError(f"{where}, but {column[found.isna()].iloc[0]} is not a number.")
        return found

    def parts(self, table: pandas.DataFrame) -> Iterator[tuple[str, tuple[str, ...], pandas.DataFrame]]:
        """Yield (panel, line, rows) of each combination of those labels, in natural order."""
        labels = [*self.lines, *([self.panels] if self.panels else [])]
        parts = {(): table} if not labels else dict(iter(table.groupby(labels, sort=False)))
        for key in natural(parts):
            yield (key[-1], key[:-1], parts[key]) if self.panels else ("", key, parts[key])

    def by_place(self, rows: pandas.DataFrame, results: Results, place: Sequence[str] = ("x",)) -> pandas.DataFrame:
        """The values of runs that have ended, a row for each place and a column for each run there.

        A run without a value is infinitely bad, if it is known which end that is; where that holds for half of them or
        more, there is no row.
        """
        larger = results.larger_is_better(self.metric or results.metric)
        worst = math.nan if larger is None else -math.inf if larger else math.inf
        finite = rows["value"].where(rows["value"].abs() < math.inf, worst)
        rows = rows.assign(number=rows.groupby(list(place)).cumcount(), value=finite)
        wide = rows.pivot(index=list(place), columns="number", values="value")
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
            from scipy.stats import t

            counts = table.count(axis=1)
            half *= counts.map(lambda n: float(t.ppf(0.95, n - 1)) / n**0.5 if n > 1 else math.nan)
        half = half.fillna(0.0)
        low = center - half
        if self.logy or self.logs:  # a band that reaches below zero ends at the smallest value
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


def natural(keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the different keys in natural order: words as they come, then numbers by their size, or as they come where
    these only rise or only fall.

    >>> natural([("b", "0.2"), ("b", "0.05"), ("b", "0.1"), ("a", "0.2")])
    [('b', '0.05'), ('b', '0.1'), ('b', '0.2'), ('a', '0.2')]
    """
    known = list(dict.fromkeys(keys))
    sizes, words = list[dict[str, int]](), list[int]()
    for place, column in enumerate(zip(*known, strict=True)):
        values = list(dict.fromkeys(column))
        parsed = [number_of(value or "-inf") for value in values]
        numbers = [number for number in parsed if number is not None]
        if len(numbers) < len(values):
            words.append(place)
        elif numbers not in (sorted(numbers), sorted(numbers, reverse=True)):
            values.sort(key=lambda value: float(value or "-inf"))
        sizes.append({value: size for size, value in enumerate(values)})
    texts = list(dict.fromkeys(tuple(key[place] for place in words) for key in known))

    def rank(key: tuple[str, ...]) -> tuple[int, ...]:
        text = texts.index(tuple(key[place] for place in words))
        return text, *(sizes[place][value] for place, value in enumerate(key) if place not in words)

    return sorted(known, key=rank)


def center(figure: StudyFigure, results: Results, lines: Sequence[Line]) -> str:
    """Describe a line: 'mean of 3 seeds', 'a single seed', 'median of 32 trees, a single seed'; '' for what is computed
    without anything random."""
    repeats, seeds = results.spec.repeats, figure.seeds(results)
    single = f"a single {repeats}" if repeats and seeds == 1 else ""
    if not any(line.most > 1 for line in lines):
        return single or (f"{seeds} {repeats}s" if repeats and seeds else "")
    among = {line.among for line in lines if line.most > 1}
    alike = [line for line in lines if line.most > 1 or line.among in among]
    lost = "where one has no value: median" if figure.center != "median" and any(line.lost for line in alike) else ""
    return ", ".join(word for word in (f"{figure.center} of {_counted(alike)}", lost, single) if word)


def band(figure: StudyFigure, lines: Sequence[Line]) -> str:
    """Describe the band: 'band: lowest to highest of 3 seeds'; '' if there is none."""
    banded = [line for line in lines if line.low is not None and line.high is not None]
    if not banded or figure.spread not in _SPREADS:
        return ""
    cut = ", cut off at the lowest value" if figure.spread != "range" and any(map(_is_cut, banded)) else ""
    return f"band: {_SPREADS[figure.spread].format(center=figure.center)} {_counted(banded)}{cut}"


def caption(figure: StudyFigure, results: Results, lines: Sequence[Line]) -> str:
    """Describe lines, bands and rings in a sentence for the page of the figure; '' if there is nothing to say."""
    theirs = rings(figure.published(results))
    ring = f"rings: {theirs} numbers" if theirs else ""
    text = "; ".join(word for word in (middle(figure, results, lines), band(figure, lines), ring) if word)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def middle(figure: StudyFigure, results: Results, lines: Sequence[Line]) -> str:
    """Describe a line with its name where there is a band: 'line: mean of 3 seeds'; '' if there is nothing to say."""
    text = center(figure, results, lines)
    return f"{figure.drawn_as}: {text}" if text and figure.drawn_as and any(line.most > 1 for line in lines) else text


def rings(theirs: Sequence[Line]) -> str:
    """Name the kind of numbers that rings are: 'published', 'reference', 'published or reference'; '' without rings."""
    return " or ".join(sorted({line.kind for line in theirs}))


def _counted(lines: Sequence[Line]) -> str:
    """Format the number of series, for example '3 seeds', or '2 to 3 seeds' where it varies."""
    least, most = min(line.least for line in lines), max(line.most for line in lines)
    names = {line.among for line in lines if line.most > 1}
    number = f"{least} to {most}" if least < most else f"{most}"
    return f"{number} {names.pop() if len(names) == 1 else 'run'}s"


def _is_cut(line: Line) -> bool:
    """Return whether the band ends at the lowest value, since a logarithmic axis cannot show how far it would reach."""
    for low, middle, high in zip(line.low or (), line.y, line.high or (), strict=True):
        even = math.isclose(middle - low, high - middle, rel_tol=1e-6, abs_tol=1e-9 * abs(middle))
        if math.isfinite(high - low) and not even:
            return True
    return False
