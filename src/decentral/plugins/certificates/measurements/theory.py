"""Steps to a target, predicted from the spectrum of a graph and measured in training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from decentral.config.identity import component_identity
from decentral.measurements.measurement import Measurement, check_losses
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store import Status, read_metrics

MEASURED, PREDICTED, GAP = "measured steps", "predicted steps", "1 / spectral gap"
_RATES = np.geomspace(0.01, 1.9, 24)
_CURVATURES = 0.25, 1.0
_MOST_STEPS = 2000


class RateRun(TrainingRun):
    """The run of one learning rate, which may diverge."""

    def finished(self) -> Status | None:
        """Return done for a diverged run, too: then another rate is better."""
        status = super().finished()
        return Status.done if status is Status.diverged else status


@dataclass
class Theory(Measurement):
    """The steps that config.algo needs to a target with the best of some learning rates: measured in training runs, and
    predicted for quadratics f_i(x) = h / 2 ||x - b_i||^2 with h = 1/4 and 1.

    The prediction uses the coefficients of every step, thus the whole spectrum of a gossip matrix. Beside it, the
    inverse spectral gap.

    rates    learning rates of the runs
    metric   metric of the runs, whose mean over the workers has to reach the target
    target   value to reach, from the side on which the metric begins
    ratio    assumed zeta^2 / ||x^0 - x*||^2
    ratios   the same, by the value of the first column
    reach    share of ||x^0 - x*||^2 that 1/n sum_i ||x_i - x*||^2 has to reach in the prediction
    """

    name: str = "theory"
    rates: list[float] = setting([], above=0)
    metric: str = ""
    target: float = 0.0
    ratio: float = 0.1
    ratios: dict[str, float] = field(default_factory=dict)
    reach: float = 0.01

    folder: ClassVar[str] = "theory"
    decides: ClassVar[frozenset[str]] = frozenset({"lr"})
    meanings: ClassVar[dict[str, Meaning]] = {name: Meaning(False) for name in (MEASURED, PREDICTED, GAP)}

    def check(self) -> None:
        """Check that no message can get lost."""
        check_losses(self.config)

    @property
    def heterogeneity(self) -> float:
        """Return the assumed ratio at this column."""
        return next((self.ratios[str(v)] for v in self.labels.values() if str(v) in self.ratios), self.ratio)

    def parameters(self) -> dict[str, Any]:
        """Return what the prediction depends on."""
        return {"ratio": self.heterogeneity, "reach": self.reach, "topology": component_identity(self.config.topology)}

    @cached_property
    def runs(self) -> list[RateRun]:
        """Return the run of each learning rate."""
        return [RateRun(replace(self.config, lr=lr), f"{self.title}, lr {lr:g}") for lr in self.rates]

    def jobs(self) -> list[Job]:
        """Return the prediction and the runs."""
        return [self, *self.runs]

    def line(self) -> dict[str, Any]:
        """Return the predicted steps and the spectral gap."""
        from decentral.plugins.certificates.certify import Certifier, method_of
        from decentral.topology.facts import spectral_gap

        certifier = Certifier(method_of(self.config), 0.1)
        steps = min(self._predicted(certifier.at(float(lr))) for lr in _RATES)
        return {"steps": steps if math.isfinite(steps) else None, "gap": spectral_gap(self.config.rounds())}

    def _predicted(self, pieces: list[Any]) -> float:
        """Return the steps until the expected error reaches the target, over the curvatures and random gradients at the
        optimum; interpolated between two steps, infinite if never."""
        n, before = self.n, 1.0
        basis = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1] * math.sqrt(self.heterogeneity * n / max(1, n - 1))
        parts = [(h, piece) for h in _CURVATURES for piece in pieces]
        states = [np.hstack([piece.start[:, None], np.zeros((len(piece.start), n - 1))]) for _, piece in parts]
        for t in range(_MOST_STEPS):
            error = 0.0
            for i, (h, piece) in enumerate(parts):
                A, B, C, _ = piece.phases[t % len(piece.phases)]
                gradients = h * (C @ states[i])
                gradients[:, 1:] += basis
                states[i] = A @ states[i] + B @ gradients
                models = piece.phases[(t + 1) % len(piece.phases)].M @ states[i]
                error += float(np.square(models).sum()) / n / len(parts)
            if error <= self.reach:
                return t + math.log(before / self.reach) / math.log(before / error) if error else float(t + 1)
            before = error
        return math.inf

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield the predicted steps, the inverse gap and the measured steps."""
        (line,) = self.found()
        best = min(((self._measured(run), lr) for run, lr in zip(self.runs, self.rates, strict=True)), default=None)
        yield self._value(labels, math.inf if best is None else best[0], MEASURED, None if best is None else best[1])
        yield self._value(labels, math.inf if line["steps"] is None else line["steps"], PREDICTED, None)
        yield self._value(labels, 1 / line["gap"], GAP, None)

    def _value(self, labels: Labels, value: float, metric: str, lr: float | None) -> Value:
        reached = math.isfinite(value)
        status = "done" if reached else NOT_REACHED
        return Value(labels, value if reached else math.nan, metric, self.config.seed, lr, status=status)

    def _measured(self, run: RateRun) -> float:
        """Return the first evaluated step of a run at which the metric is at the target; infinite if never."""
        rows = [row for row in read_metrics(run.directory) if (row["metric"], row["worker"]) == (self.metric, "mean")]
        if not rows or TrainingRun.finished(run) is Status.diverged:
            return math.inf
        rises = rows[0]["value"] < self.target
        reached = (row for row in rows if (row["value"] >= self.target) == rises or row["value"] == self.target)
        return float(next((row["step"] for row in reached), math.inf))
