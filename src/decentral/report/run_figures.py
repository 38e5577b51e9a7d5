"""The figures of a run, drawn from what it has recorded, after it has ended: learning curves, what a partition looks
like, and simulated time: what every worker was doing when, and how old what it had from others was."""

from __future__ import annotations

import csv
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.cluster.timeline import Span, read_spans
from decentral.host.machine import without_garbage_collection
from decentral.registry import component
from decentral.report import style
from decentral.report.series import CONSENSUS, Curves, Rows, describe, read_config, read_curves, without_rounding
from decentral.store import RunStore
from decentral.store.files import write_bytes
from decentral.terminal.console import warn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE = "learning_curves.png"
"""The figure of every run."""
KINDS = {
    "compute": ("computing", style.BLUE),
    "exchange": ("sending and receiving", style.ORANGE),
    "wait": ("waiting", "#DDDDDD"),
    "away": ("away", "#F4F4F4"),
}
"""Activity of a worker -> description and color."""
_STEPS, _MOST_WORKERS = 12, 32
_MOST_BARS = 40
_LINE_STYLES = ("-", "--", ":", "-.")
_MARKERS_PER_LINE = 10
_ENTRY = 2.4  # inches of an entry of a legend at most
_MAX_METRICS, _IN_ONE_ROW, _IN_ROWS = 16, 5, 4  # panels: in all, below the first if they fit into a row, or else
_LOG_FROM_RATIO = 10.0
_WIDTH, _HEIGHT = 10.0, 3.9  # inches: of the figure, and of a row of panels
_WIDER = 13.0  # with three panels above
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@without_garbage_collection()
def draw(run_dir: Path, curves: Curves | None = None) -> None:
    """learning_curves.png, partition.png where there is a partition.csv, and timeline.png and staleness.png of a run
    in a virtual cluster. `curves` are those of the run, if they have been read.

    A figure that cannot be drawn costs a warning: the run is what its metrics say.
    """
    try:
        save_learning_curves(run_dir, curves or read_curves(run_dir))
        if (run_dir / "partition.csv").exists():
            draw_partition(run_dir)
        ages = (RunStore.peek(run_dir) or {}).get("staleness") or {}
        draw_time(run_dir, {int(age): times for age, times in ages.items()})
    except Exception as error:
        warn(f"the figures of {run_dir} could not be drawn: {error}")


def draw_time(run_dir: Path, ages: Mapping[int, int]) -> None:
    """timeline.png from timeline.json, and staleness.png from ages (in versions -> how many), where there are some."""
    if spans := read_spans(run_dir):
        save_timeline(spans, run_dir / "timeline.png", describe(run_dir))
    if ages:
        save_staleness(ages, run_dir / "staleness.png", describe(run_dir))


def draw_partition(run_dir: Path) -> None:
    """partition.png from partition.csv: the classes, sources, buckets of lengths or kinds of scenes on every worker."""
    with open(run_dir / "partition.csv", newline="") as file:
        head, *rows = csv.reader(file)
    counts = np.array([[int(number) for number in row[1 : head.index("total")]] for row in rows])
    config = read_config(run_dir)
    partition = config.get("partition", {})
    alpha = f", alpha = {partition['alpha']:g}" if "alpha" in partition else ""
    task = component("tasks", str(config.get("task", {}).get("name")), trust=False)
    source = config["env" if "env" in getattr(task, "uses", ()) else "data"]
    title = f"{source.get('id') or source['name']}: {partition['name']}{alpha}"
    save_figure(counts, run_dir / "partition.png", title, dealt=head[1].rpartition("_")[0])


def save_timeline(spans: Sequence[Span], path: Path, title: str) -> None:
    """Draw the first steps, about 12, of the first 32 workers: a bar for each, colored by activity."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    workers = sorted({span.worker for span in spans})
    shown = workers[:_MOST_WORKERS]
    end = shown_until_s(spans, shown)
    figure = _sheet(10.0, max(2.6, 0.2 * len(shown) + 1.6), title)
    panel = figure.subplots()
    for kind, (_, color) in KINDS.items():
        bars = [
            [(a, i - 0.4), (b, i - 0.4), (b, i + 0.4), (a, i + 0.4)]
            for i, a, b in ((span.worker, span.begin_s, min(span.end_s, end)) for span in spans if span.kind == kind)
            if i in shown and a < end
        ]
        edge = "white" if kind == "compute" else color  # gradients in a row are told apart; what is thin is seen
        panel.add_collection(PolyCollection(bars, facecolors=color, edgecolors=edge, linewidths=0.3))
    panel.set(xlim=(0, end), ylim=(len(shown) - 0.4, -0.6), xlabel="simulated time (s)", ylabel="worker")
    panel.yaxis.set_major_locator(MaxNLocator(min(len(shown) + 1, 16), integer=True))
    panel.spines[["top", "right"]].set_visible(False)
    if len(workers) > len(shown):
        panel.set_title(f"the first {len(shown)} workers", fontsize=9, loc="left")
    kinds = [kind for kind in KINDS if kind != "away" or any(span.kind == kind for span in spans)]
    handles = [Patch(facecolor=color, label=words) for words, color in (KINDS[kind] for kind in kinds)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    _store(figure, path)


def save_staleness(ages: Mapping[int, int], path: Path, title: str) -> None:
    """Draw how many contributions were how many versions old: age -> number; ages from 0 on, those beyond 39 as one."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

    total = sum(ages.values())
    last = min(max(ages), _MOST_BARS - 1)
    shares = [ages.get(age, 0) / total for age in range(last)]
    shares.append(sum(times for age, times in ages.items() if age >= last) / total)
    figure = _sheet(6.4, 3.6, title)
    panel = figure.subplots()
    colors = [style.GREEN, *[style.VERMILLION] * last]
    bars = panel.bar(range(last + 1), shares, width=0.8, color=colors[: last + 1])
    if last < 14:
        percent = (f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %" for share in shares)
        panel.bar_label(bars, [text if share else "" for text, share in zip(percent, shares, strict=True)], fontsize=8)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.xaxis.set_major_locator(MultipleLocator(1) if last < 20 else MaxNLocator(14, integer=True))
    more = f" ({last}: {last} or more)" if max(ages) > last else ""
    panel.set(xlabel=f"age in versions, 0: fresh{more}", ylabel="contributions", xlim=(-0.6, max(last, 2) + 0.6))
    panel.margins(y=0.12)
    style.tidy(panel)
    panel.grid(visible=False, axis="x")
    _store(figure, path)


def shown_until_s(spans: Sequence[Span], shown: Sequence[int]) -> float:
    """When the workers that are shown have taken about 12 gradients, the median of them; the end if none has more."""
    computed = ([span.end_s for span in spans if (span.worker, span.kind) == (one, "compute")] for one in shown)
    gradients = [sorted(ends) for ends in computed if ends]
    latest = max((span.end_s for span in spans), default=math.nan)
    if max(map(len, gradients), default=0) <= _STEPS:
        return latest
    return min(latest, 1.04 * median_high(ends[:_STEPS][-1] for ends in gradients))


def save_figure(counts: np.ndarray, path: str | Path, title: str, dealt: str = "class") -> None:
    """One dot for each worker and class, its area proportional to the number of samples; `counts` is [n, C].

    The largest dot fills its cell. Bars above show how many samples each worker holds. The format follows the
    suffix of `path`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_workers, num_classes = counts.shape
    cell = min(0.36, 11 / num_workers, 8 / num_classes)  # inches
    width, height = max(cell * num_workers, 3.2), max(cell * num_classes, 1.6)
    figure = Figure(figsize=(width + 1.0, height + 1.75), layout="constrained")
    bars, dots = figure.subplots(2, 1, sharex=True, height_ratios=[0.7, height], squeeze=True)

    worker, label = np.nonzero(counts)
    held = counts[worker, label]
    largest_area = (0.94 * 72 * min(cell, width / num_workers, height / num_classes)) ** 2  # in points^2
    dots.scatter(
        worker, label, s=largest_area * held / counts.max(), c=label, cmap="tab10" if num_classes <= 10 else "viridis",
        linewidths=0,
    )  # fmt: skip
    dots.set(xlim=(-0.5, num_workers - 0.5), ylim=(num_classes - 0.5, -0.5), xlabel="worker", ylabel=dealt)
    dots.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    dots.yaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]))
    dots.grid(True, linewidth=0.4, alpha=0.35)
    dots.set_axisbelow(True)
    bars.bar(np.arange(num_workers), counts.sum(axis=1), width=0.7, color="0.65")
    bars.set_ylabel("samples")
    bars.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    bars.tick_params(bottom=False, labelbottom=False)
    bars.set_title(title, fontsize="medium")
    for axes in (bars, dots):
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    _store(figure, Path(path))


def _sheet(width: float, height: float, title: str) -> Figure:
    """An empty figure with a title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(11 * width)), fontsize=10, x=0.01, ha="left", fontweight="bold")
    return figure


def _store(figure: Figure, path: Path) -> None:
    write_bytes(path, style.png(style.plain(figure), dpi=150))


# -- learning curves ---------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """The x axis of a panel: `axis` of the metrics, in units of `unit`."""

    axis: str
    label: str
    unit: float = 1.0

    def of(self, rows: Rows) -> list[float]:
        """The places of rows, in its unit."""
        return [row.get(self.axis, math.nan) / self.unit for row in rows]


def save_learning_curves(run_dir: Path, curves: Curves) -> Path:
    """Draw `run_dir/learning_curves.png` from the metrics and return its path."""
    from matplotlib.figure import Figure

    figure = Figure()
    draw_learning_curves(figure, run_dir, curves)
    path = run_dir / "learning_curves.png"
    write_bytes(path, style.png(figure, figure.dpi, quick=True))
    return path


def draw_learning_curves(figure: Figure, run_dir: Path, curves: Curves) -> None:
    """Draw the learning curves of a run on an empty figure.

    Top: the target metric over epochs with a line per worker, and over the bytes sent per worker; with simulated time,
    over that first. Below: a panel for each other metric, over simulated time if there is any; the title counts those
    that do not fit. Without any metric yet the figure says so.
    """
    metrics = list(dict.fromkeys(metric for _, metric in curves.series)) or [""]
    first, *others = metrics[:_MAX_METRICS]
    width = _IN_ONE_ROW if len(others) <= _IN_ONE_ROW else _IN_ROWS
    rows = [others[start : start + width] for start in range(0, len(others), width)]
    scales = _scales(curves) if first else []
    simulated = bool(scales) and scales[0].axis == "simulated_s"
    figure.set_layout_engine("constrained")
    figure.set_size_inches(_WIDER if simulated else _WIDTH, _HEIGHT * (1 + len(rows)))
    figure.set_dpi(130)
    more = f" (without {len(metrics) - _MAX_METRICS} metrics)" if len(metrics) > _MAX_METRICS else ""
    figure.suptitle(describe(run_dir) + more, fontsize=11, x=0.01, ha="left", fontweight="bold")
    if first:
        above, *below = figure.subfigures(1 + len(rows), 1, squeeze=False)[:, 0]
        ratios = [6, *[5] * (len(scales) - 1)]
        panels = above.subplots(1, len(scales), squeeze=False, sharey=True, width_ratios=ratios)[0]
        for panel, scale in zip(panels, scales, strict=True):
            _draw(panel, curves, first, scale, every_worker=True, legend=panel is panels[0])
        for row, some in zip(below, rows, strict=True):
            for panel, metric in zip(row.subplots(1, len(rows[0]), squeeze=False)[0], some, strict=False):
                _draw(panel, curves, metric, scales[0])
            for panel in row.axes[len(some) :]:
                panel.remove()
    else:
        figure.text(0.5, 0.5, "no metrics yet", ha="center", fontsize=12)
    style.plain(figure)


def _scales(curves: Curves) -> list[Scale]:
    """Simulated time, where time is simulated; epochs (tasks without epochs count steps as epochs); and bytes for each
    worker on average, where something was sent. Where time is simulated, bytes come before epochs. Units give short
    numbers."""
    in_steps = all(row["step"] == row["epoch"] for row in curves.places)
    scales = [Scale("step", "steps") if in_steps else Scale("epoch", "epochs")]
    workers = len({row["worker"] for row in curves.rows if isinstance(row["worker"], int)}) or 1
    seconds = max(row.get("simulated_s", 0.0) for row in curves.places)
    sent = max(row["bytes_sent"] for row in curves.places) / workers
    if sent > 0:
        size, name = style.byte_unit(sent)
        scales.insert(
            0 if seconds > 0 else 1, Scale("bytes_sent", f"bytes sent per worker, on average ({name})", workers * size)
        )
    if seconds > 0:
        size, name = next((one for one in _TIMES if seconds >= 2 * one[0]), _TIMES[-1])
        scales.insert(0, Scale("simulated_s", f"simulated time ({name})", size))
    return scales


def _draw(
    panel: Axes, curves: Curves, metric: str, scale: Scale, every_worker: bool = False, legend: bool = True
) -> None:
    """Worst, mean and averaged model of each split that has the metric, and with `every_worker` a thin line for each
    worker, all of them at once, since there may be thousands."""
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import LogFormatter, LogLocator, PercentFormatter

    keys = [key for key in curves.series if key[1] == metric]
    drawn: list[float] = []
    for key, dashes in zip(keys, _LINE_STYLES, strict=False):
        lines = curves.series[key]
        if workers := curves.workers(*key) if every_worker else []:
            each = [list(zip(scale.of(lines[one]), _values(lines[one]), strict=True)) for one in workers]
            drawn += [y for line in each for _, y in line]
            thin: Any = {"linestyles": dashes, "linewidths": 0.7, "zorder": 1, "alpha": 0.5}
            panel.add_collection(LineCollection(each, colors=style.GRAY, label=f"each of {len(each)} workers", **thin))
            panel.autoscale_view()
        for worker, (words, color, marker) in style.WORKERS.items():
            y = _values(lines.get(worker, []))
            y = without_rounding(y).tolist() if metric == CONSENSUS and y else y
            if any(math.isfinite(value) for value in y):
                prefix = f"{key[0]}, " if len(keys) > 1 else ""
                label = f"{prefix}{words}: {curves.metrics[key].format(curves.last(key, worker), digits=4)}"
                marked = np.linspace(0, len(y) - 1, min(len(y), _MARKERS_PER_LINE)).astype(int)  # the last one, too
                if keys[0] != key:  # another split: lighter, with hollow markers
                    color = style.mixed((color, "#FFFFFF"), 0.4)
                look = style.Look(color, marker, dashes, hollow=keys[0] != key).keywords
                marks = {"marker": marker, "markevery": marked.tolist(), "ms": 4}
                panel.plot(scale.of(lines[worker]), y, lw=1.7, zorder=3, label=label, **marks, **look)
                drawn += y
    _frame(panel, curves, keys, scale)
    if curves.metrics[keys[0]].percent:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif not curves.metrics[keys[0]].larger_is_better and _spans_decades(drawn):
        panel.set_yscale("log", nonpositive="mask")
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # each tick takes a millisecond
        panel.yaxis.set_major_formatter(LogFormatter())  # without formulas, whose parser takes as long as all else
        panel.yaxis.set_minor_formatter(LogFormatter())
    if not any(math.isfinite(value) for value in drawn):
        panel.text(0.5, 0.5, "nothing to draw yet", transform=panel.transAxes, ha="center", fontsize=10)
    elif legend:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.16), "borderaxespad": 0.0}
        inches = panel.get_position().width * panel.figure.bbox.width / panel.figure.dpi
        panel.legend(fontsize=7, frameon=False, handlelength=3.2, ncols=max(1, int(inches / _ENTRY)), **place)


def _values(rows: Rows) -> list[float]:
    """Huge and non-finite values leave a gap."""
    return [math.nan if abs(row["value"]) >= style.LARGEST_DRAWN else row["value"] for row in rows]


def _spans_decades(values: list[float]) -> bool:
    """Return whether a logarithmic axis shows more: no value is negative, and few are zero (models agree at first)."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    return (
        min(finite, default=-1.0) >= 0
        and len(positive) > len(finite) / 2
        and max(positive) > _LOG_FROM_RATIO * min(positive)
    )


def _frame(panel: Axes, curves: Curves, keys: list[tuple[str, str]], scale: Scale) -> None:
    """Title, name of the x axis, and the same limits in all panels that have it, however early a series ends."""
    panel.set_xlabel(scale.label, fontsize=9)
    metric = curves.metrics[keys[0]]
    alone = [split for split, _ in keys] in (["test"], ["train"])
    unit = "" if metric.percent or not metric.unit else f" ({metric.unit})"
    panel.set_title(
        metric.words.removeprefix("" if alone else f"{metric.split} ") + unit, fontsize=10, loc="left", y=1.0
    )
    style.tidy(panel)
    panel.tick_params(which="minor", labelsize=7)
    places = scale.of([row for row in curves.places if scale.axis in row])
    margin = 0.02 * (max(places) - min(places)) or 0.5
    panel.set_xlim(min(places) - margin, max(places) + margin)
