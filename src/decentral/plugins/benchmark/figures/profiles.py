"""Comparison of methods over many problems: performance profiles, and factors relative to the best as a colored
table."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from decentral.plugins.benchmark.listings.ranking import Costs, costs
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import SCREEN, Line, Output, StudyFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_PALEST = 8.0
"""Factor above which the color of a cell gets no paler."""
_NEVER = "#E4E4E4"


@dataclass
class Profile(StudyFigure):
    """values.csv: rho(tau), the share of problems in which the median over seeds is at most tau times that of the best.

    A line begins, at 1, with the share of problems in which the method is the best. It ends with the share in which it
    reaches the target at all (Dolan & More, 2002). The methods with the best mean ranks have colors. Every line has its
    name at its end.

    problem    label that distinguishes problems
    coloured   number of colored lines; the others are gray
    """

    name: str = "profile"
    center: Literal["mean", "median"] = "median"
    problem: str = "scenario"
    coloured: int = 8
    needs: ClassVar = ("lines",)

    def data(self, results: Results) -> list[Line]:
        """Return a line for each method, from the best mean rank to the worst."""
        problem_costs = costs(results, self.metric or results.metric, self.problem, self.lines)
        if not problem_costs.methods:
            return []
        finite = problem_costs.ratios[np.isfinite(problem_costs.ratios)]
        last = min(64.0, 1.15 * float(finite.max())) if finite.size else 2.0
        taus = sorted({1.0, *(float(one) for one in finite if one <= last), max(last, 1.5)})
        shares = problem_costs.profile(taus)
        return [_line(problem_costs, one, taus, shares[one]) for one in problem_costs.order()]

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Draw one panel, logarithmic in tau, with names to the right that do not overlap."""
        # the first lines look like their methods; the others are gray
        small, looks = output.small, {key: look for (_, key), look in canvas.looks_of(self, lines).items()}
        for line in lines[self.coloured :]:
            looks[line.key] = style.Look(style.GRAY, "")
        taller = max(1.0, len(lines) / 22)  # as the names need
        height = (3.2 if small else 4.9) * taller
        drawn = canvas.blank(output.width or 8.4, height, canvas.heads(self, results, lines), [], output)
        ax = drawn.subplots()
        for number, line in reversed(list(enumerate(lines))):
            strong = number < self.coloured
            drawing: dict[str, Any] = {"lw": 2.0 if strong else 1.0, "zorder": 4 if strong else 2}
            ax.plot(line.x, line.y, drawstyle="steps-post", **looks[line.key].keywords, **drawing)
        ax.set_xscale("log")
        ax.set_xlim(1, max(line.x[-1] for line in lines))
        ax.set_ylim(-0.02, 1.02)
        few = (
            (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if lines[0].x[-1] > 10.0 else (1, 1.25, 1.5, 2, 3, 4, 6, 8)
        )
        ticks = [tick for tick in few if tick <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        style.tidy(ax, 6.5 if small else 8)
        ax.set_xlabel(self.xlabel or "performance ratio to the best, at most")
        found = costs(results, self.metric or results.metric, self.problem, self.lines)
        weights = " (families weigh equally)" if len(set(found.families)) < len(found.problems) else ""
        ax.set_ylabel(self.ylabel or f"share of {self.problem}s{weights}")
        gap = (0.072 if small else 0.048) * 1.04 / taller
        heights = _apart([line.y[-1] for line in lines], gap)
        wide = ax.get_yaxis_transform()  # x as a part of the panel
        for line, height in zip(lines, heights, strict=True):
            look: dict[str, Any] = {"color": looks[line.key].color, "clip_on": False, "transform": wide}
            ax.plot([1.0, 1.012, 1.032, 1.04], [line.y[-1], line.y[-1], height, height], lw=0.7, **look)
            letters: dict[str, Any] = {"fontsize": 6 if small else 8, "va": "center"}
            ax.text(1.046, height, canvas.said(self, line.key), **letters, **look)
        return drawn


def _line(found: Costs, method: int, x: list[float], y: np.ndarray) -> Line:
    counts = {len(seeds) for seeds in found.seeds[method]}
    among: dict[str, Any] = {"among": "seed", "least": min(counts), "most": max(counts)}
    return Line("", found.methods[method], x, [float(value) for value in y], **among)


def _apart(heights: list[float], gap: float) -> list[float]:
    """Return the heights of labels, moved apart to a distance of `gap`, in the same order and near their old
    positions."""
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


@dataclass
class Factors(StudyFigure):
    """values.csv: for each method (a row) and problem (a column) the median over seeds, divided by that of the best.

    The best method of a column has 1; a method that never reaches the target has a cross. Rows are sorted by mean rank.
    The table shows which method is best under which condition, and how much the others lose.

    problem   label that distinguishes problems
    """

    name: str = "factors"
    center: Literal["mean", "median"] = "median"
    problem: str = "scenario"
    needs: ClassVar = ("lines",)

    def data(self, results: Results) -> list[Line]:
        """Return a line for each method: its factors, by the number of the problem."""
        found = costs(results, self.metric or results.metric, self.problem, self.lines)
        places = [float(number) for number in range(len(found.problems))]
        return [_line(found, method, places, found.ratios[method]) for method in found.order()]

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Draw one panel; columns have the names of the problems."""
        from matplotlib import colormaps
        from matplotlib.colors import to_rgb

        problems = costs(results, self.metric or results.metric, self.problem, self.lines).problems
        letters = 6.0 if output.small else 8.0
        body = 0.245 * len(lines) + 1.2
        width = output.width or max(6.4, 2.6 + 0.82 * len(problems))
        body *= 0.75 if output.small else 1
        drawn = canvas.blank(width, body, canvas.heads(self, results, lines), [], output)
        ax = drawn.subplots()
        colors = colormaps["YlGnBu_r"]
        picture = np.ones((len(lines), len(problems), 3))
        for row, line in enumerate(lines):
            for column, factor in enumerate(line.y):
                if not math.isfinite(factor):
                    picture[row, column] = to_rgb(_NEVER)
                    ax.text(column, row, "never", ha="center", va="center", fontsize=letters - 1, color="#8A8A8A")
                    continue
                share = min(1.0, math.log(factor) / math.log(_PALEST)) if factor > 1 else 0.0
                picture[row, column] = colors(0.12 + 0.86 * share)[:3]
                dark = float(picture[row, column].mean()) < 0.55
                text = f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"
                weight = "bold" if factor <= 1 + 1e-9 else "normal"
                ink = "white" if dark else "#222222"
                ax.text(column, row, text, ha="center", va="center", fontsize=letters, color=ink, fontweight=weight)
        ax.imshow(picture, aspect="auto", interpolation="nearest")
        ax.set_xticks(range(len(problems)), [re.sub("[_.]", "\n", name) for name in problems])
        ax.set_yticks(range(len(lines)), [canvas.said(self, line.key) for line in lines])
        ax.set_xticks(np.arange(len(problems) - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(len(lines) - 1) + 0.5, minor=True)
        ax.grid(which="minor", color="white", lw=1.2)
        ax.tick_params(which="both", length=0, labelsize=letters)
        ax.xaxis.tick_top()
        ax.spines[:].set_visible(False)
        ax.set_xlabel(self.xlabel)
        return drawn
