"""What a finished run is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.store import RunStore, Status, read_metrics
from decentral.study.study import Curve, Labels

DAMAGED = "damaged"


class Measured(NamedTuple):
    """One run's number, as the study wants it, and from three points of view."""

    value: float
    worst: float
    mean: float
    averaged: float
    status: str
    """done, diverged or damaged."""
    wall_s: float
    remark: str = ""
    """Why there are no numbers, if the run is damaged."""


@dataclass
class Measure:
    """Which of a run's numbers counts, for example the worst worker's test accuracy, mean of the last five epochs.

    split, metric    of metrics.jsonl
    worker           'worst', 'mean', 'averaged', or a worker's number: whose model counts
    last_epochs      mean over the evaluations in the last so many epochs, for each worker, before the worst of them is
                     taken (RelaySum paper; with an evaluation every 4 epochs, 5 are epochs 196 and 200); 0: the last
    percent          whether to multiply by 100
    larger_is_better which end is the worst
    when_diverged    the value of a run that diverged; null: it has none, and is counted as diverged
    """

    split: str = "test"
    metric: str = "accuracy"
    worker: str = "worst"
    last_epochs: float = 0.0
    percent: bool = True
    larger_is_better: bool = True
    when_diverged: float | None = None

    def __post_init__(self) -> None:
        if self.worker not in ("worst", "mean", "averaged") and not self.worker.isdigit():
            raise ConfigError(f"measure.worker={self.worker} is unknown: use worst, mean, averaged or a number.")

    @property
    def label(self) -> str:
        """For example 'test accuracy (%)'."""
        unit = " (%)" if self.percent else ""
        return f"{self.split} {self.metric.replace('_', ' ')}{unit}"

    def score(self, value: float) -> float:
        """Larger is better."""
        return value if self.larger_is_better else -value

    def of(self, directory: Path) -> Measured:
        """The numbers of a run that is done or diverged; nan, with a remark, if it did not record them as it should."""
        facts = RunStore.peek(directory) or {}
        status, wall_s = str(facts["status"]), float(facts.get("wall_s", 0.0))
        if status == Status.diverged:
            nothing = math.nan if self.when_diverged is None else self.when_diverged
            return Measured(nothing, nothing, nothing, nothing, status, wall_s)
        try:
            return Measured(*self._numbers(directory), status, wall_s)
        except ConfigError as error:
            return Measured(math.nan, math.nan, math.nan, math.nan, DAMAGED, wall_s, str(error))

    def _numbers(self, directory: Path) -> tuple[float, float, float, float]:
        """What counts, worst, mean, averaged. Raises ConfigError if the run does not have them."""
        rows = self._rows(directory)
        if not rows:
            raise ConfigError(
                f"{directory} has no {self.split} {self.metric}, which the study is about: use a task that measures it."
            )
        last = max(row["epoch"] for row in rows)
        window = [row for row in rows if row["epoch"] > last - self.last_epochs or row["epoch"] == last]
        means = {worker: self._mean(window, worker) for worker in {row["worker"] for row in window}}
        own = [value for worker, value in means.items() if isinstance(worker, int)]
        found: dict[Any, float] = {
            **means,
            "worst": math.nan if any(map(math.isnan, own)) else min(own) if self.larger_is_better else max(own),
            "mean": sum(own) / len(own),
        }
        wanted = int(self.worker) if self.worker.isdigit() else self.worker
        if wanted not in found:
            raise ConfigError(f"measure.worker={self.worker} does not exist in {directory}: it has {len(own)} workers.")
        return found[wanted], found["worst"], found["mean"], found["averaged"]

    def _mean(self, rows: list[dict[str, Any]], worker: int | str) -> float:
        values = [row["value"] for row in rows if row["worker"] == worker]
        return sum(values) / len(values) * (100 if self.percent else 1)

    def curves(self, directory: Path, workers: list[str], labels: Labels, seed: int) -> list[Curve]:
        """The metric over time for some of 'worst', 'mean', 'averaged', numbers, 'each' (every single worker), and
        'counted' (whoever counts)."""
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for row in sorted(self._rows(directory), key=lambda row: row["step"]):
            worker = str(row["worker"])
            names = [worker] if worker in workers or ("each" in workers and isinstance(row["worker"], int)) else []
            names += ["counted"] if "counted" in workers and worker == self.worker else []
            for name in names:
                value = row["value"] * (100 if self.percent else 1)
                lines.setdefault(name, []).append((row["step"], row["epoch"], value))
        return [Curve(labels, self.label, worker, seed, points) for worker, points in lines.items()]

    def _rows(self, directory: Path) -> list[dict[str, Any]]:
        rows = read_metrics(directory)
        return [row for row in rows if row["split"] == self.split and row["metric"] == self.metric]
