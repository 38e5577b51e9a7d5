"""No schedule."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.schedules.schedule import LearningRateSchedule


@dataclass
class Constant(LearningRateSchedule):
    """The learning rate stays as it is."""

    name: str = "constant"

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """1."""
        return 1.0
