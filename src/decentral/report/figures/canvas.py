"""Lines on panels: axes that share y, a legend below, a title that stands alone."""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.report import style
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.published import paper
from decentral.store.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from decentral.report.results import Results

_DPI = 150
_MARKERS_PER_LINE = 8
_MOST_TICKS = 10
_LEAST_GAP = 0.05
"""Between labels, as a part of the axis."""
_MOST_COLUMNS = 4
_METHOD_LABELS = ("method", "algorithm", "algo")

Looks = dict[tuple[str, tuple[str, ...]], style.Look]
"""(panel, line) -> look."""


def save(figure: StudyFigure, results: Results) -> list[Path]:
    """Draw a figure into the study's directory, as PNG (150 dpi) and SVG; returns both paths, none if there is no data.

    The same data give the same bytes. Files are replaced whole.
    """
    lines = figure.data(results)
    if not any(math.isfinite(value) for line in lines for value in line.y):
        return []
    with style.settings(f"{results.study}/{figure.file}"):
        drawn = figure.draw(results, lines)
        paths = []
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            data = io.BytesIO()
            drawn.savefig(data, format=suffix, dpi=_DPI, metadata=metadata)
            paths.append(results.directory / f"{figure.file}.{suffix}")
            write_bytes(paths[-1], data.getvalue())
    return paths


def draw(figure: StudyFigure, results: Results, lines: list[Line] | None = None) -> Figure:
    """The figure as a matplotlib Figure, for notebooks."""
    lines = figure.data(results) if lines is None else lines
    theirs = figure.published(results)
    panels = list(dict.fromkeys(line.panel for line in lines)) or [""]
    looks = _looks(figure, lines)
    entries = _legend_entries(figure, lines, looks, published=bool(theirs))
    drawn, axes = _sheet(len(panels), *heads(figure, results), entries)
    for number, (panel, ax) in enumerate(zip(panels, axes, strict=True)):
        here = [line for line in lines if line.panel == panel]
        _fill(ax, here, looks, figure)
        for line in theirs:
            if line.panel == panel and (panel, line.key) in looks:
                colour = looks[panel, line.key].colour
                ax.plot(line.x, line.y, ls="none", marker="+", ms=10, mec=colour, mew=1.3, zorder=5)
        alone = {line.key for line in here}.pop() if not entries and figure.panels and here else ()
        words = [style.pretty(figure.panels, panel) if panel else "", _words(figure, alone)]
        _frame(ax, figure, here, ", ".join(word for word in words if word))
        if number < len(panels) - _columns(len(panels)):
            ax.set_xlabel("")
        if number % _columns(len(panels)) == 0:
            ax.set_ylabel(textwrap.fill(figure.ylabel or figure.metric or results.metric, 42))
    return drawn


def _sheet(panels: int, title: str, subtitle: str, entries: list[Line2D]) -> tuple[Figure, list[Axes]]:
    """An empty figure with its title above and its legend below; panels are equally large in all figures."""
    columns = _columns(panels)
    rows = math.ceil(panels / columns)
    width = {1: 6.4, 2: 8.8}.get(columns, 3.3 * columns + 0.6)
    drawn = blank(width, 3.3 if rows == 1 else 2.6 * rows + 0.3, title, subtitle, entries)
    axes = drawn.subplots(rows, columns, squeeze=False, sharey=True, sharex=rows > 1).flatten()
    for unused in axes[panels:]:
        unused.set_visible(False)
    for lowest in axes[max(0, panels - columns) : panels]:  # of its column, even where the last row is not full
        lowest.tick_params(labelbottom=True)
    return drawn, list(axes[:panels])


def blank(width: float, body: float, title: str, subtitle: str, entries: list[Line2D]) -> Figure:
    """A figure without axes, `body` inches high between its title and its legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    words = textwrap.wrap(title, int(width * 11.5))
    longest = max((len(str(entry.get_label())) for entry in entries), default=0)
    per_row = max(1, min(len(entries), int(width / (0.062 * longest + 0.7))))
    head, foot = 0.19 * len(words) + 0.3, 0.2 * math.ceil(len(entries) / per_row) if entries else 0.0
    height = head + foot + body
    drawn = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawn)
    drawn.get_layout_engine().set(rect=(0, 0, 1, 1 - head / height))  # type: ignore[union-attr,call-arg]
    drawn.text(0.01, 1 - 0.06 / height, "\n".join(words), fontsize=10.5, fontweight="bold", va="top")
    drawn.text(0.01, 1 - (head - 0.2) / height, subtitle, fontsize=8.5, color="#555555", va="top")
    if entries:
        drawn.legend(handles=entries, loc="outside lower center", ncols=per_row, frameon=False, handlelength=3)
    return drawn


def heads(figure: StudyFigure, results: Results) -> tuple[str, str]:
    """A figure's title, and the line below it."""
    title = figure.title or str(results.facts.get("title") or results.study)
    return title, _subtitle(results, figure.seeds(results))


def _columns(panels: int) -> int:
    """As many as fit, with rows that are about equally full."""
    return math.ceil(panels / math.ceil(panels / _MOST_COLUMNS))


def _subtitle(results: Results, seeds: int) -> str:
    """Which item of which paper, at which scale, over how many seeds (or rounds)."""
    name = paper(str(results.facts.get("paper") or "")).short
    item = str(results.facts.get("item") or "")
    scale = f"scale={results.scale}" + (" (changed)" if results.changes else "")
    parts = [f"{name}, {item}".strip(", "), scale, f"{seeds} {results.spec.repeats}{'s' * (seeds != 1)}"]
    return "  \N{MIDDLE DOT}  ".join(part for part in parts if part)


def _looks(figure: StudyFigure, lines: list[Line]) -> Looks:
    """A look for each line of each panel, by its method and topology if it has them."""
    keys = list(dict.fromkeys((line.panel, line.key) for line in lines))
    named = [dict(zip((figure.panels, *figure.lines), (panel, *key), strict=True)) for panel, key in keys]
    method = next((label for label in _METHOD_LABELS if label in (figure.panels, *figure.lines)), None)
    if method is None:
        different = list(dict.fromkeys(key for _, key in keys))
        plain = dict(zip(different, style.ordered_looks(len(different)), strict=True))
        return {(panel, key): plain[key] for panel, key in keys}
    topologies = [one["topology"] for one in named if "topology" in one]
    found = style.looks([one[method] for one in named], topologies)
    return dict(zip(keys, found, strict=True))


def _fill(ax: Axes, lines: list[Line], looks: Looks, figure: StudyFigure) -> None:
    for number, line in enumerate(lines):
        look = looks[line.panel, line.key]
        if not any(math.isfinite(y) and (y > 0 or not figure.logy) for y in line.y):
            continue  # matplotlib cannot place markers on a line of which nothing is seen
        if line.thin:
            ax.plot(line.x, line.y, color=look.colour, lw=0.6, alpha=0.5, zorder=2)
            continue
        if line.low is not None and line.high is not None:
            ax.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.18, lw=0, zorder=1)
        # markers of different lines do not lie on each other
        every = 1 if line.points else (number / (len(lines) + 1) / _MARKERS_PER_LINE, 1 / _MARKERS_PER_LINE)
        ax.plot(line.x, line.y, marker=look.marker, markevery=every, ms=5.5, lw=1.6, zorder=3, **look.keywords)


def _frame(ax: Axes, figure: StudyFigure, lines: list[Line], title: str) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    style.tidy(ax)
    ax.set_title(title, loc="left")
    ax.set_xlabel(figure.xlabel or str(getattr(figure, "x", "")))
    if figure.logy:
        ax.set_yscale("log", nonpositive="mask")
        ax.yaxis.set_minor_formatter(NullFormatter())
    if figure.logx:
        ax.set_xscale("log", nonpositive="mask")
        ax.xaxis.set_minor_formatter(NullFormatter())
    places = sorted({x for line in lines if line.points for x in line.x})
    if 0 < len(places) <= _MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(_apart(places, figure.logx)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_locator(NullLocator())
    if figure.ylim:
        ax.set_ylim(*figure.ylim)
    if figure.xlim:
        ax.set_xlim(*figure.xlim)


def _apart(places: list[float], log: bool) -> list[float]:
    """Those that are far enough from the next one to be labelled, from the last one on."""
    at = [math.log(max(place, 1e-300)) if log else place for place in places]
    kept: list[int] = []
    for number in reversed(range(len(places))):
        if not kept or at[kept[-1]] - at[number] > _LEAST_GAP * (at[-1] - at[0]):
            kept.append(number)
    return [places[number] for number in reversed(kept)]


def _legend_entries(figure: StudyFigure, lines: list[Line], looks: Looks, published: bool) -> list[Line2D]:
    """One entry for each kind of line, none if there is only one."""
    from matplotlib.lines import Line2D

    thin = any(line.thin for line in lines)
    entries: dict[tuple[str, ...], Line2D] = {}
    for (_, key), look in looks.items():
        marker = "none" if thin else look.marker
        new = Line2D([], [], marker=marker, ms=5.5, lw=1.6, label=_words(figure, key) or "ours", **look.keywords)
        entries.setdefault(key, new)
    if published:
        crosses = Line2D([], [], ls="none", marker="+", ms=10, mec=style.GREY, mew=1.3, label="published")
        entries["published",] = crosses
    one_each = len(looks) == len({panel for panel, _ in looks}) and (figure.panels in _METHOD_LABELS or not published)
    return [] if len(entries) < 2 or (one_each and len(looks) > 1) else list(entries.values())


def _words(figure: StudyFigure, key: tuple[str, ...]) -> str:
    """What a line is, for example 'RelaySGD, chain'."""
    return ", ".join(style.pretty(label, value) for label, value in zip(figure.lines, key, strict=False) if value)
