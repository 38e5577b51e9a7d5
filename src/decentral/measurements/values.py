"""What a study finds: values, curves, and what is known of their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Labels = dict[str, str | float | int]
"""What tells a cell from the others, for example {'method': 'RelaySGD', 'topology': 'dbt', 'alpha': 0.1}."""

NOT_REACHED = "not reached"
"""Status of a value where no rate, or no time, led to the target."""


def title_of(labels: Labels) -> str:
    """For example 'RelaySGD, dbt, alpha 0.1'."""
    return ", ".join(f"{v}" if k in ("method", "topology") else f"{k} {v}" for k, v in labels.items() if v != "")


class Value(NamedTuple):
    """One number of one run (or of one simulated run): a line of values.csv."""

    labels: Labels
    value: float
    """What the study is about, in the unit of the published number; nan if there is none, see `status`."""
    metric: str
    """Its name, for example 'test accuracy (%)' or 'steps to 1e-06'."""
    seed: int
    lr: float | None = None
    chosen: bool = True
    """Whether the table counts it; the other runs of a search for the learning rate have False."""
    at_edge: bool = False
    """Whether the chosen rate lies at the edge of what was searched."""
    status: str = "done"
    """done, diverged, damaged (the run's numbers cannot be read), or not reached (no rate led to the target)."""
    worst: float | None = None
    mean: float | None = None
    averaged: float | None = None
    """The same for the worst worker, the mean over workers, and the averaged model, where they are known."""
    published: str = ""
    """'algorithm|topology|setting' of the published number that this one is to be compared with."""
    run: str = ""
    """The id of the job that it comes from."""
    wall_s: float = 0.0


class Meaning(NamedTuple):
    """What is known of a metric of a study, for study.json; all of it in the unit of the values."""

    larger_is_better: bool | None = None
    unit: str = ""
    chance: float | None = None
    """What guessing gives."""


class Point(NamedTuple):
    """A value, and where it is on the axes that are known: see `store.AXES`."""

    value: float
    at: Mapping[str, float]


def in_steps(values: Iterable[tuple[float, float]]) -> list[Point]:
    """Points from (step, value), where a step is an epoch."""
    return [Point(value, {"step": step, "epoch": step}) for step, value in values]


class Curve(NamedTuple):
    """One number over time in one run: lines of curves.csv."""

    labels: Labels
    metric: str
    worker: str
    """'worst', 'mean', 'averaged', a worker's number, or '' where there is no such thing."""
    seed: int
    points: Sequence[Point]
