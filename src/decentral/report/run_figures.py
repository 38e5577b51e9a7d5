"""The figures of a run, drawn from what it has recorded, after it has ended."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from decentral.cluster.timeline import read_spans
from decentral.registry import components
from decentral.report import learning_curves
from decentral.report.series import describe, read_config
from decentral.report.timeline_figure import save_staleness, save_timeline
from decentral.store import RunStore

FIGURE = "learning_curves.png"
"""What every run has."""


def draw(run_dir: Path) -> None:
    """learning_curves.png, partition.png where there is a partition.csv, and timeline.png and staleness.png of a run
    in a virtual cluster.

    A figure that cannot be drawn costs a warning: the run is what its metrics say.
    """
    try:
        learning_curves.save_learning_curves(run_dir)
        if (run_dir / "partition.csv").exists():
            draw_partition(run_dir)
        ages = (RunStore.peek(run_dir) or {}).get("staleness") or {}
        draw_time(run_dir, {int(age): times for age, times in ages.items()})
    except Exception as error:
        print(f"warning: the figures of {run_dir} could not be drawn: {error}", file=sys.stderr)


def draw_time(run_dir: Path, ages: Mapping[int, int]) -> None:
    """timeline.png from timeline.json, and staleness.png from ages (in versions -> how many), where there are some."""
    if spans := read_spans(run_dir):
        save_timeline(spans, run_dir / "timeline.png", describe(run_dir))
    if ages:
        save_staleness(ages, run_dir / "staleness.png", describe(run_dir))


def draw_partition(run_dir: Path) -> None:
    """partition.png from partition.csv: the classes, sources, buckets of lengths or kinds of scenes on every worker."""
    from decentral.report.partition_figure import save_figure

    with open(run_dir / "partition.csv", newline="") as file:
        head, *rows = csv.reader(file)
    counts = np.array([[int(number) for number in row[1:-1]] for row in rows])
    config = read_config(run_dir)
    partition = config.get("partition", {})
    alpha = f", alpha = {partition['alpha']:g}" if "alpha" in partition else ""
    task = components("tasks").get(str(config.get("task", {}).get("name")))
    source = config["env" if "env" in getattr(task, "uses", ()) else "data"]
    title = f"{source.get('id') or source['name']}: {partition['name']}{alpha}"
    save_figure(counts, run_dir / "partition.png", title, dealt=head[1].rpartition("_")[0])
