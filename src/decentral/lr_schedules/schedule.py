"""The contract of a learning-rate schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod

from decentral.settings import Settings


class LearningRateSchedule(Settings, ABC, where="schedule"):
    """A dataclass whose fields are its configuration: the learning rate of step t is lr * factor(t, steps_per_epoch).

    A pure function of the step, so that a run that goes on after an interruption has the same rates.
    """

    @abstractmethod
    def factor(self, t: int, steps_per_epoch: float) -> float:
        """The factor on `lr` in step t = 0, 1, ...; the epoch is t / steps_per_epoch, a fraction inside of an epoch."""
