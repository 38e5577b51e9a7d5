"""The figures of the page: what a step costs over n, P and k, and how much memory the workers need."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.benchmarks.cases.scale import MEMORY, OVER_N, OVER_P
from decentral.benchmarks.cases.simulated import OVER_K
from decentral.benchmarks.harness.findings_file import Stored
from decentral.store.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 130
_CAPACITIES = {"16 GB": 16, "80 GB": 80, "141 GB": 141, "8 x 80 GB": 640, "8 x 141 GB": 1128}


class PageFigure(NamedTuple):
    """A file beside the page."""

    file: str
    title: str
    caption: str


class _Panel(NamedTuple):
    """One line for each value of `lines`, from the rows of one table."""

    benchmark: str
    table: str
    x: str
    y: str
    title: str
    x_label: str
    y_label: str
    passes: str = ""
    flat: bool = False
    """Whether a line that does not rise is the best: then y begins at 0."""
    alone: str = ""
    """What the dotted line is, that of `passes`."""


_STEP = "step / n (ms CPU)"
_ONE_BY_ONE = "passes alone, one worker after the other"
_PANELS = (
    _Panel(
        "scale",
        OVER_N,
        "num_workers",
        "per_worker_ms",
        "cnn, 8 x 8 images",
        "workers n",
        _STEP,
        "passes_ms",
        True,
        _ONE_BY_ONE,
    ),
    _Panel(
        "scale",
        OVER_P,
        "parameters",
        "per_worker_ms",
        "mlp, 16 workers",
        "parameters P",
        _STEP,
        "passes_ms",
        False,
        _ONE_BY_ONE,
    ),
    _Panel(
        "simulated",
        OVER_K,
        "workers_per_process",
        "wall_ms",
        "16 workers in several processes",
        "workers per process k",
        "step (ms wall)",
        flat=True,
    ),
    _Panel(
        "quadratics",
        "Steps on quadratics",
        "num_workers",
        "step_us",
        "quadratics, d = 10",
        "workers n",
        "step (us CPU)",
        "gradient_us",
        alone="gradients alone",
    ),
)


def draw(stored: Sequence[Stored], folder: Path) -> list[PageFigure]:
    """Draw what the stored findings are enough for; without matplotlib, nothing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return []
    drawn = []
    panels = [(panel, rows) for panel in _PANELS if (rows := _rows(stored, panel.benchmark, panel.table))]
    if panels:
        _save(folder / "cost.png", lambda: _cost(panels))
        text = (
            "**Measured.** The time of a step. A flat line over n means that n workers cost n times as much as one. "
            "The dotted line is what the gradients alone take. " + _other_execution(panels)
        ).strip()
        drawn.append(PageFigure("cost.png", "The time of a step over n, P and k", text))
    memory = _rows(stored, "scale", MEMORY)
    if memory:
        _save(folder / "memory.png", lambda: _memory(memory))
        text = (
            "**Computed.** Memory of n workers in one process, by the rows of P numbers that an algorithm keeps for "
            "each worker. Where a line is flat, the activations of the one worker whose turn it is dominate; where it "
            "rises, the rows do. On eight devices each has an eighth of the workers."
        )
        drawn.append(PageFigure("memory.png", "Memory over the number of workers", text))
    return drawn


def _other_execution(panels: Sequence[tuple[_Panel, list[dict[str, Any]]]]) -> str:
    """Where the dotted line is another way of execution than the step's, which, and what follows; '' if nowhere."""
    rows = [row for panel, rows in panels if panel.alone == _ONE_BY_ONE for row in rows]
    if not any(row.get("execution") == "batched" for row in rows):
        return ""
    mixed = ", where its marker is filled" if any(row.get("execution") == "loop" for row in rows) else ""
    hollow = ", and one after the other as well (`loop`) where it is hollow" if mixed else ""
    return (
        "Of cnn and mlp it is another way of execution: a plain module for each worker, one worker after the other. "
        f"The step, with `execution=auto`, computes the workers side by side (`batched`){mixed}{hollow}. That is why a "
        "step can take less than the dotted line."
    )


def _rows(stored: Sequence[Stored], benchmark: str, table: str) -> list[dict[str, Any]]:
    tables = [t for one in stored if one.name == benchmark for t in one.findings.tables if t.title.startswith(table)]
    return tables[0].rows if tables else []


def _save(path: Path, make: Callable[[], Figure]) -> None:
    """The same rows give the same bytes."""
    from decentral.report import style

    with style.settings(path.stem):
        data = io.BytesIO()
        style.plain(make()).savefig(data, format="png", dpi=_DPI, metadata={"Software": None})
    write_bytes(path, data.getvalue())


def _cost(panels: Sequence[tuple[_Panel, list[dict[str, Any]]]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    from decentral.report import style

    figure = Figure(figsize=(9, 3.1 * -(-len(panels) // 2)), layout="constrained")
    axes = list(figure.subplots(-(-len(panels) // 2), 2, squeeze=False).flat)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    for axis, (panel, rows) in zip(axes, panels, strict=False):
        labels = list(dict.fromkeys(str(row["algorithm"]) for row in rows))
        parts = [label.partition(", ") for label in labels]
        looks = style.looks([algorithm for algorithm, _, _ in parts], [topology for _, _, topology in parts])
        if panel.table == OVER_K:
            looks = style.ordered_looks(len(labels))
        for label, look in zip(labels, looks, strict=True):
            own = [row for row in rows if row["algorithm"] == label]
            x, y = [row[panel.x] for row in own], [row[panel.y] for row in own]
            axis.plot(x, y, marker=look.marker, markersize=5, label=label, **look.keywords)
            one_by_one = [place for place, row in enumerate(own) if row.get("execution") == "loop"]
            if one_by_one:
                hollow = {"marker": look.marker, "mec": look.colour, "mfc": "white", "ls": "none", "ms": 5}
                axis.plot([x[n] for n in one_by_one], [y[n] for n in one_by_one], **hollow)
        if panel.alone == _ONE_BY_ONE and any(row.get("execution") == "loop" for row in rows):
            axis.plot([], [], ls="none", marker="o", ms=5, mec=style.GREY, mfc="white", label="hollow: execution=loop")
        if panel.passes:
            own = [row for row in rows if row["algorithm"] == labels[0]]
            share = [row[panel.passes] / (row["num_workers"] if panel.y == "per_worker_ms" else 1) for row in own]
            axis.plot([row[panel.x] for row in own], share, label=panel.alone, **style.REFERENCE.keywords)
        _finish(axis, panel.title, panel.x_label, panel.y_label)
        axis.xaxis.set_major_locator(FixedLocator(sorted({row[panel.x] for row in rows})))
        axis.xaxis.set_minor_locator(NullLocator())
        if panel.flat:  # with room for the legend above
            highest = max(row[panel.y] for row in rows)
            axis.set(yscale="linear", ylim=(0, None if panel.passes else 1.45 * highest))
    return figure


def _finish(axis: Axes, title: str, x_label: str, y_label: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from decentral.report import style

    axis.set(xscale="log", yscale="log", title=title, xlabel=x_label, ylabel=y_label)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    style.tidy(axis)
    axis.legend(frameon=False, fontsize=8)


def _memory(rows: list[dict[str, Any]]) -> Figure:
    from matplotlib.figure import Figure

    from decentral.report import style

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    workers = [2**power for power in range(11)]
    for axis, model in zip(figure.subplots(1, len(models), squeeze=False).flat, models, strict=True):
        own = [row for row in rows if row["model"] == model]
        counts = sorted({round(row["rows"], 1) for row in own})
        for count, look in zip(counts, style.ordered_looks(len(counts)), strict=True):
            total = [own[0]["activations_gb"] + count * n * own[0]["parameters"] * 4e-9 for n in workers]
            axis.plot(workers, total, marker=look.marker, markersize=4, label=f"{count:g} rows", **look.keywords)
        for name, size in _CAPACITIES.items():
            axis.axhline(size, color=style.GREY, lw=0.7, ls="--")
            axis.annotate(name, (1, size), fontsize=7, color=style.GREY, va="bottom")
        _finish(axis, model, "workers n", "memory (GB)")
    return figure
