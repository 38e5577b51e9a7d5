"""The figures of a run, drawn from what it has recorded, after it has ended."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from decentral.report import learning_curves
from decentral.report.series import read_config

FIGURE = "learning_curves.png"
"""What every run has."""


def draw(run_dir: Path) -> None:
    """learning_curves.png, and partition.png where there is a partition.csv.

    A figure that cannot be drawn costs a warning: the run is what its metrics say.
    """
    try:
        learning_curves.save_learning_curves(run_dir)
        if (run_dir / "partition.csv").exists():
            draw_partition(run_dir)
    except Exception as error:
        print(f"warning: the figures of {run_dir} could not be drawn: {error}", file=sys.stderr)


def draw_partition(run_dir: Path) -> None:
    """partition.png from partition.csv: the classes on every worker."""
    from decentral.report.partition_figure import save_figure

    with open(run_dir / "partition.csv", newline="") as file:
        _, *rows = csv.reader(file)
    counts = np.array([[int(number) for number in row[1:-1]] for row in rows])
    config = read_config(run_dir)
    partition = config.get("partition", {})
    alpha = f", alpha = {partition['alpha']:g}" if "alpha" in partition else ""
    save_figure(counts, run_dir / "partition.png", f"{config['data']['name']}: {partition['name']}{alpha}")
