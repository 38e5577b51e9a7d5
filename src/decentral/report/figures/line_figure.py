"""Figures that are lines on panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decentral.report.figures import canvas
from decentral.report.figures.figure import Line, StudyFigure
from decentral.report.figures.output import SCREEN, Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decentral.report.results import Results


class LineFigure(StudyFigure):
    """A figure whose lines are drawn on the common canvas."""

    def draw(self, results: Results, lines: list[Line], output: Output = SCREEN) -> Figure:
        """Axes that share y, a legend below, a title that stands alone."""
        return canvas.draw(self, results, lines, output)
