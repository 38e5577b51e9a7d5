"""The row of results that runs, sweeps, studies and plug-ins write, and the lines of their curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Labels = dict[str, str | float | int]
"""The labels that identify a cell, for example {'method': 'RelaySGD', 'topology': 'dbt', 'alpha': 0.1}."""

Row = dict[str, Any]
"""A line of curves.csv: labels, metric, worker, seed, value, and its position on the known axes."""

NOT_REACHED = "not reached"
"""Status of a value if no rate, or no time, led to the target."""


def title_of(labels: Labels) -> str:
    """Return the labels as a title, for example 'RelaySGD, dbt, alpha 0.1'."""
    return ", ".join(f"{v}" if k in ("method", "topology") else f"{k} {v}" for k, v in labels.items() if v != "")


class Meaning(NamedTuple):
    """The known meaning of a metric, for study.json, in the unit of the values."""

    larger_is_better: bool | None = None
    unit: str = ""
    chance: float | None = None
    """The chance level."""


class Value(NamedTuple):
    """One number of one run (or of one simulated run): a line of values.csv."""

    labels: Labels
    value: float
    """The main value, in the unit of the published number; nan if there is none, see `status`."""
    metric: str
    """Its name, for example 'test accuracy (%)' or 'steps to 1e-06'."""
    seed: int
    lr: float | None = None
    chosen: bool = True
    """True if the table counts it; other runs of a search for the learning rate have False."""
    at_edge: bool = False
    """True if the chosen rate is at the edge of the searched range."""
    status: str = "done"
    """done, diverged, or not reached (no rate led to the target)."""
    worst: float | None = None
    mean: float | None = None
    averaged: float | None = None
    """Value of the averaged model; `worst` and `mean` are those of the worst worker and the mean over workers, if
    known."""
    published: str = ""
    """'algorithm|topology|setting' of the published number to compare with."""
    run: str = ""
    """ID of the job that it comes from."""
    wall_s: float = 0.0
    setting: str = ""
    """Settings tuned besides the learning rate, as arguments of decentral-run."""
    meaning: Meaning = Meaning()
    """The direction, unit and chance level of the metric."""

    @property
    def score(self) -> float:
        """The value, or its negative where smaller is better."""
        return self.value if self.meaning.larger_is_better else -self.value


def curve(
    labels: Labels,
    metric: str,
    seed: int,
    points: Iterable[tuple[float, float]],
    worker: str = "",
    axes: Sequence[str] = ("step", "epoch"),
) -> list[Row]:
    """Return rows of curves.csv: a number over time in one run, as (position, value); the position is the same on all
    `axes`.

    `worker` is 'worst', 'mean', 'averaged', a worker's number, or '' if it does not apply.
    """
    head = {**labels, "metric": metric, "worker": worker, "seed": seed}
    return [{**head, **dict.fromkeys(axes, place), "value": value} for place, value in points]
