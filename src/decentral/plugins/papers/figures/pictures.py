"""Positions in a plane after some steps, and groups of workers: rows of small panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import SCREEN, Line, Output, StudyFigure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_LINK, _RED = "#7D8F9E", "#C00000"
_PLACE, _HEADING, _ESTIMATE, _LEADER = "place", "heading", "estimate", "leader"
_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BLACK, "#8C6D1F")
_GROUP, _PARENT, _HOP = "group", "called by", "hop"


@dataclass
class Strip(StudyFigure):
    """curves.csv: positions of all workers after a few steps; a row for each value of `panels`, a column for each step.

    The metrics 'place x' and 'place y' of every worker of the first seed; if recorded, their 'heading' (radians, drawn
    as arrows) and their estimate ('estimate x', 'estimate y').

    xlim, ylim  shown range, the same in all panels; a panel's heading gives the number of estimates outside it
    unit        unit of both axes
    leader      worker drawn differently from the others: the one whose position they estimate
    radius      workers nearer than this are linked by a line; 0: no lines
    words       names of workers, estimates, the leader and links in the legend
    """

    name: str = "strip"
    unit: str = ""
    leader: str = ""
    radius: float = 0.0
    words: list[str] = field(default_factory=lambda: ["worker", "estimate", "leader", "neighbors"])
    needs: ClassVar = ("panels", "xlim", "ylim")

    def __post_init__(self) -> None:
        super().__post_init__()
        if None in (*self.xlim, *self.ylim):
            raise ConfigError(
                f"the figure '{self.file}' needs `xlim` and `ylim`, two numbers each: all panels show it."
            )
        if len(self.words) != 4:
            raise ConfigError(f"the figure '{self.file}' needs four words: of workers, estimates, leader, links.")

    def data(self, results: Results) -> list[Line]:
        """Return for each row and step: positions, headings (as unit vectors) and estimates, and the leader's position.

        The key of a line is (kind, step).
        """
        wanted = ["place x", "place y", "heading", "estimate x", "estimate y"]
        table = self.limited(results.curves, results)
        table = table[table["metric"].isin(wanted) & (table["seed"] == table["seed"].min())]
        found: list[Line] = []
        for panel, _, rows in self.parts(table):
            for step, here in rows.groupby("step", sort=True):
                wide = here.pivot(index="worker", columns="metric", values="value").reindex(columns=wanted)
                leader, others = wide[wide.index == self.leader], wide[wide.index != self.leader]
                heading = others["heading"].to_numpy()
                pairs = {
                    _PLACE: (others["place x"], others["place y"]),
                    _HEADING: (np.cos(heading), np.sin(heading)),
                    _ESTIMATE: (others["estimate x"], others["estimate y"]),
                    _LEADER: (leader["place x"], leader["place y"]),
                }
                found += [Line(panel, (what, f"{step:g}"), list(x), list(y)) for what, (x, y) in pairs.items()]
        return found

    def seeds(self, results: Results) -> int:
        """Return 1: only the first seed is drawn."""
        return 1

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Draw a panel for each row and step, all with the same axes."""
        rows = list(dict.fromkeys(line.panel for line in lines))
        of_row = {row: sorted({line.key[1] for line in lines if line.panel == row}, key=float) for row in rows}
        steps = max(map(len, of_row.values()))
        across = output.width or steps * 2.2 + 0.7
        side = (across - 0.7) / steps
        letters = (5.5, 6.0) if output.small else (7.0, 8.5)  # points, of ticks and of headings
        width, height = (float(last or 0) - float(first or 0) for first, last in (self.xlim, self.ylim))
        legends: list[Sequence[Artist]] = [self._legend(), canvas.notes(self, results, lines, output)]
        below = len(rows) * (side * height / width + 0.28) + 0.4
        drawn = canvas.blank(across, below, canvas.heads(self, results, lines), legends, output)
        axes = drawn.subplots(len(rows), steps, squeeze=False, sharex=True, sharey=True)
        for row, panels in zip(rows, axes, strict=True):
            for ax, step in zip(panels, of_row[row], strict=False):
                here = {line.key[0]: line for line in lines if line.panel == row and line.key[1] == step}
                self._fill(ax, here)
                ax.tick_params(labelsize=letters[0], length=2)
                outside = self._outside(here[_ESTIMATE], "" if output.small else " estimates")
                ax.set_title(f"{self.xlabel} {step}{outside}".strip(), fontsize=letters[1], loc="left")
            for unused in panels[len(of_row[row]) :]:
                unused.set_visible(False)
            panels[0].set_ylabel(f"{self.called(self.panels, row)}\n{self.unit}".strip())
        for ax in axes[-1]:
            ax.set_xlabel(self.unit)
        return drawn

    def _fill(self, ax: Axes, here: dict[str, Line]) -> None:
        ax.set_aspect("equal")
        ax.set(xlim=tuple(self.xlim), ylim=tuple(self.ylim))
        ax.spines[:].set_color("#CCCCCC")
        place, heading = here[_PLACE], here[_HEADING]
        self._link(ax, place)
        ax.plot(
            here[_ESTIMATE].x, here[_ESTIMATE].y, ls="none", marker="o", ms=1.8, mew=0, color=style.ORANGE, zorder=2
        )
        arrows: dict[str, Any] = {
            **{"scale": 22, "width": 0.009, "pivot": "mid"},
            **{"headwidth": 4.5, "headlength": 6.5, "headaxislength": 5.5},
        }
        ax.quiver(place.x, place.y, heading.x, heading.y, color=style.BLUE, zorder=3, **arrows)
        ax.plot(here[_LEADER].x, here[_LEADER].y, ls="none", marker="X", ms=8, mec="white", color=_RED, zorder=4)

    def _link(self, ax: Axes, place: Line) -> None:
        """Draw a line between any two workers nearer than `radius`."""
        at = np.array([place.x, place.y]).T
        one, other = np.triu_indices(len(at), 1)
        near = np.hypot(*(at[one] - at[other]).T) <= self.radius
        nothing = np.full((int(near.sum()), 2), np.nan)  # ends a line
        path = np.stack([at[one[near]], at[other[near]], nothing], axis=1).reshape(-1, 2)
        ax.plot(*path.T, lw=0.7, color=_LINK, zorder=1)

    def _outside(self, estimate: Line, called: str) -> str:
        """Return a phrase for the heading: the number of estimates outside the panel; '' if there are none."""
        (left, right), (low, high) = ([float(limit or 0) for limit in limits] for limits in (self.xlim, self.ylim))
        places = zip(estimate.x, estimate.y, strict=True)
        count = sum(x < left or x > right or y < low or y > high for x, y in places)
        return f" ({count}{called.removesuffix('s') if count == 1 else called} outside)" if count else ""

    def _legend(self) -> list[Artist]:
        from matplotlib.lines import Line2D

        worker, estimate, leader, link = self.words
        shapes: list[Artist] = [
            Line2D([], [], ls="none", marker=(3, 0, -90), ms=6, mew=0, color=style.BLUE, label=worker),
            Line2D([], [], ls="none", marker="o", ms=3, mew=0, color=style.ORANGE, label=estimate),
            Line2D([], [], ls="none", marker="X", ms=8, mec="white", color=_RED, label=leader),
            Line2D([], [], lw=0.8, color=_LINK, label=link),
        ]
        return shapes if self.radius else shapes[:-1]


@dataclass
class GroupsFigure(StudyFigure):
    """curves.csv: a row for each value of the label `groups`. The left panel shows the workers from left to right and
    versions from top to bottom, with a color for each group. The right panel shows who calls whom when worker 1 starts
    a version."""

    name: str = "groups"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.panels = self.panels or "groups"

    def data(self, results: Results) -> list[Line]:
        """Return for each row: (worker, version) of each group, with the key (kind, number); then the tree."""
        lines: list[Line] = []
        for panel, _, rows in self.parts(self.limited(results.curves, results)):
            rows = rows.assign(worker=rows["worker"].astype(int)).sort_values(["step", "worker"])
            for number, members in rows[rows["metric"] == _GROUP].groupby("value", sort=True):
                at = [float(x) for x in members["worker"]], [float(t) for t in members["step"]]
                lines.append(Line(panel, (_GROUP, f"{number:g}"), *at, points=True))
            for what in (_PARENT, _HOP):
                metric_rows = rows[rows["metric"] == what]
                lines.append(
                    Line(panel, (what, ""), [float(x) for x in metric_rows["worker"]], metric_rows["value"].tolist())
                )
        return lines

    def seeds(self, results: Results) -> int:
        """Return 0: there are no seeds."""
        return 1

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Draw two panels for each row."""
        from matplotlib.ticker import MaxNLocator

        rows = list(dict.fromkeys(line.panel for line in lines))
        notes = [canvas.notes(self, results, lines, output)]
        heads = canvas.heads(self, results, lines)
        drawn = canvas.blank(output.width or 8.0, len(rows) * 2.6, heads, notes, output)
        for row, (left, right) in zip(rows, drawn.subplots(len(rows), 2, squeeze=False), strict=True):
            groups = [line for line in lines if line.panel == row and line.key[0] == _GROUP]
            for number, group in enumerate(groups):
                left.plot(group.x, group.y, ls="none", marker="o", ms=5, color=_COLORS[number % len(_COLORS)])
            tree = {line.key[0]: line for line in lines if line.panel == row}
            parent, hop = tree[_PARENT].y, tree[_HOP]
            for worker, (caller, depth) in enumerate(zip(parent, hop.y, strict=True)):
                right.plot([caller, worker], [depth - 1 if depth else 0, depth], lw=0.8, color=style.GRAY, zorder=1)
            right.plot(hop.x, hop.y, ls="none", marker="o", ms=5, color=style.BLUE, zorder=2)
            last = max(max(group.y) for group in groups), max(hop.y)
            for ax, title, down, end in zip(
                (left, right), (row, "worker 1 activates all"), ("version", "hops"), last, strict=True
            ):
                ax.set_title(title, loc="left")
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
                ax.set(xlabel="worker", ylabel=down, ylim=(end + 0.5, -0.5))
                ax.set_yticks(range(int(end) + 1))
        return drawn
