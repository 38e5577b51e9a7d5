"""Early stopping: `early_stop.patience`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from decentral.config.schema import EarlyStop
from decentral.errors import ConfigError
from decentral.store.metrics import Metric
from decentral.training.evaluation import Evaluation
from decentral.training.stepper import Extension


class Patience(Extension):
    """The number of evaluations since the best one; the same on all processes."""

    def __init__(self, settings: EarlyStop, metrics: Sequence[Metric]) -> None:
        """metrics: those of evaluations. Raises ConfigError if the watched metric is unknown or has no direction."""
        self._settings, wanted = settings, settings.metric.replace("_", " ")
        known = [metric for metric in metrics if metric.larger_is_better is not None]
        found = [metric for metric in known if wanted in ("", metric.words, metric.name.replace("_", " "))]
        if not found:
            raise ConfigError(
                f"early_stop.metric={settings.metric} is not an evaluated metric with a direction: use "
                f"{', '.join(metric.words for metric in known)}."
            )
        self._metric, self._place = found[0], list(metrics).index(found[0])
        self._best, self._step, self._waited = math.nan, 0, 0

    def ends(self, t: int, found: Evaluation) -> bool:
        """Return whether the evaluation after t steps is the last: none of the last `patience` ones improved."""
        m = self._place
        value = {
            "worst": found.worst(m),
            "mean": found.workers[:, m].mean().item(),
            "averaged": found.averaged[m].item(),
        }[self._settings.worker]
        gain = value - self._best if self._metric.larger_is_better else self._best - value
        self._waited += 1
        if gain > self._settings.min_change or math.isnan(self._best):
            self._best, self._step, self._waited = value, t, 0
        return self._waited >= (self._settings.patience or math.inf)

    def note(self, step: int, total_steps: int) -> str:
        """Return a note on what ended the run after `step` steps."""
        words = {"worst": "worst worker", "mean": "mean over workers", "averaged": "averaged model"}
        whose, best = words[self._settings.worker], self._metric.format(self._best, 4)
        return (
            f"early_stop.patience={self._settings.patience} ended the run after {step} of {total_steps} steps: "
            f"{self._metric.words} ({whose}) was best after {self._step}, {best}"
        )

    def state(self) -> dict[str, Any]:
        """Return the best evaluation and the number of those since."""
        return {"early_stop": [self._best, self._step, self._waited]}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """See `Extension`."""
        self._best, self._step, self._waited = part["early_stop"]
