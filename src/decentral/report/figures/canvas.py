"""Lines on panels: axes that share y, a legend below, a title that stands alone."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.report import style
from decentral.report.figures.figure import (
    METRIC,
    SCREEN,
    Line,
    Output,
    StudyFigure,
    band,
    center,
    middle,
    natural,
    rings,
)
from decentral.report.published import papers
from decentral.store import AXES, Status
from decentral.store.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_MARKERS_PER_LINE = 8
_MOST_TICKS = 10
_HIDDEN = 0.012
"""Distance below which lines are indistinguishable, relative to the panel's height."""
_SHORT = 0.2
"""Covered part of a line below which the legend does not explain it."""
_LEAST_GAP = 0.05
"""Between labels, as a part of the axis."""
_MOST_LINES = 50
_FEW_DECADES = 300
"""A logarithmic axis that goes less far has numbers between the powers of ten, too."""
_MOST_COLUMNS = 4
_MOST_ROWS = 3
"""Of names above a panel."""
_METHOD_LABELS = ("method", "algorithm", "algo")
Key = tuple[str, tuple[str, ...]]
"""Of a line: its panel, and the values of the labels in `lines`."""
_NARROWEST = 1.6
"""Inches of a panel in print: two fit into a column of a paper."""
_LOWEST = 1.35
"""Inches of a row of panels in print, with what is below and above its axes."""
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""File metadata to omit, which change by date or version."""


def save(figure: StudyFigure, results: Results, lines: list[Line], output: Output = SCREEN) -> list[Path]:
    """Draw a figure into the study's directory, in the formats of `output`; returns the paths, none if there is no
    data.

    The same data give the same bytes. Files are replaced whole.
    """
    if not any(math.isfinite(value) for line in lines for value in line.y):
        return []
    paths = []
    with style.settings(f"{results.study}/{figure.file}", output.small):
        drawn = style.plain(figure.draw(results, lines, output))
        drawn.dpi = 300 if output.small else 150
        layout = drawn.get_layout_engine()
        assert layout is not None
        layout.execute(drawn)
        drawn.set_layout_engine("none")  # what is laid out a second time moves a little
        for suffix in output.formats:
            data = io.BytesIO()
            if suffix == "png":
                data.write(style.png(drawn, drawn.dpi))
            else:
                drawn.savefig(data, format=suffix, dpi=drawn.dpi, metadata=_METADATA[suffix])
            paths.append(results.directory / f"{figure.file}.{suffix}")
            write_bytes(paths[-1], data.getvalue())
    return paths


class LineFigure(StudyFigure):
    """A figure whose lines are drawn on the common canvas."""

    drawn_as: ClassVar = "line"

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Axes that share y, a legend below, a title that stands alone."""
        from matplotlib.lines import Line2D

        theirs, missing = self.published(results), self.missing(results, lines)
        lines = [_within(line, self, results) for line in lines]
        panels = [panel for (panel,) in natural((line.panel,) for line in lines)] or [""]
        looks = looks_of(self, lines)
        entries = _legend_entries(self, lines, looks, published=bool(theirs))
        visible = [line for line in lines if any(map(math.isfinite, line.y))]  # matplotlib cannot place others' markers
        seen = {panel: [line for line in visible if line.panel == panel] for panel in panels}
        covers = {panel: _covers(here, self) for panel, here in seen.items()}
        told = notes(self, results, lines, output, rings(theirs))
        if any(map(_is_pale, itertools.chain(*seen.values()), itertools.chain(*covers.values()))):
            wide: dict[str, Any] = {"lw": 2.6 * style.size("lines.linewidth"), "solid_capstyle": "round"}
            told.append(Line2D([], [], color="#C8C8C8", label="pale: a covered line", **wide))
        legends = [entries, [*told, *self.signs(results)]]
        each = self.panels == METRIC
        columns, width = _columns(len(panels), output)
        inches = width / columns - 0.4  # of the width of a panel
        above = [self._above(panel, [] if entries else lines, missing, inches) for panel in panels]
        drawn, axes = _sheet(panels, lines, heads(self, results, lines), legends, output, above, sharey=not each)
        for number, (panel, ax) in enumerate(zip(panels, axes, strict=True)):
            here = [line for line in lines if line.panel == panel]
            _fill(ax, seen[panel], covers[panel], looks)
            for line in theirs:
                if line.panel == panel and (panel, line.key) in looks:
                    ax.plot(line.x, line.y, **_ring(looks[panel, line.key].color))
            _frame(ax, self, here, above[number], inches, output.small)
            if number < len(panels) - columns and _share_x(panels, lines):
                ax.set_xlabel("")
            if number % columns == 0:
                high = drawn.get_figheight() / -(-len(panels) // columns)
                if output.small:  # where legends take a larger part
                    high = 1.5 * (high * drawn.get_layout_engine().get()["rect"][3] - 0.3)  # type: ignore[union-attr]
                letters = int(high * 12)
                label = "" if each else style.quantity(self.shown(results))
                ax.set_ylabel(textwrap.fill(self.ylabel or label, min(42, letters)))
        for panel, ax in zip(panels, axes, strict=True):
            _few_decades(ax, self.logx, self.is_log(panel))
        return drawn

    def _above(
        self, panel: str, lines: list[Line], missing: dict[tuple[str, str], list[str]], inches: float
    ) -> tuple[str, str]:
        """Return the title of a panel, with its line if it is one of these, and the lines that are missing: their
        names, or their number if there are many."""
        alone = {line.key for line in lines if line.panel == panel and self.panels}
        parts = [self.called(self.panels, panel)] if self.panels and panel else []
        title = ", ".join(filter(None, [*parts, *(said(self, key, "") for key in alone)]))
        absent = []
        for why, names in ((why, names) for (there, why), names in missing.items() if there in ("", panel)):
            text = style.fitted(f"{why}: {', '.join(names)}", inches, "legend.fontsize")
            absent.append(text if text.count("\n") < _MOST_ROWS else f"{why}: {len(names)} lines")
        return style.fitted(title, inches, "axes.titlesize"), "\n".join(absent)

    def label(self, key: tuple[str, ...], lines: list[Line]) -> str:
        """Return the legend's text of a line."""
        return said(self, key)

    def signs(self, results: Results) -> list[Artist]:
        """Further entries of the legend's notes."""
        return []

    def missing(self, results: Results, lines: list[Line]) -> dict[tuple[str, str], list[str]]:
        """(panel, why) -> the names of the lines that have no end there, or none at all: 'diverged', or 'zero' on a
        logarithmic axis."""
        found: dict[tuple[str, str], list[str]] = {}
        for panel, key, rows in self.parts(self.limited(results.chosen, results)):
            if (rows["status"] == Status.diverged).all():
                found.setdefault((panel, "diverged"), []).append(said(self, key))
        for line in lines:
            if self.is_log(line.panel) and 0 in line.y and not any(value > 0 for value in line.y):
                found.setdefault((line.panel, "zero"), []).append(said(self, line.key))
        return found


def _sheet(
    panels: list[str],
    lines: list[Line],
    title: tuple[str, str],
    legends: Sequence[Sequence[Artist]],
    output: Output,
    above: list[tuple[str, str]],
    sharey: bool,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with its title above and its legend below; panels are equally large in all figures. In print, a
    row of panels with several lines of text `above` it is higher."""
    columns, width = _columns(len(panels), output)
    rows = math.ceil(len(panels) / columns)
    if output.width is None:
        body = 3.3 if rows == 1 else 2.6 * rows + 0.3
    else:
        body = rows * (min(2.2, 0.62 * width / columns) + 0.3) + 0.2
    lengths = [title.count("\n") + len(absent.splitlines()) for title, absent in above]
    more = sum(max(lengths[first : first + columns]) for first in range(0, len(panels), columns))
    drawn = blank(width, body, title, legends, output, rows, 0.13 * more)
    share_x = rows > 1 and _share_x(panels, lines)
    axes = drawn.subplots(rows, columns, squeeze=False, sharey=sharey, sharex=share_x).flatten()
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    for lowest in axes[max(0, len(panels) - columns) : len(panels)]:  # of its column, if the last row is not full, too
        lowest.tick_params(labelbottom=True)
    return drawn, list(axes[: len(panels)])


def _within(line: Line, figure: StudyFigure, results: Results) -> Line:
    """Return the line as its axis shows it: with a band that ends where the metric's values do, at 0 and 100 %, or at 0
    for one that should fall and is never below; a logarithmic axis shows positive numbers."""
    metric = figure.shown(results, line.panel)
    percent = results.meaning(metric).get("unit") == "%"
    falls = results.larger_is_better(metric) is False and min(line.y, default=0.0) >= 0
    if line.low is not None and line.high is not None and (percent or falls):
        high = np.minimum(line.high, 100.0) if percent else line.high
        line = line._replace(low=list(np.maximum(line.low, 0.0)), high=list(high))
    if figure.is_log(line.panel):
        known = {key: values for key in ("y", "low", "high") if (values := getattr(line, key)) is not None}
        line = line._replace(**{key: np.where(np.array(own) > 0, own, np.nan).tolist() for key, own in known.items()})
    return line


def _share_x(panels: list[str], lines: list[Line]) -> bool:
    """Return whether all panels go about equally far to the right."""
    ends = [max((x for line in lines if line.panel == panel for x in line.x), default=0.0) for panel in panels]
    return max(ends) <= 1.5 * min(ends)


def blank(
    width: float,
    body: float,
    title: tuple[str, str],
    legends: Sequence[Sequence[Artist]],
    output: Output = SCREEN,
    rows: int = 0,
    more: float = 0.0,
) -> Figure:
    """Return a figure without axes, `body` inches high between its title and its legends, which are below each other.

    In print, `rows` of panels are lower, so that the figure has at most the height of its width for each of them. They
    have at least a height of which `more` inches are for several lines of text above them.
    """
    from matplotlib.figure import Figure

    row, handle = (0.16, 0.5) if output.small else (0.2, 0.68)  # inches of a legend's row, and around a label
    above = textwrap.wrap(title[0], int(width * (12 if output.small else 11.5))) if output.title else []
    under = textwrap.wrap(title[1], int(21 * width)) if output.small else [title[1]]
    head = (row - 0.01) * (len(above) + len(under[1:])) + 1.5 * row if above else 0.04
    shapes = [_columns_of(entries, width, handle) for entries in legends if entries]
    foot = sum(lines * row for _, lines in shapes) + (0.3 * row if shapes else 0.0)
    if output.small and rows:
        body = max(rows * _LOWEST + more, min(body + more, rows * width - head - foot))
    height = head + foot + body
    drawn = Figure(figsize=(width, height), layout="constrained")
    below = foot / height
    drawn.get_layout_engine().set(rect=(0, below, 1, 1 - head / height - below))  # type: ignore[union-attr,call-arg]
    if above:
        points, down = style.size("figure.titlesize"), (row - 0.01) * len(above) + 0.45 * row
        drawn.text(0.01, 1 - 0.06 / height, "\n".join(above), fontsize=points, fontweight="bold", va="top")
        drawn.text(0.01, 1 - down / height, "\n".join(under), color="#555555", va="top", fontsize="small")
    top = foot - 0.3 * row
    for entries, (columns, lines) in zip(filter(None, legends), shapes, strict=True):
        drawn.legend(
            handles=list(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, top / height),
            ncols=columns,
            handlelength=2.4 if output.small else 3,
            frameon=False,
            borderaxespad=0.0,
            borderpad=0.1,
        )
        top -= lines * row
    return drawn


def _columns_of(entries: Sequence[Artist], inches: float, handle: float) -> tuple[int, float]:
    """Return the number of columns of a legend that fit into this width, and its height in lines. Longer labels are
    broken; rows are about equally full."""
    labels = [style.fitted(str(entry.get_label()), 0.97 * inches - handle, "legend.fontsize") for entry in entries]
    for entry, label in zip(entries, labels, strict=True):
        entry.set_label(label)
    widths = [handle + style.width(label, "legend.fontsize") for label in labels]
    heights = [1 + 0.75 * label.count("\n") for label in labels]
    most = len(labels)
    while most > 1 and sum(max(part) for part in np.array_split(widths, most)) > inches:
        most -= 1
    columns = math.ceil(len(labels) / math.ceil(len(labels) / most))
    return columns, max(sum(part) for part in np.array_split(heights, columns))


def colors(figure: StudyFigure, lines: list[Line]) -> dict[Key, str]:
    """(panel, line) -> the color in which `draw` draws it."""
    return {key: look.color for key, look in looks_of(figure, lines).items()}


def said(figure: StudyFigure, key: tuple[str, ...], usual: str = "ours") -> str:
    """Return the legend text of a line, for example 'RelaySGD, chain'."""
    pairs = zip(figure.lines, key, strict=False)
    return ", ".join(figure.called(label, value) for label, value in pairs if value not in ("", style.ABSENT)) or usual


def heads(figure: StudyFigure, results: Results, lines: list[Line]) -> tuple[str, str]:
    """A figure's title, and the line below it: which item of which paper, at which scale, and what a line is."""
    facts = results.facts
    known = papers().get(str(facts.get("paper")))
    item = f"{known.short if known else ''}, {facts.get('item') or ''}".strip(", ")
    scale = f"scale={results.scale}" * bool(results.scale) + " (changed)" * bool(results.changes)
    parts = [part for part in (item, scale, center(figure, results, lines)) if part]
    return figure.title or str(facts.get("title") or results.study), "  \N{MIDDLE DOT}  ".join(parts)


def notes(figure: StudyFigure, results: Results, lines: list[Line], output: Output, theirs: str = "") -> list[Artist]:
    """The legend's entries on what rings (`theirs`) and bands are, and on what a line is where no line below the title
    says it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Artist] = []
    if not output.title and (text := middle(figure, results, lines)):
        entries.append(Line2D([], [], ls="none", label=text))
    if words := band(figure, lines):
        entries.append(Patch(facecolor=style.GRAY, alpha=0.35, lw=0, label=words))
    if theirs:
        entries.append(Line2D([], [], label=theirs, **_ring(style.BLACK)))
    return entries


def _ring(color: str) -> dict[str, Any]:
    """A paper's number: large enough to be seen around one of ours."""
    size, width = style.size("lines.markersize") + 4, 0.7 * style.size("lines.linewidth")
    return {"ls": "none", "marker": "o", "ms": size, "mfc": "none", "mec": color, "mew": width, "zorder": 5}


def _columns(panels: int, output: Output) -> tuple[int, float]:
    """Return the number of columns, as many as fit, with rows that are about equally full; and the figure's width."""
    most = _MOST_COLUMNS if output.width is None else max(1, min(_MOST_COLUMNS, int(output.width / _NARROWEST)))
    columns = math.ceil(panels / math.ceil(panels / most))
    return columns, output.width or {1: 6.4, 2: 8.8}.get(columns, 3.3 * columns + 0.6)


def looks_of(figure: StudyFigure, lines: list[Line]) -> dict[Key, style.Look]:
    """A look for each line of each panel, by its method and topology if it has them."""
    keys = list(dict.fromkeys((line.panel, line.key) for line in lines))
    named = [dict(zip((figure.panels, *figure.lines), (panel, *key), strict=True)) for panel, key in keys]
    method = next((label for label in _METHOD_LABELS if label in (figure.panels, *figure.lines)), None)
    if method is None:
        different = list(dict.fromkeys(key for _, key in keys))
        plain = dict(zip(different, style.ordered_looks(len(different)), strict=True))
        return {(panel, key): plain[key] for panel, key in keys}
    topologies = [one["topology"] for one in named if "topology" in figure.lines]  # a panel's is in its title
    found = style.looks(
        [figure.names.get(one[method], one[method]) for one in named], topologies, [key for _, key in keys]
    )
    return dict(zip(keys, found, strict=True))


def _is_pale(line: Line, covers: list[int]) -> bool:
    """Return whether a part of the line that can be seen to be pale is covered."""
    ends = [abs(line.x[i + 1] - line.x[i]) for i in range(len(covers) - 1) if covers[i] and covers[i + 1]]
    return sum(ends) > _SHORT * (max(line.x) - min(line.x))


def _fill(ax: Axes, lines: list[Line], covers: list[list[int]], looks: dict[Key, style.Look]) -> None:
    """Draw the lines of a panel; a line covered by others is wide enough to show on both sides of them."""
    for line in lines:
        look = looks[line.panel, line.key]
        if line.thin:
            ax.plot(line.x, line.y, color=look.color, lw=0.6, alpha=0.5, zorder=2)
            continue
        if line.stairs:
            ax.plot(line.x, line.y, drawstyle="steps-post", zorder=3, **look.keywords)
            continue
        if line.low is not None and line.high is not None:
            shades: dict[str, Any] = {"facecolor": (look.color, 0.13), "edgecolor": (look.color, 0.5)}
            ax.fill_between(line.x, line.low, line.high, lw=0.35 * style.size("lines.linewidth"), zorder=1, **shades)
        # markers of different lines do not overlap
        staggered = lines.index(line) / (len(lines) + 1) / _MARKERS_PER_LINE, 1 / _MARKERS_PER_LINE
        keywords = {"marker": look.marker, **look.keywords}
        alone = sum(map(math.isfinite, line.y)) == 1  # a point without a line
        ax.plot(line.x, line.y, markevery=1 if line.points or alone else staggered, zorder=3, **keywords)
    for line, covered in zip(lines, covers, strict=True):
        _widen(ax, line, covered, looks[line.panel, line.key].color)


def _widen(ax: Axes, line: Line, covers: list[int], color: str) -> None:
    """Below all lines, the parts of a line that others cover: the wider, the more there are; lighter than the line,
    whose dashes are to be seen."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    places = list(zip(line.x, line.y, covers, strict=True))
    parts = [(one, other) for one, other in itertools.pairwise(places) if one[2] and other[2]]
    if parts:
        widths = [style.size("lines.linewidth") * (1 + 0.8 * max(one[2], other[2])) for one, other in parts]
        segments = [[one[:2], other[:2]] for one, other in parts]
        lighter = tuple(0.5 + part / 2 for part in to_rgb(color))
        order = 2 + 0.01 * (_MOST_LINES - max(covers))
        ax.add_collection(
            LineCollection(segments, linewidths=widths, colors=[lighter], capstyle="round", zorder=order),
            autolim=False,
        )


def _covers(lines: list[Line], figure: StudyFigure) -> list[list[int]]:
    """Return, for each line and point, the number of later lines that cover it."""
    heights, log = [], bool(lines) and figure.is_log(lines[0].panel)
    for line in lines:
        heights.append(np.log10(line.y) if log else np.array(line.y))
    curves = [number for number, line in enumerate(lines) if not line.thin and not line.stairs]
    covers = [np.zeros(len(line.x), dtype=int) for line in lines]
    if len(curves) > 1:
        known = np.concatenate([heights[number] for number in curves])
        low, high = np.nanmin(known), np.nanmax(known)
        if figure.ylim:
            limits = [math.log10(limit) if limit and log else limit for limit in figure.ylim]
            low, high = (end if limit is None else limit for limit, end in zip(limits, (low, high), strict=True))
        for one, other in itertools.combinations(curves, 2):
            there = np.interp(lines[one].x, lines[other].x, heights[other], left=math.nan, right=math.nan)
            covers[one] += np.abs(there - heights[one]) <= _HIDDEN * (high - low)
    return [one.tolist() for one in covers]


def _frame(
    ax: Axes, figure: StudyFigure, lines: list[Line], above: tuple[str, str], inches: float, small: bool
) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

    small_size = style.size("legend.fontsize") - 0.5
    style.tidy(ax, small_size)
    title, absent = above  # small gray words between the title and the axes
    words: dict[str, Any] = {"fontsize": small_size, "color": "#555555", "linespacing": 1.2}
    if absent:
        ax.annotate(absent, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", **words)
    ax.set_title(title, loc="left", pad=6 + 1.3 * small_size * len(absent.splitlines()))
    x = figure.over(lines[0].panel) if lines else ""
    ax.set_xlabel(style.fitted(figure.xlabel or AXES.get(x, style.heading(x)), inches, "font.size"))
    if lines and figure.is_log(lines[0].panel):
        ax.set_yscale("log", nonpositive="mask")
        ax.yaxis.set_minor_formatter(NullFormatter())
    if figure.logx:
        ax.set_xscale("log", nonpositive="mask")
        ax.xaxis.set_minor_formatter(NullFormatter())
    places = sorted({x for line in lines if line.points for x in line.x})
    if len(places) > _MOST_TICKS and figure.logx:
        places = [place for place in places if place > 0 and math.log2(place).is_integer()]
    if 0 < len(places) <= _MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(_apart(places, figure.logx)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    if figure.ylim:
        ax.set_ylim(*figure.ylim)
    if figure.xlim:
        left, right = figure.xlim
        end = max((x for line in lines for x in line.x), default=math.inf)
        ax.set_xlim(left, None if right is not None and end < right / 2 else right)  # a shorter run fills the panel
    if x == "bytes_sent":
        ax.xaxis.set_major_formatter(lambda value, _: style.amount(value, x) if value else "0")
        if small:
            ax.xaxis.set_major_locator(MaxNLocator(3))


def _few_decades(ax: Axes, logx: bool, logy: bool) -> None:
    """Numbers between the powers of ten, where a logarithmic axis does not go far; after all panels are drawn."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator

    for axis, log, ends in ((ax.xaxis, logx, ax.get_xlim()), (ax.yaxis, logy, ax.get_ylim())):
        low, high = sorted(ends)
        if log and high < _FEW_DECADES * low and not isinstance(axis.get_major_locator(), FixedLocator):
            axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5)))
            if not isinstance(axis.get_major_formatter(), FuncFormatter):
                axis.set_major_formatter(lambda value, _: f"{value:g}")


def _apart(places: list[float], log: bool) -> list[float]:
    """Return the positions far enough apart to be labeled, starting from the last."""
    at = [math.log(max(place, 1e-300)) if log else place for place in places]
    kept: list[int] = []
    for number in reversed(range(len(places))):
        if not kept or at[kept[-1]] - at[number] > _LEAST_GAP * (at[-1] - at[0]):
            kept.append(number)
    return [places[number] for number in reversed(kept)]


def _legend_entries(
    figure: LineFigure, lines: list[Line], looks: dict[Key, style.Look], published: bool
) -> list[Artist]:
    """One entry for each kind of line, none if there is only one."""
    from matplotlib.lines import Line2D

    thin = any(line.thin for line in lines)
    entries: dict[tuple[str, ...], Artist] = {}
    labels = {key: figure.label(key, lines) for _, key in looks}
    counts = Counter(labels.values())
    labels = {key: f"{label} ({', '.join(key)})" if counts[label] > 1 else label for key, label in labels.items()}
    for (_, key), look in looks.items():
        shape = {"marker": "none" if thin else look.marker, **look.keywords}
        entries.setdefault(key, Line2D([], [], label=labels[key], **shape))
    one_each = len(looks) == len({panel for panel, _ in looks}) and (figure.panels in _METHOD_LABELS or not published)
    if any(label != said(figure, key) for key, label in labels.items()):
        return list(entries.values())
    return [] if len(entries) + published < 2 or (one_each and len(looks) > 1) else list(entries.values())
