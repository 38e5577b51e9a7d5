"""learning_curves.png: one look at how a run went."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.report import style
from decentral.report.series import CONSENSUS, Curves, Series, describe
from decentral.store.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_LINE_STYLES = ("-", "--", ":", "-.")
_MARKERS_PER_LINE = 9
_MAX_METRICS = 6
_LOG_FROM_RATIO = 10.0
_WIDTH, _HEIGHT, _HEAD = 10.0, 3.6, 0.4  # inches: of the figure, of a row of panels, of the title
_WIDER = 13.0  # with three panels above
_TIMES = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


class Scale(NamedTuple):
    """The x axis of a panel: `axis` of the metrics, in units of `unit`."""

    axis: str
    label: str
    unit: float = 1.0

    def of(self, places: list[float]) -> list[float]:
        """Places on the axis, in its unit."""
        return [place / self.unit for place in places]


def save_learning_curves(run_dir: Path, curves: Curves) -> Path:
    """Draw `run_dir/learning_curves.png` from the metrics and return its path.

    Above, what the run is judged by, over epochs with every worker's own line, and beside it over the bytes that a
    worker has sent; with simulated time over that first. Below, a panel for each other metric, over simulated time if
    there is any. Without any metric yet the figure says so.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first, *others = list(dict.fromkeys(metric for _, metric in curves.series))[:_MAX_METRICS] or [""]
    simulated = _simulated(curves)
    figure = Figure(
        figsize=(_WIDER if simulated else _WIDTH, _HEAD + _HEIGHT * (2 if others else 1)), dpi=130, layout="constrained"
    )
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(describe(run_dir), fontsize=11, x=0.01, ha="left", fontweight="bold")
    if first:
        above, *below = figure.subfigures(2 if others else 1, 1, squeeze=False)[:, 0]
        _judged(above, curves, first)
        for row in below:
            for panel, metric in zip(row.subplots(1, len(others), squeeze=False)[0], others, strict=True):
                _draw(panel, curves, metric, simulated or _time(curves))
    else:
        figure.text(0.5, 0.5, "no metrics yet", ha="center", fontsize=12)
    style.plain(figure)
    path = run_dir / "learning_curves.png"
    with replacing(path) as file:
        canvas.print_png(file)
    return path


def _judged(row: SubFigure, curves: Curves, metric: str) -> None:
    """The metric over simulated time, where there is any, bytes, where something was sent, and epochs; with a legend in
    the first panel, which is wider."""
    sent, simulated = _sent(curves), _simulated(curves)
    scales = [simulated, sent, _time(curves)] if simulated else [_time(curves), sent]
    known = [scale for scale in scales if scale is not None]
    ratios = [6, *[5] * (len(known) - 1)]
    panels = row.subplots(1, len(known), squeeze=False, sharey=True, width_ratios=ratios)[0]
    for panel, scale in zip(panels, known, strict=True):
        _draw(panel, curves, metric, scale, every_worker=True, legend=panel is panels[0])


def _simulated(curves: Curves) -> Scale | None:
    """Simulated time, in a unit that gives short numbers; None where time is not simulated."""
    most = max((row.get("simulated_s", 0.0) for row in curves.places), default=0.0)
    size, name = next((one for one in _TIMES if most >= 2 * one[0]), _TIMES[-1])
    return Scale("simulated_s", f"simulated {name}", size) if most > 0 else None


def _time(curves: Curves) -> Scale:
    """Epochs; tasks without epochs count steps as epochs."""
    in_steps = all(row["step"] == row["epoch"] for row in curves.places)
    return Scale("step", "steps") if in_steps else Scale("epoch", "epochs")


def _sent(curves: Curves) -> Scale | None:
    """Bytes for each worker on average, in a unit that gives short numbers; None if nothing was sent."""
    most = max(row["bytes_sent"] for row in curves.places)
    workers = len({row["worker"] for row in curves.rows if isinstance(row["worker"], int)}) or 1
    size, name = next((one for one in _BYTES if most / workers >= one[0]), _BYTES[-1])
    return Scale("bytes_sent", f"{name} sent by a worker, on average", workers * size) if most > 0 else None


def _draw(
    panel: Axes, curves: Curves, metric: str, scale: Scale, every_worker: bool = False, legend: bool = True
) -> None:
    """Worst, mean and averaged model of each split that has the metric, and with `every_worker` a thin line for each
    worker."""
    from matplotlib.ticker import PercentFormatter

    keys = [key for key in curves.series if key[1] == metric]
    drawn: list[float] = []
    for key, dashes in zip(keys, _LINE_STYLES, strict=False):
        lines = curves.series[key]
        workers = curves.workers(*key) if every_worker else []
        if workers:
            drawn += _each(panel, [lines[worker] for worker in workers], scale, dashes)
        for worker, (words, colour, marker) in style.WORKERS.items():
            if worker in lines:
                prefix = f"{key[0]}, " if len(keys) > 1 else ""
                label = f"{prefix}{words}: {curves.metrics[key].format(lines[worker].last, digits=4)}"
                size = max(1, len(lines[worker].values) // _MARKERS_PER_LINE)
                look = {"marker": marker, "markevery": size, "ms": 4, "lw": 1.7, "zorder": 3}
                # at step 0 all models agree: what is recorded there is rounding
                drawn += _line(panel, lines[worker], scale, colour, dashes, label, metric == CONSENSUS, **look)
    _frame(panel, curves, keys, scale)
    if curves.metrics[keys[0]].percent:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif not curves.metrics[keys[0]].larger_is_better and _spans_decades(drawn):
        panel.set_yscale("log", nonpositive="mask")
    if not any(math.isfinite(value) for value in drawn):
        panel.text(0.5, 0.5, "nothing to draw yet", transform=panel.transAxes, ha="center", fontsize=10)
    elif legend:
        panel.legend(fontsize=7, framealpha=0.8, edgecolor="none", handlelength=3.2)


def _spans_decades(values: list[float]) -> bool:
    """Whether a logarithmic axis shows more: nothing negative, and zero only now and then (models agree at first)."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    return (
        min(finite, default=-1.0) >= 0
        and len(positive) > len(finite) / 2
        and max(positive) > _LOG_FROM_RATIO * min(positive)
    )


def _each(panel: Axes, series: list[Series], scale: Scale, dashes: str) -> list[float]:
    """A thin line for each worker, all of them at once, since there may be thousands. Returns what was drawn."""
    from matplotlib.collections import LineCollection

    values = [_drawable(one.values) for one in series]
    lines = [list(zip(scale.of(one.at(scale.axis)), y, strict=True)) for one, y in zip(series, values, strict=True)]
    collection = LineCollection(lines, colors=style.GREY, linestyles=dashes, linewidths=0.7, zorder=1, alpha=0.5)
    collection.set_label(f"each of {len(series)} workers")
    panel.add_collection(collection)
    panel.autoscale_view()
    return [value for y in values for value in y]


def _drawable(values: list[float]) -> list[float]:
    """Huge and non-finite values leave a gap."""
    return [value if abs(value) < style.LARGEST_DRAWN else math.nan for value in values]


def _line(
    panel: Axes,
    series: Series,
    scale: Scale,
    colour: str,
    dashes: str,
    label: str | None,
    skip_start: bool = False,
    **look,
) -> list[float]:
    """Draw a series; huge and non-finite values leave a gap, and so does step 0 if asked. Returns what was drawn.

    A line without any point is not drawn, and has no place in the legend.
    """
    y = _drawable(series.values)
    if skip_start:
        y = [math.nan if step == 0 else value for step, value in zip(series.at("step"), y, strict=True)]
    if not any(math.isfinite(value) for value in y):
        return []
    panel.plot(scale.of(series.at(scale.axis)), y, color=colour, linestyle=dashes, label=label, **look)
    return y


def _frame(panel: Axes, curves: Curves, keys: list[tuple[str, str]], scale: Scale) -> None:
    """Title, name of the x axis, and the same limits in all panels that have it, however early a series ends."""
    panel.set_xlabel(scale.label, fontsize=9)
    metric = curves.metrics[keys[0]]
    alone = [split for split, _ in keys] in (["test"], ["train"])
    unit = "" if metric.percent or not metric.unit else f" ({metric.unit})"
    panel.set_title((metric.words if alone else metric.name.replace("_", " ")) + unit, fontsize=10, loc="left")
    style.tidy(panel)
    panel.tick_params(which="minor", labelsize=7)
    places = scale.of([row[scale.axis] for row in curves.places if scale.axis in row])
    margin = 0.02 * (max(places) - min(places)) or 0.5
    panel.set_xlim(min(places) - margin, max(places) + margin)
