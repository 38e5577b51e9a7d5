"""The same curves over simulated time, bytes and epochs side by side, and where each of them reaches a target."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decentral.errors import ConfigError, suggest
from decentral.report.figures import canvas
from decentral.report.figures.curves import Curves
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.line_figure import LineFigure
from decentral.report.figures.output import SCREEN, Output
from decentral.store import AXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from decentral.report.results import Results


@dataclass
class ThreeAxes(LineFigure):
    """curves.csv, as `curves` draws it, with a panel for each axis: what a method costs is another question on each.

    worker   'worst', 'mean', 'averaged', a number, or '' (where there is no such thing)
    axes     of the panels, from left to right; those that no curve has a place on are left out
    target   a value of the metric: each panel says where the line of each method gets there first (interpolated
             between evaluations), or never; null: none
    """

    name: str = "three_axes"
    worker: str = "worst"
    axes: list[str] = field(default_factory=lambda: ["simulated_s", "bytes_sent", "epoch"])
    target: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.panels:
            raise ConfigError(
                f"the figure '{self.file}' has panels={self.panels}, but its panels are its axes: leave it out, or "
                "choose what is drawn by `only`."
            )
        for axis in self.axes:
            if axis not in AXES:
                raise ConfigError(f"the figure '{self.file}' has the axis {axis}.{suggest(axis, AXES)}")

    def data(self, results: Results) -> list[Line]:
        """A line for each axis and each combination of lines; an axis is a panel."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(StudyFigure)}
        known = [axis for axis in self.axes if axis in results.curves and results.curves[axis].notna().any()]
        return [
            line._replace(panel=axis)
            for axis in known
            for line in Curves(**shared, worker=self.worker, x=axis).data(results)
        ]

    def over(self, panel: str) -> str:
        """A panel is an axis."""
        return panel

    def seeds(self, results: Results) -> int:
        """Of the curves: not all runs of a study need have some."""
        return int(self.selected(results.curves, results)["seed"].nunique())

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """The common canvas, with the target and where it is reached."""
        drawn = canvas.draw(self, results, lines, output)
        if self.target is not None:
            panels = list(dict.fromkeys(line.panel for line in lines))
            colours = canvas.colours(self, lines)
            for panel, ax in zip(panels, drawn.axes, strict=False):
                here = [line for line in lines if line.panel == panel]
                self._mark(ax, here, [colours[panel, line.key] for line in here], self.target, output)
        return drawn

    def _mark(self, ax: Axes, lines: list[Line], colours: list[str], target: float, output: Output) -> None:
        """The target as a line, where each line gets there, and the numbers in words."""
        low, _ = ax.get_ylim()
        ax.set_ylim(bottom=low)
        ax.axhline(target, color="#555555", lw=0.8, ls=(0, (4, 3)), zorder=1)
        places = [reached(line, target) for line in lines]
        for place, colour in zip(places, colours, strict=True):
            if place is not None:
                ax.plot([place, place], [low, target], color=colour, lw=0.9, ls=":", zorder=2)
                ax.plot([place], [target], marker="*", ms=9, color=colour, mec="white", mew=0.6, zorder=6)
        size = 5.5 if output.small else 7.0
        told = [f"{canvas.said(self, line.key)}: {_shown(place)}" for line, place in zip(lines, places, strict=True)]
        rows = [(f"lines are at {target:g}:", "#555555"), *zip(told, colours, strict=True)]
        rises = any(one.y[0] < target for one in lines if one.y)  # then there is room below on the right, else above
        for number, (text, colour) in enumerate(reversed(rows) if rises else rows):
            away = 3 + 1.35 * size * number
            ax.annotate(
                text,
                (1.0, 0.0 if rises else 1.0),
                xycoords="axes fraction",
                xytext=(-3, away if rises else -away),
                textcoords="offset points",
                ha="right",
                va="bottom" if rises else "top",
                fontsize=size,
                color=colour,
                zorder=7,
                bbox={"facecolor": (1, 1, 1, 0.75), "edgecolor": "none", "pad": 0.6},
            )


def reached(line: Line, target: float) -> float | None:
    """Where a line first is at the target, from the side on which it begins; between two places linearly. None: never.

    >>> reached(Line("", (), [0.0, 10.0, 20.0], [50.0, 80.0, 100.0]), 90.0)
    15.0
    """
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return None
    rises = points[0][1] < target
    for number, (x, y) in enumerate(points):
        if (y >= target) if rises else (y <= target):
            if not number:
                return x
            before, value = points[number - 1]
            return before + (x - before) * (target - value) / (y - value)
    return None


def _shown(place: float | None) -> str:
    """A place on an axis in short, or never."""
    if place is None:
        return "never"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if place >= size:
            return f"{place / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{place:.3g}"
