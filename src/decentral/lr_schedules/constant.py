"""A learning rate that stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.lr_schedules.schedule import LearningRateSchedule


@dataclass
class Constant(LearningRateSchedule):
    """The learning rate stays as it is: factor(t) = 1."""

    name: str = "constant"

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """1, whatever the step."""
        return 1.0
