"""Who is in a group with whom in every version, and the tree by which one worker calls all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

    from decentral.report.results import Results

_COLOURS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BLACK, "#8C6D1F")
_GROUP, _PARENT, _HOP = "group", "called by", "hop"
_ROW_INCHES = 2.6


@dataclass
class GroupsFigure(StudyFigure):
    """curves.csv: a row for each value of the label `groups`. On the left the workers from left to right, versions from
    above, a colour for each group; on the right who calls whom when worker 1 sets a version off."""

    name: str = "groups"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.panels = self.panels or "groups"

    def data(self, results: Results) -> list[Line]:
        """For each row: (worker, version) of each group, of which the key is (what, number); then the tree."""
        found: list[Line] = []
        for panel, _, rows in self.parts(self.limited(results.curves, results)):
            rows = rows.assign(worker=rows["worker"].astype(int)).sort_values(["step", "worker"])
            for number, members in rows[rows["metric"] == _GROUP].groupby("value", sort=True):
                at = [float(x) for x in members["worker"]], [float(t) for t in members["step"]]
                found.append(Line(panel, (_GROUP, f"{number:g}"), *at, points=True))
            for what in (_PARENT, _HOP):
                own = rows[rows["metric"] == what]
                found.append(Line(panel, (what, ""), [float(x) for x in own["worker"]], own["value"].tolist()))
        return found

    def seeds(self, results: Results) -> int:
        """There are none."""
        return 1

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Two panels for each row."""
        rows = list(dict.fromkeys(line.panel for line in lines))
        notes = [canvas.notes(self, results, lines, output)]
        heads = canvas.heads(self, results, lines)
        drawn = canvas.blank(output.width or 8.0, len(rows) * _ROW_INCHES, heads, notes, output)
        axes = drawn.subplots(len(rows), 2, squeeze=False)
        for row, (left, right) in zip(rows, axes, strict=True):
            here = [line for line in lines if line.panel == row]
            self._versions(left, [line for line in here if line.key[0] == _GROUP])
            tree = {line.key[0]: line for line in here if line.key[0] != _GROUP}
            self._tree(right, tree[_PARENT], tree[_HOP])
            left.set_title(row, loc="left")
            right.set_title("worker 1 calls all", loc="left")
        return drawn

    def _versions(self, ax: Axes, groups: list[Line]) -> None:
        for number, group in enumerate(groups):
            ax.plot(group.x, group.y, ls="none", marker="o", ms=5, color=_COLOURS[number % len(_COLOURS)])
        ax.xaxis.set_major_locator(_whole())
        versions = max(max(group.y) for group in groups)
        ax.set(xlabel="worker", ylabel="version", ylim=(versions + 0.5, -0.5))
        ax.set_yticks(range(int(versions) + 1))

    def _tree(self, ax: Axes, parent: Line, hop: Line) -> None:
        for worker, (caller, depth) in enumerate(zip(parent.y, hop.y, strict=True)):
            ax.plot([caller, worker], [depth - 1 if depth else 0, depth], lw=0.8, color=style.GREY, zorder=1)
        ax.plot(hop.x, hop.y, ls="none", marker="o", ms=5, color=style.BLUE, zorder=2)
        ax.xaxis.set_major_locator(_whole())
        ax.set(xlabel="worker", ylabel="hops", ylim=(max(hop.y) + 0.5, -0.5))
        ax.set_yticks(range(int(max(hop.y)) + 1))


def _whole() -> Locator:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)
