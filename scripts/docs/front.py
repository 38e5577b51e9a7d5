"""Draw the figure of the README: workers and their data, the messages of RelaySGD, and what comes out.

`python scripts/docs/front.py` writes docs/front.png from the partition and the trees that the README's first command
uses, and from the stored runs of RelaySum's Figure 4.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from decentral.config.composition import compose

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["algo=relaysgd", "topology=dbt", "alpha=0.01"]
COLORS = {
    "All-reduce + momentum": "#7d8597",
    "RelaySGD + momentum": "#009485",
    "SGP + momentum": "#5b7fd6",
    "D-PSGD + quasi-global momentum": "#d9742f",
    "D2 + momentum": "#b8549a",
}


def main() -> None:
    """Draw both panels."""
    plt.style.use(ROOT / "src" / "decentral" / "report" / "figures.mplstyle")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.3), width_ratios=(1.1, 1), layout="constrained")
    draw_workers(left)
    draw_result(right)
    figure.savefig(ROOT / "docs" / "front.png", dpi=150)


def draw_workers(axes: Axes) -> None:
    """Draw the first tree, with each worker as a bar of the classes that it sees, and what an edge carries."""
    config = compose(COMMAND)
    counts, tree = config.task.class_counts(config), config.rounds().matrices(0)[0]
    n, shades = len(counts), plt.get_cmap("tab10")
    levels = [[0], *([*range(2**level, min(2 ** (level + 1), n))] for level in range((n - 1).bit_length()))]
    places = {
        worker: ((2 * k + 1) / (2 * len(row)), 1 - y / (len(levels) - 1))
        for y, row in enumerate(levels)
        for k, worker in enumerate(row)
    }
    for a, b in np.argwhere(np.triu(tree + tree.T, 1)):
        for start, end, side in ((a, b, -0.006), (b, a, 0.006)):
            (x, y), (u, v) = places[start], places[end]
            arrow = {"arrowstyle": "-|>", "color": "#009485", "lw": 1, "shrinkA": 11, "shrinkB": 9, "mutation_scale": 8}
            axes.add_patch(FancyArrowPatch((x + side, y), (u + side, v), **arrow))
    for worker, row in enumerate(counts / counts.sum(1, keepdims=True)):
        x, y = places[worker]
        ends = np.append(0, np.cumsum(row)) * 0.05 + x - 0.025
        for label, (start, end) in enumerate(itertools.pairwise(ends)):
            axes.add_patch(Rectangle((start, y - 0.03), end - start, 0.06, facecolor=shades(label), zorder=3))
        axes.add_patch(Rectangle((x - 0.025, y - 0.03), 0.05, 0.06, fill=False, edgecolor="#333", lw=0.8, zorder=4))
    axes.text(
        0.53, 0.89, "down: the sum of the models above\nup: the sum of the models below", va="center", fontsize=8.5
    )
    axes.set(xlim=(0, 1), ylim=(-0.06, 1.04))
    axes.axis("off")
    axes.set_title(f"{n} workers relay sums of models along a tree\n(colors: the classes in a worker's data)")


def draw_result(axes: Axes) -> None:
    """Draw the accuracy of the worst worker over epochs: mean and standard deviation over seeds."""
    curves = pd.read_csv(ROOT / "results" / "relaysum" / "relaysum_fig4" / "laptop" / "curves.csv.gz")
    curves = curves[(curves.metric == "test accuracy (%)") & curves.worker.astype(str).str.isdigit()]
    worst = curves.groupby(["method", "seed", "epoch"]).value.min()
    table = worst.groupby(["method", "epoch"]).agg(["mean", "std"])
    for method, color in COLORS.items():
        line = table.loc[method]
        axes.plot(line.index, line["mean"], color=color)
        axes.fill_between(
            line.index, line["mean"] - line["std"], line["mean"] + line["std"], color=color, alpha=0.15, lw=0
        )
        axes.annotate(f" {method}", (line.index[-1], line["mean"].iloc[-1]), color=color, va="center", fontsize=8.5)
    axes.set(xlabel="epoch", ylabel="test accuracy of the worst worker (%)", xlim=(0, table.index.levels[1].max()))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Test accuracy on CIFAR-10:\nmean and standard deviation of three seeds")


if __name__ == "__main__":
    main()
