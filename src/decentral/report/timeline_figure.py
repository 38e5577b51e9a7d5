"""Simulated time as pictures: what every worker was doing when, and how old what it had from others was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.report import style
from decentral.store.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from decentral.cluster.timeline import Span

KINDS = {
    "compute": ("computing", style.BLUE),
    "exchange": ("sending and receiving", style.ORANGE),
    "wait": ("waiting", "#DDDDDD"),
}
"""What a worker does -> in words, and the colour."""
_STEPS, _MOST_WORKERS = 12, 32
_MOST_BARS = 40


def save_timeline(spans: Sequence[Span], path: Path, title: str) -> None:
    """Draw the first steps, about 12, of the first 32 workers: a bar for each, in the colours of what it does."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    workers = sorted({span.worker for span in spans})
    shown = workers[:_MOST_WORKERS]
    end = shown_until_s(spans, shown)
    figure = _sheet(10.0, max(2.6, 0.2 * len(shown) + 1.6), title)
    panel = figure.subplots()
    for kind, (_, colour) in KINDS.items():
        bars = [
            [(a, i - 0.4), (b, i - 0.4), (b, i + 0.4), (a, i + 0.4)]
            for i, a, b in ((span.worker, span.begin_s, min(span.end_s, end)) for span in spans if span.kind == kind)
            if i in shown and a < end
        ]
        edge = "white" if kind == "compute" else colour  # gradients in a row are told apart; what is thin is seen
        panel.add_collection(PolyCollection(bars, facecolors=colour, edgecolors=edge, linewidths=0.3))
    panel.set(xlim=(0, end), ylim=(len(shown) - 0.4, -0.6), xlabel="simulated seconds", ylabel="worker")
    panel.yaxis.set_major_locator(MaxNLocator(min(len(shown) + 1, 16), integer=True))
    panel.spines[["top", "right"]].set_visible(False)
    if len(workers) > len(shown):
        panel.set_title(f"the first {len(shown)} workers", fontsize=9, loc="left")
    handles = [Patch(facecolor=colour, label=words) for words, colour in KINDS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    with replacing(path) as file:
        style.plain(figure).savefig(file, format=path.suffix[1:], dpi=150)


def save_staleness(ages: Mapping[int, int], path: Path, title: str) -> None:
    """Draw how many contributions were how many versions old: age -> number; ages from 0 on, those beyond 39 as one."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

    total = sum(ages.values())
    last = min(max(ages), _MOST_BARS - 1)
    shares = [ages.get(age, 0) / total for age in range(last)]
    shares.append(sum(times for age, times in ages.items() if age >= last) / total)
    figure = _sheet(6.4, 3.6, title)
    panel = figure.subplots()
    colours = [style.GREEN, *[style.VERMILLION] * last]
    panel.bar(range(last + 1), shares, width=0.8, color=colours[: last + 1])
    for age, share in enumerate(shares if last < 14 else ()):
        text = f"{100 * share:.0f} %" if share >= 0.01 or not share else "< 1 %"
        panel.annotate(text if share else "", (age, share), ha="center", va="bottom", fontsize=8)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.xaxis.set_major_locator(MultipleLocator(1) if last < 20 else MaxNLocator(14, integer=True))
    more = f" ({last}: {last} or more)" if max(ages) > last else ""
    panel.set(xlabel=f"age in versions, 0: fresh{more}", ylabel="contributions", xlim=(-0.6, max(last, 2) + 0.6))
    panel.margins(y=0.12)
    style.tidy(panel)
    panel.grid(visible=False, axis="x")
    with replacing(path) as file:
        style.plain(figure).savefig(file, format=path.suffix[1:], dpi=150)


def shown_until_s(spans: Sequence[Span], shown: Sequence[int]) -> float:
    """When the workers that are shown have taken about 12 gradients, the median of them; the end if none has more."""
    ends, more = [], False
    for worker in shown:
        gradients = [span.end_s for span in spans if span.worker == worker and span.kind == "compute"]
        if gradients:
            ends.append(sorted(gradients)[:_STEPS][-1])
            more = more or len(gradients) > _STEPS
    latest = max((span.end_s for span in spans), default=math.nan)
    return min(latest, 1.04 * sorted(ends)[len(ends) // 2]) if more else latest


def _sheet(width: float, height: float, title: str) -> Figure:
    """An empty figure with a title."""
    import textwrap

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, int(11 * width)), fontsize=10, x=0.01, ha="left", fontweight="bold")
    return figure
