"""The contract of a learning-rate schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod


class LearningRateSchedule(ABC):
    """The learning rate of step t is `lr * factor(t, steps_per_epoch)`."""

    @abstractmethod
    def factor(self, t: int, steps_per_epoch: float) -> float:
        """The factor on `lr` for step t = 0, 1, ...; an epoch is t / steps_per_epoch, a fraction."""
