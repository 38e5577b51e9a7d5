"""The study's number over a numeric label, such as the number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.report.figures.figure import Line, StudyFigure

if TYPE_CHECKING:
    from decentral.report.results import Results


@dataclass
class Scaling(StudyFigure):
    """values.csv: mean over seeds (and over labels that are neither panels, lines nor x) against the label `x`.

    The paper's numbers are drawn as crosses where they can be compared.
    """

    name: str = "scaling"
    x: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.x:
            raise ConfigError(f"the figure '{self.file}' needs `x`, the label to draw over.")

    def data(self, results: Results) -> list[Line]:
        """A line for each combination of panel and lines."""
        import pandas

        table = self.selected(results.values[results.values["chosen"]], results, (self.x,))
        found: list[Line] = []
        for panel, line, part in self.parts(table):
            x = pandas.to_numeric(part[self.x], errors="coerce")
            if x.isna().any():
                wrong = part[self.x][x.isna()].iloc[0]
                raise ConfigError(
                    f"study {results.study}: the figure '{self.file}' has x={self.x}, but {wrong} is no number."
                )
            part = part.assign(x=x, value=part["value"].where(part["value"].abs() < math.inf)).sort_values("x")
            part = part.assign(number=part.groupby("x").cumcount())
            wide = part.pivot(index="x", columns="number", values="value").dropna(axis=0, how="all")
            center, low, high = self.aggregate(wide)
            found.append(Line(panel, line, [float(v) for v in wide.index], center, low, high, points=True))
        return found

    def published(self, results: Results) -> list[Line]:
        """The published numbers of the cells that are drawn."""
        from decentral.report.published import EXCLUDED, numbers

        spec = results.spec.published
        if spec is None or not results.comparable:
            return []
        known = numbers(str(results.facts["paper"]), spec.item)
        theirs = {one.key: one.value for one in known if one.value is not None and one.kind != EXCLUDED}
        table = self.selected(results.values[results.values["chosen"]], results, (self.x,))
        table = table.assign(theirs=table["published"].map(theirs)).dropna(subset=["theirs"])
        found = []
        for panel, line, part in self.parts(table):
            points = sorted({(float(x), float(y)) for x, y in zip(part[self.x], part["theirs"], strict=True)})
            found.append(Line(panel, line, [x for x, _ in points], [y for _, y in points], points=True))
        return found
