"""A constant factor per epoch."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.settings import setting


@dataclass
class Exponential(LearningRateSchedule):
    """Times gamma after every epoch.

    factor(epoch) = gamma^floor(epoch). The thesis' schedule (gamma = 0.9): after 50 epochs 0.5 % of the rate is left.
    """

    name: str = "exponential"
    gamma: float = setting(0.9, at_least=0)

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """gamma^floor(epoch), for epoch = t / steps_per_epoch."""
        return self.gamma ** int(t / steps_per_epoch + 1e-9)
