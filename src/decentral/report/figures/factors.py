"""How many times as much as the best each method takes in each problem: a coloured table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.report import profiles
from decentral.report.figures import canvas
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_PALEST = 8.0
"""The factor from which on a place is as pale as it gets."""
_NEVER = "#E4E4E4"


@dataclass
class Factors(StudyFigure):
    """values.csv: for each method (a row) and problem (a column) the median over seeds, divided by that of the best.

    The best of a column is 1; who never gets to the target has a cross. Rows are sorted by mean rank. This is a map of
    who is best under which condition, with how much the others lose.

    problem   the label that tells problems apart
    """

    name: str = "factors"
    problem: str = "scenario"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lines:
            raise ConfigError(f"the figure '{self.file}' needs `lines`: the labels that tell methods apart.")

    def data(self, results: Results) -> list[Line]:
        """A line for each method: its factors, by the number of the problem."""
        found = profiles.costs(results, self.metric or results.metric, self.problem, self.lines)
        places = [float(number) for number in range(len(found.problems))]
        return [Line("", found.methods[one], places, [float(y) for y in found.ratios[one]]) for one in found.order()]

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """One panel; columns have the names of the problems."""
        import numpy as np
        from matplotlib import colormaps
        from matplotlib.colors import to_rgb

        problems = profiles.costs(results, self.metric or results.metric, self.problem, self.lines).problems
        letters = 6.0 if output.small else 8.0
        body = 0.245 * len(lines) + 1.2
        width = output.width or max(6.4, 2.6 + 0.82 * len(problems))
        drawn = canvas.blank(width, body * (0.75 if output.small else 1), canvas.heads(self, results, []), [], output)
        ax = drawn.subplots()
        colours = colormaps["YlGnBu_r"]
        picture = np.ones((len(lines), len(problems), 3))
        for row, line in enumerate(lines):
            for column, factor in enumerate(line.y):
                if not math.isfinite(factor):
                    picture[row, column] = to_rgb(_NEVER)
                    ax.text(column, row, "never", ha="center", va="center", fontsize=letters - 1, color="#8A8A8A")
                    continue
                share = min(1.0, math.log(factor) / math.log(_PALEST)) if factor > 1 else 0.0
                picture[row, column] = colours(0.12 + 0.86 * share)[:3]
                dark = float(picture[row, column].mean()) < 0.55
                text = f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"
                weight = "bold" if factor <= 1 + 1e-9 else "normal"
                ink = "white" if dark else "#222222"
                ax.text(column, row, text, ha="center", va="center", fontsize=letters, color=ink, fontweight=weight)
        ax.imshow(picture, aspect="auto", interpolation="nearest")
        ax.set_xticks(range(len(problems)), [name.replace("_", "\n", 1).replace("_", " ") for name in problems])
        ax.set_yticks(range(len(lines)), [canvas.said(self, line.key) for line in lines])
        ax.set_xticks(np.arange(len(problems) - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(len(lines) - 1) + 0.5, minor=True)
        ax.grid(which="minor", color="white", lw=1.2)
        ax.tick_params(which="both", length=0, labelsize=letters)
        ax.xaxis.tick_top()
        ax.spines[:].set_visible(False)
        ax.set_xlabel(self.xlabel)
        return drawn
