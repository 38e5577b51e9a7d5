"""What a finished run is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.measurements.values import NOT_REACHED, Curve, Labels, Meaning, Point
from decentral.store import AXES, RunStore, Status, read_metadata, read_metrics

DAMAGED = "damaged"

Rows = list[dict[str, Any]]


class Measured(NamedTuple):
    """One run's number, as the study wants it, and from three points of view."""

    value: float
    worst: float
    mean: float
    averaged: float
    status: str
    """done, diverged, damaged or not reached."""
    wall_s: float
    label: str
    """Its name, for example 'test accuracy (%)'."""
    meaning: Meaning
    remark: str = ""
    """Why there are no numbers, if the run is damaged."""

    @property
    def score(self) -> float:
        """Larger is better."""
        return self.value if self.meaning.larger_is_better else -self.value


@dataclass
class Measure:
    """Which of a run's numbers counts, for example the worst worker's test accuracy, mean of the last five epochs.

    split, metric    of metrics.jsonl
    worker           'worst', 'mean', 'averaged', or a worker's number: whose model counts
    last_epochs      mean over the evaluations in the last so many epochs, for each worker, before the worst of them is
                     taken (RelaySum paper; with an evaluation every 4 epochs, 5 are epochs 196 and 200); 0: the last
    at               axis (step, epoch, wall_s or bytes_sent) -> a place: nothing that is evaluated beyond it counts
    to_reach         the number is where on `axis` the metric first is as good as this, in the unit that is shown (95
                     for an accuracy of 95 %); nan where it never is
    axis             for to_reach
    percent          whether to multiply by 100; null: as the run says of its metric
    larger_is_better which end is the worst; null: as the run says of its metric
    when_diverged    the value of a run that diverged; null: it has none, and is counted as diverged
    """

    split: str = "test"
    metric: str = "accuracy"
    worker: str = "worst"
    last_epochs: float = 0.0
    at: dict[str, float] = field(default_factory=dict)
    to_reach: float | None = None
    axis: str = "step"
    percent: bool | None = None
    larger_is_better: bool | None = None
    when_diverged: float | None = None

    def __post_init__(self) -> None:
        if self.worker not in ("worst", "mean", "averaged") and not self.worker.isdigit():
            raise ConfigError(f"measure.worker={self.worker} is unknown: use worst, mean, averaged or a number.")
        numbers = {"last_epochs": self.last_epochs, "to_reach": self.to_reach}
        for key, number in (numbers | {f"at.{axis}": place for axis, place in self.at.items()}).items():
            if number is not None and not math.isfinite(number):
                raise ConfigError(f"measure.{key}={number} must be a finite number.")
        if self.last_epochs < 0:
            raise ConfigError(f"measure.last_epochs={self.last_epochs:g} must be 0 or more.")
        for key, axes in (("at", list(self.at)), ("axis", [self.axis])):
            for axis in axes:
                if axis not in AXES:
                    raise ConfigError(f"measure.{key}={axis} is no axis.{suggest(axis, AXES)}")
        if self.to_reach is not None and (self.at or self.last_epochs):
            other = "at" if self.at else "last_epochs"
            raise ConfigError(
                f"measure.to_reach={self.to_reach:g} looks at all evaluations: leave out measure.{other}."
            )

    def of(self, directory: Path) -> Measured:
        """The numbers of a run that is done or diverged; nan, with a remark, if it did not record them as it should."""
        facts = RunStore.peek(directory) or {}
        known = _Known.of(self, directory)
        about = str(facts["status"]), float(facts.get("wall_s", 0.0)), known.label, known.meaning
        if about[0] == Status.diverged:
            nothing = math.nan if self.when_diverged is None else self.when_diverged
            return Measured(nothing, nothing, nothing, nothing, *about)
        try:
            rows = known.whole(directory, facts.get("step"))
            measured = Measured(*known.numbers(directory, rows), *about)
        except ConfigError as error:
            return Measured(math.nan, math.nan, math.nan, math.nan, DAMAGED, *about[1:], str(error))
        unreached = self.to_reach is not None and math.isnan(measured.value)
        return measured._replace(status=NOT_REACHED) if unreached else measured

    def curves(self, directory: Path, workers: list[str], labels: Labels, seed: int) -> list[Curve]:
        """The metric over time for some of 'worst', 'mean', 'averaged', numbers, 'each' (every single worker), and
        'counted' (whoever counts)."""
        known = _Known.of(replace(self, at={}, to_reach=None), directory)
        lines: dict[str, list[Point]] = {}
        for row in sorted(known.own(read_metrics(directory)), key=lambda row: row["step"]):
            worker = str(row["worker"])
            names = [worker] if worker in workers or ("each" in workers and isinstance(row["worker"], int)) else []
            names += ["counted"] if "counted" in workers and worker == self.worker else []
            for name in names:
                at = {axis: row[axis] for axis in AXES if axis in row}
                lines.setdefault(name, []).append(Point(known.shown(row["value"]), at))
        return [Curve(labels, known.label, worker, seed, points) for worker, points in lines.items()]


@dataclass(frozen=True)
class _Known:
    """A measure of one run, whose metric says what the measure leaves open."""

    measure: Measure
    percent: bool
    larger_is_better: bool
    chance: float | None

    @classmethod
    def of(cls, measure: Measure, directory: Path) -> _Known:
        key = measure.split, measure.metric
        metric = read_metadata(directory, [key])[key]
        percent = metric.percent if measure.percent is None else measure.percent
        larger = measure.larger_is_better
        return cls(measure, percent, bool(metric.larger_is_better) if larger is None else larger, metric.chance)

    @property
    def label(self) -> str:
        """For example 'test accuracy (%)', 'test accuracy (%) at bytes_sent 1e+09' or 'bytes_sent to test accuracy
        90 %'."""
        own = self.measure
        name, unit = f"{own.split} {own.metric.replace('_', ' ')}", "%" if self.percent else ""
        if own.to_reach is not None:
            return f"{own.axis} to {name} {own.to_reach:g} {unit}".strip()
        places = "".join(f" at {axis} {place:g}" for axis, place in own.at.items())
        return name + (f" ({unit})" if unit else "") + places

    @property
    def meaning(self) -> Meaning:
        """Of the number: a place on an axis is better the earlier it is."""
        if self.measure.to_reach is not None:
            return Meaning(larger_is_better=False)
        unit = "%" if self.percent else ""
        return Meaning(self.larger_is_better, unit, None if self.chance is None else self.shown(self.chance))

    def shown(self, value: float) -> float:
        """In percent, if that is the unit."""
        return value * (100 if self.percent else 1)

    def own(self, rows: Rows) -> Rows:
        """Those of the metric."""
        key = self.measure.split, self.measure.metric
        return [row for row in rows if (row["split"], row["metric"]) == key]

    def whole(self, directory: Path, steps: int | None) -> Rows:
        """The rows of the metric of a run that has taken these steps. Raises ConfigError if they lack its last
        evaluation or a part of it: the file was cut off later."""
        every = read_metrics(directory)
        last = max((row["step"] for row in every), default=steps)
        rows = self.own(every)
        missing = _workers_at(min, rows) - _workers_at(max, rows)
        if missing or (steps is not None and last is not None and last < steps):
            raise ConfigError(
                f"{directory / 'metrics.jsonl'} has lost its end: it goes to step {last} of {steps}"
                + (f", without worker {next(iter(missing))} there" if missing else "")
                + f". Delete the folder {directory} and give the command again, which computes it anew."
            )
        return rows

    def numbers(self, directory: Path, rows: Rows) -> tuple[float, float, float, float]:
        """What counts, worst, mean, averaged. Raises ConfigError if the run does not have them."""
        own = self.measure
        what = f"{directory} has no {own.split} {own.metric}"
        if not rows:
            raise ConfigError(f"{what}, which the study is about: use a task that measures it.")
        for axis, place in own.at.items():
            rows = [row for row in rows if row.get(axis, math.inf) <= place]
            if not rows:
                raise ConfigError(f"{what} up to {axis} {place:g}: use a later place for measure.at.")
        if own.to_reach is not None and any(own.axis not in row for row in rows):
            raise ConfigError(f"{what} over {own.axis}: use another measure.axis.")
        found = self._reached(rows) if own.to_reach is not None else self._last(rows)
        wanted = int(own.worker) if own.worker.isdigit() else own.worker
        if wanted not in found:
            count = sum(isinstance(worker, int) for worker in found)
            known = f"{count} workers" if count else f"only the {' and the '.join(map(str, found))} of this metric"
            raise ConfigError(f"measure.worker={own.worker} does not exist in {directory}: it has {known}.")
        worst, mean, averaged = (found.get(model, math.nan) for model in ("worst", "mean", "averaged"))
        return found[wanted], worst, mean, averaged

    def _last(self, rows: Rows) -> dict[Any, float]:
        """Worker -> mean over the last evaluations; recorded aggregates alone where there are no single workers."""
        last = max(row["epoch"] for row in rows)
        window = [row for row in rows if row["epoch"] > last - self.measure.last_epochs or row["epoch"] == last]
        means = _by_worker(window, lambda own: self.shown(sum(row["value"] for row in own) / len(own)))
        own = [value for worker, value in means.items() if isinstance(worker, int)]
        if not own:
            return means
        worst = math.nan if any(map(math.isnan, own)) else min(own) if self.larger_is_better else max(own)
        return {**means, "worst": worst, "mean": sum(own) / len(own)}

    def _reached(self, rows: Rows) -> dict[Any, float]:
        """Worker -> where on the axis its first value that is good enough is; nan if there is none."""
        target, sign = self.measure.to_reach or 0.0, 1 if self.larger_is_better else -1

        def first(own: Rows) -> float:
            good = [row for row in own if sign * (self.shown(row["value"]) - target) >= 0]
            return float(min(good, key=lambda row: row["step"])[self.measure.axis]) if good else math.nan

        return _by_worker(rows, first)


def _workers_at(end: Callable[[Iterable[int]], int], rows: Rows) -> set[Any]:
    """Whose rows there are at the first step, or the last one."""
    step = end([row["step"] for row in rows]) if rows else 0
    return {row["worker"] for row in rows if row["step"] == step}


def _by_worker(rows: Rows, number: Callable[[Rows], float]) -> dict[Any, float]:
    return {worker: number([row for row in rows if row["worker"] == worker]) for worker in {r["worker"] for r in rows}}
