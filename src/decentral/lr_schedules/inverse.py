"""One over the number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.lr_schedules.schedule import LearningRateSchedule


@dataclass
class Inverse(LearningRateSchedule):
    """One over the step number, the rate of a running average.

    factor(t) = 1 / (t + 1). With lr=1 and task=mean_estimation, `algo=dpsgd` is the gossip baseline of the RelaySum
    paper's section 3: x <- W (x + (s - x) / (t + 1)).
    """

    name: str = "inverse"

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """1 / (t + 1), whatever the epoch."""
        return 1.0 / (t + 1)
