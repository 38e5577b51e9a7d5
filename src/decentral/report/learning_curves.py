"""learning_curves.png: one look at how a run went."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.report import style
from decentral.report.series import CONSENSUS, Curves, Series, describe, is_fraction, read_curves, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_STYLES = ("-", "--", ":", "-.")
_MARKERS_PER_LINE = 9
_MAX_PANELS = 6
_LOG_FROM_RATIO = 10.0
_LARGEST_DRAWN = 1e30  # a run that diverges ends with numbers beside which nothing else could be seen


def save_learning_curves(run_dir: Path) -> Path:
    """Draw `run_dir/learning_curves.png` from the metrics and return its path.

    A panel per metric, the consensus distance last; the first panel has every worker's own line. Without any metric yet
    the figure says so.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = read_curves(run_dir)
    metrics = list(dict.fromkeys(metric for _, metric in curves.series))[:_MAX_PANELS]
    widths = [3.0 if metric == CONSENSUS else 5.2 if number == 0 else 4.2 for number, metric in enumerate(metrics)]
    figure = Figure(figsize=(max(7.0, sum(widths) + 0.6), 4.1), dpi=130, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(describe(run_dir), fontsize=11, x=0.01, ha="left", fontweight="bold")
    if metrics:
        axes = figure.subplots(1, len(metrics), squeeze=False, width_ratios=widths)[0]
        for number, (metric, panel) in enumerate(zip(metrics, axes, strict=True)):
            _draw(panel, curves, metric, every_worker=number == 0)
    else:
        _say_empty(figure)
    path = run_dir / "learning_curves.png"
    temporary = path.with_name(".learning_curves.tmp")
    canvas.print_png(str(temporary))
    temporary.replace(path)
    return path


def _draw(panel: Axes, curves: Curves, metric: str, every_worker: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    splits = [split for split, name in curves.series if name == metric]
    drawn: list[float] = []
    for split, dashes in zip(splits, _LINE_STYLES, strict=False):
        lines = curves.series[split, metric]
        workers = curves.workers(split, metric) if every_worker else []
        for number, local in enumerate(workers):
            label = f"each of {len(workers)} workers" if number == 0 else None
            drawn += _line(panel, lines[local], style.GREY, dashes, label, lw=0.7, alpha=0.5, zorder=1)
        for worker, (words, colour, marker) in style.WORKERS.items():
            if worker in lines:
                prefix = f"{split}, " if len(splits) > 1 else ""
                label = f"{prefix}{words}: {show(metric, lines[worker].last)}"
                size = max(1, len(lines[worker].steps) // _MARKERS_PER_LINE)
                look = {"marker": marker, "markevery": size, "ms": 4, "lw": 1.7, "zorder": 3}
                # at step 0 all models agree: what is recorded there is rounding
                drawn += _line(panel, lines[worker], colour, dashes, label, metric == CONSENSUS, **look)
    _frame(panel, curves, metric, splits)
    if is_fraction(metric):
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif _spans_decades(drawn):
        panel.set_yscale("log", nonpositive="mask")


def _spans_decades(values: list[float]) -> bool:
    """Whether a logarithmic axis shows more: nothing negative, and zero only now and then (models agree at first)."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    return (
        min(finite, default=-1.0) >= 0
        and len(positive) > len(finite) / 2
        and max(positive) > _LOG_FROM_RATIO * min(positive)
    )


def _line(
    panel: Axes, series: Series, colour: str, dashes: str, label: str | None, skip_start: bool = False, **look
) -> list[float]:
    """Draw a series; huge and non-finite values leave a gap, and so does step 0 if asked. Returns what was drawn."""
    x = series.steps if _in_steps(series) else series.epochs
    y = [value if abs(value) < _LARGEST_DRAWN else math.nan for value in series.values]
    if skip_start:
        y = [math.nan if step == 0 else value for step, value in zip(series.steps, y, strict=True)]
    panel.plot(x, y, color=colour, linestyle=dashes, label=label, **look)
    return y


def _frame(panel: Axes, curves: Curves, metric: str, splits: list[str]) -> None:
    first = next(iter(curves.series[splits[0], metric].values()))
    panel.set_xlabel("steps" if _in_steps(first) else "epochs", fontsize=9)
    title = metric.replace("_", " ")
    panel.set_title(f"{splits[0]} {title}" if splits in (["test"], ["train"]) else title, fontsize=10, loc="left")
    style.tidy(panel)
    times = [row["step" if _in_steps(first) else "epoch"] for row in curves.rows]
    margin = 0.02 * (max(times) - min(times)) or 0.5
    panel.set_xlim(min(times) - margin, max(times) + margin)  # the same in all panels, however early one ends
    panel.legend(fontsize=7, framealpha=0.8, edgecolor="none", handlelength=3.2)


def _in_steps(series: Series) -> bool:
    """Tasks without epochs count steps as epochs."""
    return series.epochs == series.steps


def _say_empty(figure: Figure) -> None:
    figure.text(0.5, 0.5, "no metrics yet", ha="center", fontsize=12)
