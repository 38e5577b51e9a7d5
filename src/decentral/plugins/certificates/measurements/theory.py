"""Steps to a target, predicted from the spectrum of a graph and measured in training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from decentral.config.identity import component_identity
from decentral.measurements.measurement import Measurement
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import NOT_REACHED, Labels, Meaning, Value
from decentral.scheduling.job import Job
from decentral.settings import setting
from decentral.store import Status, read_metrics

MEASURED, PREDICTED, GAP, ERROR = "measured steps", "predicted steps", "1 / spectral gap", "class error"
_RATES = np.geomspace(0.01, 1.9, 24)
_CURVATURES = 0.25, 1.0
_MOST_STEPS = 2000


@dataclass
class Theory(Measurement):
    """The steps that config.algo needs to a target with the best of some learning rates: measured in training runs, and
    predicted for quadratics f_i(x) = h / 2 ||x - b_i||^2 with h = 1/4 and 1.

    The prediction uses the coefficients of every step, thus the whole spectrum of a gossip matrix. Beside it, the
    inverse spectral gap and, with `lam`, the class error of the graph on the run's partition,

        (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n      Pi [n, C] the workers' class shares

    rates    learning rates of the runs
    metric   metric of the runs, whose mean over the workers has to reach the target
    target   value to reach, from the side on which the metric begins
    ratio    assumed zeta^2 / ||x^0 - x*||^2
    ratios   the same, by the value of the first column
    reach    share of ||x^0 - x*||^2 that 1/n sum_i ||x_i - x*||^2 has to reach in the prediction
    lam      weight of the distance from exact averaging in the class error; null: no class error
    """

    name: str = "theory"
    rates: list[float] = setting([], above=0)
    metric: str = ""
    target: float = 0.0
    ratio: float = 0.1
    ratios: dict[str, float] = field(default_factory=dict)
    reach: float = 0.01
    lam: float | None = None

    folder: ClassVar[str] = "theory"
    decides: ClassVar[frozenset[str]] = frozenset({"lr"})
    meanings: ClassVar[dict[str, Meaning]] = {name: Meaning(False) for name in (MEASURED, PREDICTED, GAP, ERROR)}

    def parameters(self) -> dict[str, Any]:
        """Return what the prediction depends on."""
        return {
            "ratio": next((self.ratios[str(v)] for v in self.labels.values() if str(v) in self.ratios), self.ratio),
            "reach": self.reach,
            "topology": component_identity(self.config.topology),
            **({} if self.lam is None else {"lam": self.lam}),
        }

    @cached_property
    def runs(self) -> list[TrainingRun]:
        """Return the run of each learning rate."""
        return [TrainingRun(replace(self.config, lr=lr), f"{self.title}, lr {lr:g}") for lr in self.rates]

    def jobs(self) -> list[Job]:
        """Return the prediction and the runs."""
        return [self, *self.runs]

    def line(self) -> dict[str, Any]:
        """Return what is known before training, by metric."""
        from decentral.plugins.certificates.certify import Certifier, method_of
        from decentral.topology.facts import class_error, spectral_gap

        method = Certifier(method_of(self.config), 0.1).method
        steps = min(self._predicted(method, float(lr)) for lr in _RATES)
        known = {PREDICTED: steps, GAP: 1 / spectral_gap(method.rounds)}
        if self.lam is not None:
            counts = self.config.task.class_counts(self.config)
            known[ERROR] = class_error(
                method.rounds.matrices(0)[0], counts / counts.sum(axis=1, keepdims=True), self.lam
            )
        return known

    def _predicted(self, method: Any, lr: float) -> float:
        """Return the steps until the expected error reaches the target, over the curvatures and random gradients at the
        optimum; interpolated between two steps, infinite if never."""
        import torch

        from decentral.plugins.certificates.quadratics import heterogeneous
        from decentral.plugins.certificates.trace import run

        n, before = self.n, 1.0
        optimum = torch.from_numpy(heterogeneous(n)) * math.sqrt(self.parameters()["ratio"] * n / max(1, n - 1))
        g = torch.cat([torch.zeros(n, 1), optimum] * 2, dim=1)  # a column of each curvature for x^0
        x0 = torch.eye(1, n).repeat(1, 2)
        h = torch.tensor(_CURVATURES).repeat_interleave(n).expand(n, -1)
        problem = (method.repeated(part) for part in (h, g, x0))
        for t, models in zip(range(_MOST_STEPS), run(method, lr, *problem), strict=False):
            error = float(models.square().sum()) / n / len(_CURVATURES) / method.rounds.num_pieces
            if error <= self.reach:
                return t + math.log(before / self.reach) / math.log(before / error) if error else float(t + 1)
            before = error
        return math.inf

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield the measured steps, and what was known before."""
        measured = [(self._measured(run), lr) for run, lr in zip(self.runs, self.rates, strict=True)]
        steps, lr = min(measured, default=(math.inf, None))
        for metric, value in {MEASURED: steps, **self.found()[0]}.items():
            value, status = (value, "done") if math.isfinite(value) else (math.nan, NOT_REACHED)
            yield Value(labels, value, metric, self.config.seed, lr if metric == MEASURED else None, status=status)

    def _measured(self, run: TrainingRun) -> float:
        """Return the first evaluated step of a run at which the metric is at the target; infinite if never."""
        rows = [row for row in read_metrics(run.directory) if (row["metric"], row["worker"]) == (self.metric, "mean")]
        if not rows or run.finished() is Status.diverged:
            return math.inf
        sign = 1 if rows[0]["value"] < self.target else -1
        return float(next((row["step"] for row in rows if sign * (row["value"] - self.target) >= 0), math.inf))
