"""What a partition looks like: the classes, or whatever else is dealt out, on every worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decentral.report import style
from decentral.store.files import replacing


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
    with replacing(Path(path)) as file:
        style.plain(figure).savefig(file, format=Path(path).suffix[1:], dpi=150)
