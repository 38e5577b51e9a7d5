"""The number by which a finished run is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError, suggest
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Row, Value
from decentral.settings import setting
from decentral.store import AXES, RunStore, Status, read_metadata, read_metrics

Rows = list[dict[str, Any]]
AGGREGATES = {"worst": " of the worst worker", "mean": ", mean over workers", "averaged": " of the averaged model"}
"""Whose model counts -> its words after a metric."""
_GROUPS = ("present", "returned", "honest")


@dataclass
class Measure:
    """The number of a run that counts, for example the worst worker's test accuracy, mean of the last five epochs.

    split, metric    of metrics.jsonl
    worker           'worst', 'mean', 'averaged', or a worker's number: whose model counts; of a group of workers
                     'present mean', 'returned mean', 'honest worst' and so on, where the run defines it (in a run
                     without absence or attacks, all workers are present and honest)
    last_epochs      average each worker's evaluations over the last epochs, this many, before taking the worst worker
                     (RelaySum paper; with an evaluation every 4 epochs, 5 means epochs 196 and 200); 0: the last
                     evaluation
    to_reach         report where on `axis` the metric first reaches this value, in the displayed unit (95 for an
                     accuracy of 95 %); nan if never
    axis             axis of to_reach
    percent          whether to multiply by 100; null: as the run's metric defines
    larger_is_better which end is the worst; null: as the run says of its metric
    when_diverged    value of a diverged run; null: none, and the run counts as diverged
    """

    split: str = "test"
    metric: str = "accuracy"
    worker: str = "worst"
    last_epochs: float = setting(0.0, at_least=0)
    to_reach: float | None = None
    axis: str = "step"
    percent: bool | None = None
    larger_is_better: bool | None = None
    when_diverged: float | None = None

    def __post_init__(self) -> None:
        group, _, whose = self.worker.rpartition(" ")
        if not self.worker.isdigit() and (whose not in AGGREGATES or group not in ("", *_GROUPS)):
            raise ConfigError(
                f"worker={self.worker} is unknown: use worst, mean or averaged, also of a group "
                f"({', '.join(_GROUPS)}) as in 'present worst', or a worker's number."
            )
        if self.axis not in AXES:
            raise ConfigError(f"measure.axis={self.axis} is not an axis.{suggest(self.axis, AXES)}")

    def of(self, directory: Path, labels: Labels | None = None, seed: int = 0) -> Value:
        """Return the numbers of a run that is done or diverged. Raises ConfigError if its rows are damaged."""
        facts = RunStore.peek(directory) or {}
        own, chance = self._in(directory)
        status = str(facts.get("status"))
        if status == Status.diverged:
            numbers = (math.nan if self.when_diverged is None else self.when_diverged,) * 4
        else:
            numbers = own._numbers(directory, own._rows(read_metrics(directory, split=own.split, metric=own.metric)))
            status = NOT_REACHED if self.to_reach is not None and math.isnan(numbers[0]) else status
        views: dict[str, Any] = dict(zip(AGGREGATES, numbers[1:], strict=True))
        return Value(
            labels or {},
            numbers[0],
            own._label(),
            seed,
            status=status,
            wall_s=facts.get("wall_s", 0.0),
            meaning=own._meaning(chance),
            **views,
        )

    def curves(self, directory: Path, workers: list[str], labels: Labels, seed: int) -> list[Row]:
        """Return rows of curves.csv: the metric over time for some of 'worst', 'mean', 'averaged', numbers, 'each'
        (every single worker), and 'counted' (the measure's own worker)."""
        own, _ = replace(self, to_reach=None)._in(directory)
        lines: dict[str, list[Row]] = {}
        single = {"worker": workers[0]} if len(workers) == 1 and workers[0] in AGGREGATES else {}
        rows = read_metrics(directory, **single, split=self.split, metric=self.metric)
        counted = own._counted(rows)
        for row in sorted(own._rows(rows), key=lambda row: row["step"]):
            worker = str(row["worker"])
            names = [worker] if worker in workers or ("each" in workers and isinstance(row["worker"], int)) else []
            names += [name for name in ("counted", self.worker) if name in {*workers} - {*names} and worker == counted]
            at = {axis: row[axis] for axis in AXES if axis in row}
            for name in names:
                head = {**labels, "metric": own._label(), "worker": name, "seed": seed}
                lines.setdefault(name, []).append({**head, **at, "value": own._shown(row["value"])})
        return [line for of_worker in lines.values() for line in of_worker]

    def _in(self, directory: Path) -> tuple[Measure, float | None]:
        """Return the measure completed by the run's facts on its metric, and the chance level."""
        key = self.split, self.metric
        metric = read_metadata(directory, [key])[key]
        percent = metric.percent if self.percent is None else self.percent
        larger = bool(metric.larger_is_better) if self.larger_is_better is None else self.larger_is_better
        return replace(self, percent=percent, larger_is_better=larger), metric.chance

    def _counted(self, rows: Rows) -> str:
        """Return the worker, without its group if these rows do not tell that apart."""
        group, _, whose = self.worker.rpartition(" ")
        apart = any(str(row["worker"]).startswith(f"{group} ") for row in rows)
        return self.worker if apart or group not in ("present", "honest") else whose

    def _label(self) -> str:
        """Return the metric's name, for example 'test accuracy (%)' or 'bytes_sent to test accuracy 90 %'."""
        name, unit = f"{self.split} {self.metric.replace('_', ' ')}", "%" if self.percent else ""
        if self.to_reach is not None:
            return f"{self.axis} to {name} {self.to_reach:g} {unit}".strip()
        return name + (f" ({unit})" if unit else "")

    def _meaning(self, chance: float | None) -> Meaning:
        """Return the meaning of the number: a place on an axis is better the earlier it is."""
        if self.to_reach is not None:
            return Meaning(larger_is_better=False)
        unit = "%" if self.percent else ""
        return Meaning(self.larger_is_better, unit, None if chance is None else self._shown(chance))

    def _shown(self, value: float) -> float:
        """Return a value in percent, if that is the unit."""
        return value * (100 if self.percent else 1)

    def _rows(self, rows: Rows) -> Rows:
        """Return the rows of the metric."""
        return [row for row in rows if (row["split"], row["metric"]) == (self.split, self.metric)]

    def _numbers(self, directory: Path, rows: Rows) -> tuple[float, float, float, float]:
        """Return the counted, worst, mean and averaged values. Raises ConfigError if the run does not have them."""
        what = f"{directory} has no {self.split} {self.metric}"
        if not rows:
            raise ConfigError(
                f"{what}, which the study needs: add metrics=[{self.metric}] to `base`, or use a task that measures it."
            )
        if self.to_reach is not None and any(self.axis not in row for row in rows):
            raise ConfigError(f"{what} over {self.axis}: use another measure.axis.")
        found = self._reached(rows) if self.to_reach is not None else self._last(rows)
        wanted = int(self.worker) if self.worker.isdigit() else self._counted(rows)
        if wanted not in found:
            count = sum(isinstance(worker, int) for worker in found)
            known = f"{count} workers" if count else f"only the {' and the '.join(map(str, found))} of this metric"
            raise ConfigError(f"worker={self.worker} does not exist in {directory}: it has {known}.")
        worst, mean, averaged = (found.get(model, math.nan) for model in ("worst", "mean", "averaged"))
        return found[wanted], worst, mean, averaged

    def _last(self, rows: Rows) -> dict[Any, float]:
        """Worker -> mean over the last evaluations; recorded aggregates alone where there are no single workers."""
        last = max(row["epoch"] for row in rows)
        window = [row for row in rows if row["epoch"] > last - self.last_epochs or row["epoch"] == last]
        means = _by_worker(window, lambda own: self._shown(sum(row["value"] for row in own) / len(own)))
        own = [value for worker, value in means.items() if isinstance(worker, int)]
        if not own:
            return means
        worst = math.nan if any(map(math.isnan, own)) else min(own) if self.larger_is_better else max(own)
        return {**means, "worst": worst, "mean": sum(own) / len(own)}

    def _reached(self, rows: Rows) -> dict[Any, float]:
        """Return worker -> axis position of its first sufficient value; nan if there is none."""
        target, sign = self.to_reach or 0.0, 1 if self.larger_is_better else -1

        def first(own: Rows) -> float:
            good = [row for row in own if sign * (self._shown(row["value"]) - target) >= 0]
            return float(min(good, key=lambda row: row["step"])[self.axis]) if good else math.nan

        return _by_worker(rows, first)


def headed(metric: str, worker: str) -> str:
    """Return a metric with its worker: 'test accuracy (%) of the worst worker'."""
    group, _, whose = worker.rpartition(" ")
    whose = f" of worker {worker}" if worker.isdigit() else AGGREGATES.get(whose, "")
    return metric + whose + f" ({group} workers)" * bool(group)


def titled(whose: Mapping[str, str]) -> dict[str, Any]:
    """Return the title of a figure with a panel for each metric, and the panels' names, which say of each metric whose
    it is unless the title does. `whose` has the worker of each metric."""
    alike = set(whose.values())
    names = {metric: headed(metric, worker) for metric, worker in whose.items()}
    return {"title": headed("Curves", alike.pop())} if len(alike) == 1 else {"title": "Curves", "names": names}


def _by_worker(rows: Rows, number: Callable[[Rows], float]) -> dict[Any, float]:
    return {worker: number([row for row in rows if row["worker"] == worker]) for worker in {r["worker"] for r in rows}}
