"""Lines and marks: over steps, time, bytes or a label, on several axes at once, or one metric against another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from decentral.errors import ConfigError, suggest
from decentral.measurements.values import NOT_REACHED
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.canvas import LineFigure
from decentral.report.figures.figure import METRIC, SCREEN, Line, Output
from decentral.report.published import EXCLUDED, REFERENCE, numbers
from decentral.report.series import CONSENSUS, without_rounding
from decentral.store import AXES, Status

if TYPE_CHECKING:
    import pandas
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from decentral.report.results import Results

AXIS_WORDS = {
    **{"epochs": ("epoch", "epoch"), "steps": ("step", "step"), "bytes": ("bytes_sent", "bytes_sent")},
    "seconds": ("wall_s", "simulated_s"),
    "tokens": ("tokens", "tokens"),
}
"""The words of `--x` -> the axis of the metrics: without and with simulated time."""
_COSTS = ("bytes_sent", "simulated_s", "wall_s")
_VECTORS = "vectors_per_step"
_TWO_DECADES = 100


@dataclass
class Curves(LineFigure):
    """curves.csv: the mean over seeds (and over labels that are neither panels nor lines), or every worker.

    worker      'worst', 'mean', 'averaged', a number, '' (for metrics without workers), or 'each': a thin line for
                every worker of the first seed
    x           steps, epochs, seconds (simulated, if time is simulated), bytes (sent by all workers), an axis of the
                metrics, such as wall_s, or vectors: steps times the label `vectors_per_step`
    floor       smallest value to draw, to which smaller ones are raised: a logarithmic axis cannot show 0; null: none
    cumulative  draw a cumulative distribution, as a step function; of several values at one x the largest counts
    target      value of the metric: a dashed line, with a star for each line where it is first evaluated there: the
                mean over the seeds that get there, as in tables, if these are more than half; null: none
    """

    name: str = "curves"
    worker: str = ""
    x: str = "step"
    floor: float | None = None
    cumulative: bool = False
    target: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*AXIS_WORDS, *AXES, "vectors")
        if self.x not in known:
            raise ConfigError(f"the figure '{self.file}' has x={self.x}.{suggest(self.x, known)}")

    def data(self, results: Results) -> list[Line]:
        """Return a line for each combination of panel and lines. Epochs of tasks without epochs are named steps."""
        needs = (_VECTORS,) if self.x == "vectors" else ()
        table = self.selected(results.curves, results, needs)
        if table.empty:
            return []
        if self.worker == "each":
            table = table[table["worker"].str.isdigit() & (table["seed"] == table["seed"].min())]
        else:
            table = table[table["worker"] == self.worker]
        if table.empty:
            return []
        if self.x in AXIS_WORDS:
            self.x = AXIS_WORDS[self.x][bool(results.curves["simulated_s"].notna().any())]
        if self.x == "epoch" and (table["step"] == table["epoch"]).all():
            self.x = "step"
        x = table["step"].mul(table[_VECTORS].astype(float)) if needs else table[self.x]
        if x.isna().all():
            known = [axis for axis in AXES if results.curves[axis].notna().any()]
            raise ConfigError(
                f"study {results.study}: the figure '{self.file}' has x={self.x}, but its curves only have values for "
                f"{', '.join(known)}: use one of these, or rerun decentral-study."
            )
        table = table.assign(x=x, series=table.groupby([*results.labels, "worker", "seed"], sort=False).ngroup())
        distance = table["metric"].str.endswith(CONSENSUS.replace("_", " "))
        exact = table[distance].groupby(["metric", "series"], sort=False)["value"].transform(without_rounding)
        drawn = exact.reindex(table.index).fillna(table["value"])
        drawn = drawn.where(drawn.abs() < style.LARGEST_DRAWN).clip(lower=self.floor)
        for metric, values in drawn.groupby(table["metric"]) if self.logy is None else ():
            falls = not results.larger_is_better(str(metric)) and values.min() >= 0
            if falls and values.max() > _TWO_DECADES * values[values > 0].min():
                self.logs.add(str(metric))
        table = table.assign(value=drawn)
        found: list[Line] = []
        for panel, line, part in self.parts(table):
            if self.worker == "each":
                for _, one in part.groupby("series", sort=False):
                    x, y = one["x"].tolist(), one["value"].tolist()
                    found.append(Line(panel, line, x, y, thin=True, reached=self._reached(panel, one, results)))
            else:
                found.append(self._center(panel, line, part, results))
        return found

    def shown(self, results: Results, panel: str = "") -> str:
        """Return the curves' metric, also where the study's first is the place at which it reaches a value."""
        return panel if self.panels == METRIC else self.metric or next(iter(results.curves["metric"]), results.metric)

    def seeds(self, results: Results) -> int:
        """Return the number of seeds of the curves, which not all runs of a study need to have."""
        table = self.selected(results.curves, results)
        return min(1, len(table)) if self.worker == "each" else int(table["seed"].nunique())

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """The common canvas, with the target as a line, and where each line gets there."""
        from matplotlib.ticker import MaxNLocator

        drawn = super().draw(results, lines, output)
        if self.target is None:
            return drawn
        colors = canvas.colors(self, lines)
        for panel, ax in zip(dict.fromkeys(line.panel for line in lines), drawn.axes, strict=False):
            low, _ = ax.get_ylim()
            ax.set_ylim(bottom=low)
            ax.axhline(self.target, color="#555555", lw=0.8, ls=(0, (4, 3)), zorder=1)
            for line in (line for line in lines if line.panel == panel):
                place, color = line.reached, colors[panel, line.key]
                if place is not None:
                    ax.plot([place, place], [low, self.target], color=color, lw=0.9, ls=":", zorder=2)
                    ax.plot([place], [self.target], marker="*", ms=9, color=color, mec="white", mew=0.6, zorder=6)
            if not self.logx and len(drawn.axes) > 1:
                ax.xaxis.set_major_locator(MaxNLocator(3 if output.small else 5))
        return drawn

    def signs(self, results: Results) -> list[Artist]:
        """The line and the stars at the target."""
        from matplotlib.lines import Line2D

        if self.target is None:
            return []
        unit = " %" * self.shown(results).endswith("(%)")
        look: dict[str, Any] = {"ls": (0, (4, 3)), "lw": 0.8, "marker": "*", "ms": 9, "color": style.GRAY}
        by = ", mean over seeds" * (self.seeds(results) > 1)
        label = f"target: {self.target:g}{unit}, \N{BLACK STAR} first reached{by}"
        return [Line2D([], [], label=label, **look)]

    def _center(self, panel: str, line: tuple[str, ...], part: pandas.DataFrame, results: Results) -> Line:
        # what runs of equally many steps cost differs: their mean is over the mean cost of each step
        at = "step" if self.x in _COSTS and part.groupby("series")["step"].max().nunique() == 1 else "x"
        wide = self._wide(part, at, "value")
        wide = wide[wide.notna().sum(axis=1) * 2 > wide.shape[1]]  # the mean of a few that go on would jump
        center, low, high = self.aggregate(wide)
        counted = self.counted(part, wide, results) | {"reached": self._reached(panel, part, results)}
        x = wide.index.astype(float)
        if at == "step":
            x = self._wide(part, at, "x").reindex(wide.index).where(wide.notna()).mean(axis=1)
        return Line(panel, line, x.tolist(), center, low, high, stairs=self.cumulative, **counted)

    def _reached(self, panel: str, part: pandas.DataFrame, results: Results) -> float | None:
        """Return the mean place at which the series of `part` are first evaluated at the target; None if it is not
        reached by more than half of them."""
        if self.target is None:
            return None
        rises = results.larger_is_better(self.shown(results, panel)) is not False
        good = part[part["value"] >= self.target if rises else part["value"] <= self.target]
        firsts = good.sort_values("step").groupby("series")["x"].first()
        return float(firsts.mean()) if 2 * len(firsts) > part["series"].nunique() else None

    def _wide(self, part: pandas.DataFrame, at: str, values: str) -> pandas.DataFrame:
        """Return a column for each series and a row for each place, also those at which only others are evaluated; of
        several values at one place, such as evaluations between which nothing was sent, the first."""
        wide = part.pivot_table(
            index=at, columns="series", values=values, aggfunc="max" if self.cumulative else "first"
        )
        return wide.ffill() if self.cumulative else wide.interpolate(method="index", limit_area="inside")


@dataclass
class Scaling(LineFigure):
    """values.csv: mean over seeds (and over labels that are neither panels, lines nor x) against the label `x`.

    The paper's numbers are drawn as rings at the cells that have some, also where other seeds or columns were chosen.

    y    value, or '1 - value': with a logarithmic axis, how far an eigenvalue is from 1
    """

    name: str = "scaling"
    x: str = ""
    y: Literal["value", "1 - value"] = "value"
    needs: ClassVar = ("x",)

    def data(self, results: Results) -> list[Line]:
        """A line for each combination of panel and lines."""
        table = self.selected(results.chosen, results, (self.x,))
        found: list[Line] = []
        for panel, line, part in self.parts(table):
            part = part.assign(x=self.numbers(part[self.x], results)).sort_values("x")
            wide = self._shown(self.by_place(part, results))
            center, low, high = self.aggregate(wide)
            counted = self.counted(part, wide, results)
            found.append(Line(panel, line, [float(v) for v in wide.index], center, low, high, points=True, **counted))
        return found

    def missing(self, results: Results, lines: list[Line]) -> dict[tuple[str, str], list[str]]:
        """Add the lines without a value at a place: 'never at 1024', if no run reached its target."""
        found = super().missing(results, lines)
        drawn = {(line.panel, line.key): line.x for line in lines}
        for panel, key, rows in self.parts(self.selected(results.chosen, results, (self.x,))):
            name = canvas.said(self, key)
            for x, here in rows.groupby(self.numbers(rows[self.x], results)):
                if x in drawn.get((panel, key), [x]) or name in found.get((panel, "diverged"), ()):
                    continue
                ends = set(here["status"])
                why = {Status.diverged: "diverged", NOT_REACHED: "never"}.get(ends.pop()) if len(ends) == 1 else None
                why = why or "no value in at least half of the runs"
                found.setdefault((panel, f"{why} at {x:g}"), []).append(name)
        return found

    def published(self, results: Results) -> list[Line]:
        """The published numbers of the cells that are drawn."""
        spec = results.spec.published
        if spec is None or not results.marked:
            return []
        known = numbers(str(results.facts["paper"]), spec.item)
        known = [one for one in known if one.value is not None and one.kind != EXCLUDED]
        theirs = {one.key: self._shown(one.value) for one in known}
        kinds = {one.key: REFERENCE if one.kind == REFERENCE else "published" for one in known}
        table = self.selected(results.chosen, results, (self.x,))
        table = table.assign(theirs=table["published"].map(theirs), kind=table["published"].map(kinds))
        found = []
        for panel, line, part in self.parts(table.dropna(subset=["theirs"])):
            for kind, rows in part.groupby("kind"):
                points = sorted({(float(x), float(y)) for x, y in zip(rows[self.x], rows["theirs"], strict=True)})
                x, y = [x for x, _ in points], [y for _, y in points]
                found.append(Line(panel, line, x, y, points=True, kind=str(kind)))
        return found

    def _shown(self, value: Any) -> Any:
        return 1 - value if self.y == "1 - value" else value


@dataclass
class ThreeAxes(Curves):
    """curves.csv, as `curves` draws it, with a panel for each axis: what a method costs is another question on each.

    With a target, the legend shows where each line reaches it, or that it never does.

    axes     axes of the panels, from left to right; axes without curves are omitted
    """

    name: str = "three_axes"
    worker: str = "worst"
    axes: list[str] = field(default_factory=lambda: ["simulated_s", "bytes_sent", "epoch"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.panels:
            raise ConfigError(
                f"the figure '{self.file}' has panels={self.panels}, but its panels are its axes: leave it out, or "
                "select data with `only`."
            )
        for axis in self.axes:
            if axis not in AXES:
                raise ConfigError(f"the figure '{self.file}' has the axis {axis}.{suggest(axis, AXES)}")

    def data(self, results: Results) -> list[Line]:
        """A line for each axis and each combination of lines; an axis is a panel."""
        found: list[Line] = []
        for axis in self.axes:
            if axis in results.curves and results.curves[axis].notna().any():
                self.x = axis
                found += [line._replace(panel=axis) for line in super().data(results)]
        return found

    def over(self, panel: str) -> str:
        """A panel is an axis."""
        return panel

    def label(self, key: tuple[str, ...], lines: list[Line]) -> str:
        """Return the line's name, and where it reaches the target on each axis."""
        if self.target is None:
            return canvas.said(self, key)
        places = {line.panel: line.reached for line in lines if line.key == key}
        words = [style.amount(place, axis) for axis, place in places.items() if place is not None]
        return f"{canvas.said(self, key)}: {', '.join(words) or 'never'}"
