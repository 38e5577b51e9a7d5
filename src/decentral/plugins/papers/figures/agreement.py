"""One metric of a study against another, for example predicted against observed times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import SCREEN, Line, Output, StudyFigure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from decentral.report.results import Results


@dataclass
class Agreement(StudyFigure):
    """values.csv: `metric` of each cell against its metric `x`, in the same unit, with the diagonal.

    x     metric on the x axis
    band  band around the diagonal: this share of x, for example 0.1
    """

    name: str = "agreement"
    x: str = ""
    band: float = 0.1
    needs: ClassVar = ("x", "metric")

    def data(self, results: Results) -> list[Line]:
        """A line without a line for each combination of `lines`: the means over seeds of its cells."""
        table = self.limited(results.chosen, results)
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

        colors = canvas.colors(self, lines)
        inks = {line.key: colors[line.panel, line.key] for line in lines}
        dot: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 5}
        marks = [Line2D([], [], color=ink, label=canvas.said(self, key), **dot) for key, ink in inks.items()]
        agree = Line2D([], [], color="#555555", lw=0.8, label="both agree")
        within = Patch(facecolor=style.GRAY, alpha=0.35, lw=0, label=f"within {100 * self.band:g} %")
        legends: list[Sequence[Artist]] = [marks, [agree, within]]
        width = output.width or 6.0
        drawn = canvas.blank(width, min(5.0, 0.85 * width), canvas.heads(self, results, lines), legends, output)
        ax = drawn.subplots()
        values = [value for line in lines for value in (*line.x, *line.y) if math.isfinite(value)]
        ends = min(values) * 0.94, max(values) * 1.06
        low, high = ([end * share for end in ends] for share in (1 - self.band, 1 + self.band))
        ax.fill_between(ends, low, high, color=style.GRAY, alpha=0.35, lw=0, zorder=1)
        ax.plot(ends, ends, color="#555555", lw=0.8, zorder=2)
        for line in lines:
            ax.plot(line.x, line.y, mec="white", mew=0.4, color=colors[line.panel, line.key], zorder=3, **dot)
        scales = {"xscale": "log" if self.logx else "linear", "yscale": "log" if self.logy else "linear"}
        ax.set(xlim=ends, ylim=ends, xlabel=self.xlabel or self.x, ylabel=self.ylabel or self.metric, **scales)
        return drawn
