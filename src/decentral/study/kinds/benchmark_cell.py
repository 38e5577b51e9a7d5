"""A method in a scenario of the benchmark: its rates on one seed, then all seeds with the best of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from decentral.jobs.training_run import TrainingRun
from decentral.store import Status
from decentral.study.kinds.comparison_cell import TunedCell
from decentral.study.measure import DAMAGED, Measured
from decentral.study.study import Meaning, Value

METRICS = {
    "simulated_s": "simulated seconds to the target",
    "bytes_sent": "MB sent by a worker to the target",
    "step": "steps to the target",
}
"""Axis -> what is compared: where on it the target is reached."""


@dataclass
class BenchmarkCell(TunedCell):
    """The best rate is the one with which the target is reached first, in simulated time; of those with which it never
    is, the one with the best value at the end.

    All scenarios have the same metrics, whatever has to be reached in them.
    """

    method: str = ""
    """Its name in methods.yaml, or that of the algorithm."""

    def meanings(self) -> dict[str, Meaning]:
        """The earlier, the better."""
        return dict.fromkeys(METRICS.values(), Meaning(larger_is_better=False))

    def _score(self, jobs: list[TrainingRun]) -> float | None:
        """Mean over the seeds of a number from 0 to 2: above 1 if the target is reached, and the larger the earlier;
        below 1 if not, and the larger the better the last value is."""
        results = [self._result(job) for job in jobs]
        known = [result for result in results if result is not None and result.status != DAMAGED]
        if len(known) < len(results):
            return None
        if any(result.status == Status.diverged for result in known):
            return math.nan
        scores = [self._early(result, job) for result, job in zip(known, jobs, strict=True)]
        return sum(scores) / len(scores)

    def _early(self, result: Measured, job: TrainingRun) -> float:
        if math.isfinite(result.value):
            return 1 + 1 / (1 + result.value)
        last = replace(self.measure, to_reach=None, axis="step").of(job.directory).score
        return 0.5 + math.atan(last) / math.pi if math.isfinite(last) else 0.0

    def _value(self, job: TrainingRun, found: Measured, chosen: bool, at_edge: bool) -> Value:
        """With the name of the metric that all scenarios have; bytes in 10^6 of one worker, on average."""
        axis = found.label.partition(" ")[0]
        factor = 1e-6 / (job.config.num_workers or 1) if axis == "bytes_sent" else 1.0
        value = super()._value(job, found, chosen, at_edge)
        seen = {key: factor * getattr(value, key) for key in ("value", "worst", "mean", "averaged")}
        return value._replace(metric=METRICS[axis], **seen)
