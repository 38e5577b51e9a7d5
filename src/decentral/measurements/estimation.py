"""Distributed mean estimation: the error over time, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from decentral.measurements.measurement import Measurement
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Curve, Labels, Value, in_steps
from decentral.scheduling.job import Job
from decentral.store import read_metrics

METRIC = "mean squared error"
_EVERY = 5  # steps between the points of the exact line


@dataclass
class Estimation(Measurement):
    """One run of a method, whose dimensions are independent repetitions.

    at      the steps whose error is a value
    exact   instead the error 1 / (n (t + 1)) of the mean of all samples of all workers: nothing to compute
    """

    name: str = "estimation"
    at: list[int] = field(default_factory=list)
    exact: bool = False

    folder: ClassVar[str] = "runs"
    decides: ClassVar[frozenset[str]] = frozenset({"num_workers"})

    def parameters(self) -> dict[str, Any]:
        """The run's configuration says it all."""
        return {}

    @cached_property
    def run(self) -> TrainingRun:
        """The run."""
        return TrainingRun(self.config, self.title)

    def jobs(self) -> list[Job]:
        """The run, if there is one."""
        return [] if self.exact else [self.run]

    def cells(self) -> list[Labels]:
        """One, whose values say after how many steps."""
        return [self.labels | {"after_steps": ""}]

    def values(self, labels: Labels) -> Iterator[Value]:
        """The error after some steps, mean over the workers and the repetitions."""
        errors, seed = self._errors(), 0 if self.exact else self.config.seed
        for step in self.at:
            mean = None if self.exact else errors[step]
            yield Value(labels | {"after_steps": step}, errors[step], METRIC, seed, mean=mean)

    def curves(self, labels: Labels) -> Iterator[Curve]:
        """The error over time."""
        points = [(step, error) for step, error in self._errors().items() if step and step % _EVERY == 0]
        yield Curve(labels, METRIC, "mean", 0 if self.exact else self.config.seed, in_steps(points))

    def _errors(self) -> dict[int, float]:
        """Step -> mean over the workers."""
        if self.exact:
            return {step: 1 / (self.n * (step + 1)) for step in range(max(self.at, default=0) + 1)}
        rows = read_metrics(self.run.directory)
        wanted = [row for row in rows if (row["metric"], row["worker"]) == ("squared_error", "mean")]
        return {int(row["step"]): float(row["value"]) for row in wanted}
