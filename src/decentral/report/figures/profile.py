"""Performance profiles: in which share of the problems a method is within a factor of the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decentral.errors import ConfigError
from decentral.report import profiles, style
from decentral.report.figures import canvas
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_FURTHEST = 64.0
"""The largest factor that is drawn."""
_FEW = 10.0
"""An axis that goes further has no number between 1 and 1.5."""
_DASHES = ("-", (0, (4, 1.5)), (0, (1.5, 1)), "-.")


@dataclass
class Profile(StudyFigure):
    """values.csv: rho(tau), the share of problems in which the median over seeds is at most tau times that of the best.

    A line begins, at 1, with the share of problems in which the method is the best, and ends with the share in which it
    gets to the target at all (Dolan & More, 2002). Those of the highest mean rank have colours, and all have their
    name where they end.

    problem    the label that tells problems apart
    coloured   how many lines have a colour of their own; the others are grey
    """

    name: str = "profile"
    problem: str = "scenario"
    coloured: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lines:
            raise ConfigError(f"the figure '{self.file}' needs `lines`: the labels that tell methods apart.")

    def data(self, results: Results) -> list[Line]:
        """A line for each method, from the best mean rank to the worst."""
        found = profiles.costs(results, self.metric or results.metric, self.problem, self.lines)
        if not found.methods:
            return []
        import numpy as np

        finite = found.ratios[np.isfinite(found.ratios)]
        last = min(_FURTHEST, 1.15 * float(finite.max())) if finite.size else 2.0
        taus = sorted({1.0, *(float(one) for one in finite if one <= last), max(last, 1.5)})
        shares = found.profile(taus)
        return [Line("", found.methods[one], taus, [float(y) for y in shares[one]]) for one in found.order()]

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """One panel, logarithmic in tau; names to the right, apart from each other."""
        looks, small = self._looks(lines), output.small
        colours = {key: look.colour for key, look in looks.items()}
        drawn = canvas.blank(output.width or 8.4, 3.2 if small else 4.9, canvas.heads(self, results, []), [], output)
        ax = drawn.subplots()
        for number, line in reversed(list(enumerate(lines))):
            strong = number < self.coloured
            drawing: dict[str, Any] = {"lw": 2.0 if strong else 1.0, "zorder": 4 if strong else 2}
            dashes: dict[str, Any] = {"color": colours[line.key], "linestyle": looks[line.key].line if strong else "-"}
            ax.plot(line.x, line.y, drawstyle="steps-post", **dashes, **drawing)
        ax.set_xscale("log")
        ax.set_xlim(1, max(line.x[-1] for line in lines))
        ax.set_ylim(-0.02, 1.02)
        few = (
            (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if lines[0].x[-1] > _FEW else (1, 1.25, 1.5, 2, 3, 4, 6, 8)
        )
        ticks = [tick for tick in few if tick <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        style.tidy(ax, 6.5 if small else 8)
        ax.set_xlabel(self.xlabel or "at most so many times as much as the best")
        ax.set_ylabel(self.ylabel or f"share of the {self.problem}s")
        gap = (0.072 if small else 0.048) * 1.04
        heights = _apart([line.y[-1] for line in lines], gap)
        wide = ax.get_yaxis_transform()  # x as a part of the panel
        for line, height in zip(lines, heights, strict=True):
            look: dict[str, Any] = {"color": colours[line.key], "clip_on": False, "transform": wide}
            ax.plot([1.0, 1.012, 1.032, 1.04], [line.y[-1], line.y[-1], height, height], lw=0.7, **look)
            letters: dict[str, Any] = {"fontsize": 6 if small else 8, "va": "center"}
            ax.text(1.046, height, canvas.said(self, line.key), **letters, **look)
        return drawn

    def _looks(self, lines: list[Line]) -> dict[tuple[str, ...], style.Look]:
        """Of the first lines those that their methods have everywhere, two of a colour with different dashes; the
        others are grey."""
        found: dict[tuple[str, ...], style.Look] = {}
        for number, line in enumerate(lines):
            colour = canvas.colours(self, lines)["", line.key] if number < self.coloured else style.GREY
            alike = sum(look.colour == colour for look in found.values())
            found[line.key] = style.Look(colour, "", _DASHES[alike % len(_DASHES)])
        return found


def _apart(heights: list[float], gap: float) -> list[float]:
    """The heights of labels, moved until two neighbours are `gap` apart, in the same order, around where they were."""
    order = sorted(range(len(heights)), key=lambda one: (heights[one], -one))
    groups: list[tuple[list[int], float]] = []  # labels that touch each other, and their middle
    for one in order:
        members, middle = [one], heights[one]
        while groups and middle - groups[-1][1] < gap * (len(members) + len(groups[-1][0])) / 2 - 1e-12:
            below, _ = groups.pop()
            members = [*below, *members]
            middle = sum(heights[member] for member in members) / len(members)
            middle = max(middle, gap * (len(members) - 1) / 2)
            middle = min(middle, 1 - gap * (len(members) - 1) / 2) if gap * (len(members) - 1) <= 1 else 0.5
        groups.append((members, middle))
    found = [math.nan] * len(heights)
    for members, middle in groups:
        for place, member in enumerate(members):
            found[member] = middle + gap * (place - (len(members) - 1) / 2)
    return found
