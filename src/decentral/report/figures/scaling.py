"""The study's number over a numeric label, such as the number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from decentral.errors import ConfigError
from decentral.report.figures.figure import Line
from decentral.report.figures.line_figure import LineFigure

if TYPE_CHECKING:
    import pandas

    from decentral.report.results import Results

Number = TypeVar("Number", "pandas.DataFrame", float)


@dataclass
class Scaling(LineFigure):
    """values.csv: mean over seeds (and over labels that are neither panels, lines nor x) against the label `x`.

    The paper's numbers are drawn as rings where they can be compared.

    y    value, or '1 - value': with a logarithmic axis, how far an eigenvalue is from 1
    """

    name: str = "scaling"
    x: str = ""
    y: Literal["value", "1 - value"] = "value"

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
            wide = self._shown(self.by_place(part.assign(x=x).sort_values("x"), results))
            center, low, high = self.aggregate(wide)
            counted = self.counted(part, wide, results)
            found.append(Line(panel, line, [float(v) for v in wide.index], center, low, high, points=True, **counted))
        return found

    def published(self, results: Results) -> list[Line]:
        """The published numbers of the cells that are drawn."""
        from decentral.report.published import EXCLUDED, numbers

        spec = results.spec.published
        if spec is None or not results.comparable:
            return []
        known = numbers(str(results.facts["paper"]), spec.item)
        theirs = {one.key: self._shown(one.value) for one in known if one.value is not None and one.kind != EXCLUDED}
        table = self.selected(results.values[results.values["chosen"]], results, (self.x,))
        table = table.assign(theirs=table["published"].map(theirs)).dropna(subset=["theirs"])
        found = []
        for panel, line, part in self.parts(table):
            points = sorted({(float(x), float(y)) for x, y in zip(part[self.x], part["theirs"], strict=True)})
            found.append(Line(panel, line, [x for x, _ in points], [y for _, y in points], points=True))
        return found

    def _shown(self, value: Number) -> Number:
        return 1 - value if self.y == "1 - value" else value
