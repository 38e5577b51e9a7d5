"""Warm-up, then one over the square root of the number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.settings import setting


@dataclass
class InverseSqrt(LearningRateSchedule):
    """Linear warm-up, then one over the square root of the number of steps: the Transformer's schedule.

        factor(t) = min((t + 1) / warmup_steps, sqrt(warmup_steps / (t + 1)))

    Vaswani et al., NeurIPS 2017, equation 3, whose d^(-1/2) warmup_steps^(-1/2) is `lr` here: the largest rate, which
    step warmup_steps - 1 has. (With d = 512 and 4,000 steps that is 7.0e-4.)
    """

    name: str = "inverse_sqrt"
    warmup_steps: int = setting(400, at_least=1)

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """The ramp, or what is left after it, whatever the epoch."""
        return min((t + 1) / self.warmup_steps, math.sqrt(self.warmup_steps / (t + 1)))
