"""A map of which line is the best, over two numeric labels, with colored and named regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import SCREEN, Line, Output, StudyFigure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from decentral.report.results import Results

_LEVELS = (1.25, 2, 5, 20, 100)
_DARK = 0.55
"""Colors that are darker than this have white letters on them."""
_LEAST_NAMED = 0.03
"""Share of a map that a region needs to have its name on it."""
_LETTER = 0.68
"""Width of a bold letter, relative to its size."""
_BESIDE = 0.65
"""Inches of a panel that are not its map."""


class Region(NamedTuple):
    """Region that `Map` draws in a panel."""

    x: list[float]
    y: list[float]
    keys: list[tuple[str, ...]]
    """The lines that there are."""
    best: np.ndarray
    """int [len(y), len(x)]: which of them is the best one; -1 where nothing is known."""
    ahead: np.ndarray
    """float64 [len(y), len(x)]: how many times as good as the second."""
    gain: np.ndarray | None
    """The same of the line `against`."""


@dataclass
class Map(StudyFigure):
    """values.csv: at every place (x, y), of which line the mean over seeds is the best; a color for each line.

    Places at which the second is nearly as good are pale. Contours: how many times as good the best is as another line.

    x, y      labels that are numbers
    close     a place is pale if the second-best is at most this share behind
    against   a line, the values of `lines` separated by commas; '': no lines of equal gain
    """

    name: str = "map"
    x: str = ""
    y: str = ""
    close: float = 0.01
    against: str = ""
    needs: ClassVar = ("x", "y", "lines")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.close < 1:
            raise ConfigError(f"the figure '{self.file}' has close={self.close:g}: use a share from 0 to 1.")

    def data(self, results: Results) -> list[Line]:
        """Return a line over x for each combination of panel, lines and y; y is the last word of the key."""
        found: list[Line] = []
        for panel, line, part in self.parts(self.selected(results.chosen, results, (self.x, self.y))):
            part = part.assign(x=self.numbers(part[self.x], results), y=self.numbers(part[self.y], results))
            wide = self.by_place(part.sort_values(["y", "x"]), results, ("y", "x"))
            counted, (center, _, _) = self.counted(part, wide, results), self.aggregate(wide)
            values = wide.assign(center=center)["center"]
            for y, row in values.groupby(level="y"):
                places = row.index.get_level_values("x").tolist()
                found.append(Line(panel, (*line, f"{y:g}"), places, row.tolist(), **counted))
        return found

    def regions(self, results: Results, lines: list[Line]) -> dict[str, Region]:
        """Panel -> what is drawn there. Raises ConfigError if nobody knows which end of the metric is the better one,
        or there is no line `against`."""
        metric = self.metric or results.metric
        larger = results.larger_is_better(metric)
        if larger is None:
            raise ConfigError(
                f"study {results.study}: the figure '{self.file}' ranks {metric}, which has no better direction: "
                "choose another metric."
            )
        panels = dict.fromkeys(line.panel for line in lines)
        return {panel: self._region([line for line in lines if line.panel == panel], larger) for panel in panels}

    def _region(self, lines: list[Line], larger: bool) -> Region:
        keys = list(dict.fromkeys(line.key[:-1] for line in lines))
        x = sorted({place for line in lines for place in line.x})
        y = sorted({float(line.key[-1]) for line in lines})
        cost = np.full((len(keys), len(y), len(x)), math.inf)
        for line in lines:
            at = keys.index(line.key[:-1]), y.index(float(line.key[-1])), [x.index(place) for place in line.x]
            values = np.array(line.y)
            cost[at] = 1 / values if larger else values
        cost[np.isnan(cost)] = math.inf
        ranked = np.sort(cost, axis=0)
        known = np.isfinite(ranked[0])
        least = np.where(known, ranked[0], math.nan)
        second = ranked[1] if len(keys) > 1 else np.full_like(least, math.inf)
        gain = None
        if self.against:
            names = [",".join(key) for key in keys]
            if self.against not in names:
                raise ConfigError(f"the figure '{self.file}' has against={self.against}.{suggest(self.against, names)}")
            gain = cost[names.index(self.against)] / least
        return Region(x, y, keys, np.where(known, cost.argmin(axis=0), -1), second / least, gain)

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """A panel for each value of `panels`, beside each other; below them what the colors are."""
        regions = self.regions(results, lines)
        plain = [line._replace(key=line.key[:-1]) for line in lines]
        colors = {key: color for (_, key), color in canvas.colors(self, plain).items()}
        legends: list[Sequence[Artist]] = [
            self._legend(regions, colors),
            self._signs(regions),
            canvas.notes(self, results, lines, output),
        ]
        width = output.width or (6.4 if len(regions) == 1 else 4.3 * len(regions) + 0.4)
        body = min(3.9, 0.95 * width / len(regions))
        drawn = canvas.blank(width, body, canvas.heads(self, results, plain), legends, output)
        axes = drawn.subplots(1, len(regions), squeeze=False, sharey=True)[0]
        letters = 6.0 if output.small else 8.5
        for ax, (panel, region) in zip(axes, regions.items(), strict=True):
            self._fill(ax, region, colors, letters, max(0.3, width / len(regions) - _BESIDE))
            ax.set_title(self.called(self.panels, panel) if self.panels else "", loc="left")
            ax.set_xlabel(self.xlabel or style.heading(self.x))
            ax.tick_params(labelsize=letters - 0.5)
        axes[0].set_ylabel(self.ylabel or style.heading(self.y))
        return drawn

    def _fill(
        self, ax: Axes, region: Region, colors: dict[tuple[str, ...], str], letters: float, inches: float
    ) -> None:
        from matplotlib.colors import to_rgb
        from matplotlib.ticker import FixedLocator, NullLocator

        picture = np.ones((*region.best.shape, 3))
        for number, key in enumerate(region.keys):
            color = np.array(to_rgb(colors[key]))
            mine = region.best == number
            picture[mine] = color
            picture[mine & (region.ahead <= 1 + self.close)] = 0.6 + 0.4 * color
        edges = _edges(region.x, self.logx), _edges(region.y, bool(self.logy))
        ax.pcolormesh(*edges, picture, edgecolors=(1, 1, 1, 0.35), linewidth=0.4)
        ax.set(xscale="log" if self.logx else "linear", yscale="log" if bool(self.logy) else "linear")
        for axis, places in ((ax.xaxis, region.x), (ax.yaxis, region.y)):
            every = -(-len(places) // 10)
            axis.set_major_locator(FixedLocator(places[::every]))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        names = self._names(ax, region, picture, letters, inches)
        if region.gain is not None and min(region.best.shape) > 1:
            gain = np.where(np.isfinite(region.gain), region.gain, np.nan)
            if levels := [one for one in _LEVELS if np.nanmin(gain) < one < np.nanmax(gain)]:
                drawn = ax.contour(region.x, region.y, gain, levels=levels, colors="white", linewidths=0.9)
                at = self._beside(drawn.allsegs, edges, names)
                for text in ax.clabel(
                    drawn, fmt=lambda value: f"{value:g}x", fontsize=letters - 1, manual=at, zorder=5
                ):
                    text.set_path_effects(_halo("#222222"))

    def _beside(
        self, contours: list[list[np.ndarray]], edges: tuple[np.ndarray, np.ndarray], taken: list[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        """A place on each contour for its number, as far as possible from names, other numbers and the border."""
        found: list[tuple[float, float]] = []
        for parts in contours:
            points = np.concatenate([np.empty((0, 2)), *parts])
            if not len(points):
                continue
            at = np.stack(
                [_share(points[:, 0], edges[0], self.logx), _share(points[:, 1], edges[1], bool(self.logy))], axis=1
            )
            away = [np.hypot(0.5 * (at[:, 0] - x), at[:, 1] - y) for x, y in taken]
            best = int(np.min([*away, at.min(axis=1), 1 - at.max(axis=1)], axis=0).argmax())
            taken = [*taken, (float(at[best, 0]), float(at[best, 1]))]
            found.append((float(points[best, 0]), float(points[best, 1])))
        return found

    def _names(
        self, ax: Axes, region: Region, picture: np.ndarray, letters: float, inches: float
    ) -> list[tuple[float, float]]:
        """Write the name of each region far from its border, if it is wide enough; others have the legend. Returns
        where the names are, as shares of the axes."""
        from scipy.ndimage import distance_transform_edt, label

        found: list[tuple[float, float]] = []
        borders = _edges(region.x, self.logx)
        edges, middles = _share(borders, borders, self.logx), _share(np.array(region.x), borders, self.logx)
        heights = _share(np.array(region.y), _edges(region.y, bool(self.logy)), bool(self.logy))
        for number, key in enumerate(region.keys):
            name = canvas.said(self, key)
            need = len(name) * _LETTER * (letters + 0.5) / 72 / inches
            parts, count = label(region.best == number)
            for part in range(1, count + 1):
                mine = parts == part
                inside = distance_transform_edt(np.pad(mine, 1))[1:-1, 1:-1]
                runs = [[_run(row, column) for column in range(mine.shape[1])] for row in mine]
                wide = np.array([[edges[right] - edges[left] for left, right in row] for row in runs])
                if mine.sum() < max(2.0, _LEAST_NAMED * mine.size) or not (wide >= need).any():
                    continue
                row, column = np.unravel_index(np.where(wide >= need, inside, -1.0).argmax(), mine.shape)
                left, right = runs[row][column]
                x = float(np.clip(middles[column], edges[left] + need / 2, edges[right] - need / 2))
                dark = float(picture[row, column].mean()) < _DARK
                ax.text(
                    x,
                    float(heights[row]),
                    name,
                    transform=ax.transAxes,
                    ha="center",
                    va="center",
                    fontsize=letters + 0.5,
                    fontweight="bold",
                    color="white" if dark else "#222222",
                    path_effects=_halo("#222222" if dark else "white"),
                    clip_on=True,
                    zorder=6,
                )
                found.append((x, float(heights[row])))
        return found

    def _legend(self, regions: dict[str, Region], colors: dict[tuple[str, ...], str]) -> list[Artist]:
        """A color for everyone who is the best somewhere."""
        from matplotlib.patches import Patch

        keys = dict.fromkeys(key for region in regions.values() for key in region.keys)
        winners = {
            region.keys[number] for region in regions.values() for number in set(region.best.ravel().tolist()) - {-1}
        }
        return [Patch(facecolor=colors[key], label=canvas.said(self, key)) for key in keys if key in winners]

    def _signs(self, regions: dict[str, Region]) -> list[Artist]:
        """Return the legend's entries for pale places and lines, if there are some."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        found: list[Artist] = []
        if any((region.ahead <= 1 + self.close).any() for region in regions.values()):
            text = f"pale: runner-up within {100 * self.close:g} %"
            found.append(Patch(facecolor="#DDDDDD", label=text))
        if self.against:
            found.append(Line2D([], [], ls="none", label=f"contours: improvement factor over {self.against}"))
        return found


def _edges(places: list[float], log: bool) -> np.ndarray:
    """Return where the fields of a map with these middles end: half way to the next one."""
    middle = np.log(places) if log else np.array(places)
    if len(middle) == 1:
        middle = np.array([middle[0] - 0.5, middle[0] + 0.5])
        return np.exp(middle) if log else middle
    between = (middle[1:] + middle[:-1]) / 2
    edges = np.concatenate([[2 * middle[0] - between[0]], between, [2 * middle[-1] - between[-1]]])
    return np.exp(edges) if log else edges


def _share(places: np.ndarray, edges: np.ndarray, log: bool) -> np.ndarray:
    """Places as shares of an axis with these edges."""
    scaled, (low, *_, high) = (np.log(places), np.log(edges)) if log else (places, edges)
    found: np.ndarray = (scaled - low) / (high - low)
    return found


def _run(row: np.ndarray, column: int) -> tuple[int, int]:
    """The numbers of the edges of the fields around `column` that are True; twice the same if it is False itself."""
    left = next((at for at in range(column, -1, -1) if not row[at]), -1) + 1
    right = next((at for at in range(column, len(row)) if not row[at]), len(row))
    return (left, right) if row[column] else (column, column)


def _halo(color: str) -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=1.6, foreground=color)]
