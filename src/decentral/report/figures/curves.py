"""Lines over steps, epochs, seconds, bytes or vectors sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError, suggest
from decentral.report import style
from decentral.report.figures.figure import Line
from decentral.report.figures.line_figure import LineFigure
from decentral.store import AXES

if TYPE_CHECKING:
    import pandas

    from decentral.report.results import Results

VECTORS = "vectors_per_step"


@dataclass
class Curves(LineFigure):
    """curves.csv: the mean over seeds (and over labels that are neither panels nor lines), or every worker.

    worker   'worst', 'mean', 'averaged', a number, '' (where there is no such thing), or 'each': a thin line for every
             single worker of the first seed
    x        step, epoch, wall_s (seconds of training), bytes_sent (by all workers), or vectors: steps times the label
             `vectors_per_step`
    floor    smaller values are drawn here: a logarithmic axis cannot show 0; null: none
    """

    name: str = "curves"
    worker: str = ""
    x: str = "step"
    floor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.x not in (*AXES, "vectors"):
            raise ConfigError(f"the figure '{self.file}' has x={self.x}.{suggest(self.x, (*AXES, 'vectors'))}")

    def data(self, results: Results) -> list[Line]:
        """A line for each combination of panel and lines."""
        needs = (VECTORS,) if self.x == "vectors" else ()
        table = self.selected(results.curves, results, needs)
        if table.empty:
            return []
        if self.worker == "each":
            table = table[table["worker"].str.isdigit()]
            table = table[table["seed"] == table["seed"].min()]
        else:
            table = table[table["worker"] == self.worker]
        if table.empty:
            return []
        x = table["step"].mul(table[VECTORS].astype(float)) if needs else table[self.x]
        if x.isna().all():
            known = [axis for axis in AXES if results.curves[axis].notna().any()]
            raise ConfigError(
                f"study {results.study}: the figure '{self.file}' has x={self.x}, but its curves only have a place on "
                f"{', '.join(known)}: use one of these, or run decentral-study again."
            )
        drawn = table["value"].where(table["value"].abs() < style.LARGEST_DRAWN).clip(lower=self.floor)
        table = table.assign(x=x, value=drawn)
        table = table.assign(series=table.groupby([*results.labels, "worker", "seed"], sort=False).ngroup())
        found: list[Line] = []
        for panel, line, part in self.parts(table):
            if self.worker == "each":
                series = [rows for _, rows in part.groupby("series", sort=False)]
                found += [Line(panel, line, one["x"].tolist(), one["value"].tolist(), thin=True) for one in series]
            else:
                found.append(self._center(panel, line, part, results))
        return found

    def seeds(self, results: Results) -> int:
        """Of the curves: not all runs of a study need have some."""
        table = self.selected(results.curves, results)
        return min(1, len(table)) if self.worker == "each" else int(table["seed"].nunique())

    def _center(self, panel: str, line: tuple[str, ...], part: pandas.DataFrame, results: Results) -> Line:
        wide = part.pivot_table(index="x", columns="series", values="value")
        wide = wide.interpolate(method="index", limit_area="inside")  # runs need not be evaluated at the same steps
        wide = wide[wide.notna().sum(axis=1) * 2 > wide.shape[1]]  # the mean of a few that go on would jump
        center, low, high = self.aggregate(wide)
        return Line(panel, line, [float(x) for x in wide.index], center, low, high, **self.counted(part, wide, results))
