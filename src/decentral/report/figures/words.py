"""What a figure's lines, bands and rings are, in words: the same in its legend and in the caption on the page.

All of it is said of the data that are drawn: how many seeds there are, not how many there should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from decentral.report.figures.figure import Line, StudyFigure

if TYPE_CHECKING:
    from decentral.report.results import Results

_SPREADS = {
    "std": "\N{PLUS-MINUS SIGN} 1 standard deviation of",
    "range": "lowest to highest of",
    "confidence": "90 % confidence interval of the {center} of",
}
PUBLISHED = "published"


def center(figure: StudyFigure, results: Results, lines: Sequence[Line]) -> str:
    """What a line is: 'mean of 3 seeds', 'a single seed', 'median of 32 trees, a single seed'; '' for what is computed
    without anything random."""
    repeats, seeds = results.spec.repeats, figure.seeds(results)
    single = f"a single {repeats}" if repeats and seeds == 1 else ""
    if not several(lines):
        return single or (f"{seeds} {repeats}s" if repeats and seeds else "")
    among = {line.among for line in lines if line.most > 1}
    alike = [line for line in lines if line.most > 1 or line.among in among]
    lost = "where one has no value: median" if figure.center != "median" and any(line.lost for line in alike) else ""
    return ", ".join(word for word in (f"{figure.center} of {_counted(alike)}", lost, single) if word)


def several(lines: Sequence[Line]) -> bool:
    """Whether some line is the center of several."""
    return any(line.most > 1 for line in lines)


def band(figure: StudyFigure, lines: Sequence[Line]) -> str:
    """What a band is: 'band: lowest to highest of 3 seeds'; '' if there is none."""
    banded = [line for line in lines if line.low is not None and line.high is not None]
    if not banded or figure.spread not in _SPREADS:
        return ""
    cut = ", not below the lowest" if figure.spread != "range" and any(map(_is_cut, banded)) else ""
    return f"band: {_SPREADS[figure.spread].format(center=figure.center)} {_counted(banded)}{cut}"


def caption(figure: StudyFigure, results: Results) -> str:
    """All of it as a sentence, for the page that shows the figure; '' if there is nothing to say."""
    lines = figure.data(results)
    middle = center(figure, results, lines)
    line = f"line: {middle}" if several(lines) else middle
    ring = "rings: the published numbers" if figure.published(results) else ""
    text = "; ".join(word for word in (line, band(figure, lines), ring) if word)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _counted(lines: Sequence[Line]) -> str:
    """For example '3 seeds', or '2 to 3 seeds' where they are not equally many everywhere."""
    least, most = min(line.least for line in lines), max(line.most for line in lines)
    names = {line.among for line in lines if line.most > 1}
    number = f"{least} to {most}" if least < most else f"{most}"
    return f"{number} {names.pop() if len(names) == 1 else 'run'}s"


def _is_cut(line: Line) -> bool:
    """Whether the band ends below at the lowest value, since a logarithmic axis cannot show how far it would reach."""
    bounds = zip(line.low or (), line.y, line.high or (), strict=True)
    return any(
        not math.isclose(middle - low, high - middle, rel_tol=1e-6, abs_tol=1e-9 * abs(middle))
        for low, middle, high in bounds
        if math.isfinite(high - low)
    )
