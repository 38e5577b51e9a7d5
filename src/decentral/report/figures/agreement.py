"""One metric against another, a mark for each cell: on the diagonal where both agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_SIDE_INCHES = 5.0
_MARGIN = 0.06
"""Beyond the marks, as a part of the axes."""


@dataclass
class Agreement(StudyFigure):
    """values.csv: `metric` of each cell against its metric `x`, in the same unit, with the diagonal.

    x     the metric on the x axis
    band  a band around the diagonal: this share of x, for example 0.1
    """

    name: str = "agreement"
    x: str = ""
    band: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.x or not self.metric:
            raise ConfigError(f"the figure '{self.file}' needs `x` and `metric`, the two metrics that are compared.")

    def data(self, results: Results) -> list[Line]:
        """A line without a line for each combination of `lines`: the means over seeds of its cells."""
        table = self.limited(results.values[results.values["chosen"]], results)
        found: list[Line] = []
        for panel, line, part in self.parts(table):
            wide = part.pivot_table(index=results.labels, columns="metric", values="value", dropna=True)
            if not {self.x, self.metric} <= set(wide.columns):
                continue
            both = wide[[self.x, self.metric]].dropna()
            found.append(Line(panel, line, both[self.x].tolist(), both[self.metric].tolist(), points=True))
        return found

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """One panel, as high as wide."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        colours = canvas.colours(self, lines)
        marks = {
            line.key: Line2D([], [], ls="none", marker="o", ms=5, color=colours[line.panel, line.key]) for line in lines
        }
        for key, mark in marks.items():
            mark.set_label(canvas.said(self, key))
        around: list[Artist] = [
            Line2D([], [], color="#555555", lw=0.8, label="both agree"),
            Patch(facecolor=style.GREY, alpha=0.35, lw=0, label=f"within {100 * self.band:g} %"),
        ]
        legends: list[Sequence[Artist]] = [list(marks.values()), around]
        drawn = canvas.blank(
            output.width or _SIDE_INCHES + 1, _SIDE_INCHES, canvas.heads(self, results, lines), legends, output
        )
        ax = drawn.subplots()
        values = [value for line in lines for value in (*line.x, *line.y) if math.isfinite(value)]
        ends = min(values) * (1 - _MARGIN), max(values) * (1 + _MARGIN)
        ax.fill_between(
            ends,
            [end * (1 - self.band) for end in ends],
            [end * (1 + self.band) for end in ends],
            color=style.GREY,
            alpha=0.35,
            lw=0,
            zorder=1,
        )
        ax.plot(ends, ends, color="#555555", lw=0.8, zorder=2)
        for line in lines:
            colour = colours[line.panel, line.key]
            ax.plot(line.x, line.y, ls="none", marker="o", ms=5, mec="white", mew=0.4, color=colour, zorder=3)
        scales = {"xscale": "log" if self.logx else "linear", "yscale": "log" if self.logy else "linear"}
        ax.set(xlim=ends, ylim=ends, xlabel=self.xlabel or self.x, ylabel=self.ylabel or self.metric, **scales)
        return drawn
