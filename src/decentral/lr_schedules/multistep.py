"""Warm-up, then a drop at each milestone."""

from __future__ import annotations

from dataclasses import dataclass, field

from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.settings import setting


@dataclass
class MultiStep(LearningRateSchedule):
    """Linear warm-up, then times gamma at each milestone (epochs).

        factor(epoch) = (warmup_from + (1 - warmup_from) min(epoch / warmup_epochs, 1)) * gamma^(milestones passed)

    The defaults are the RelaySum paper's for CIFAR-10 (appendix C.1): five epochs of warm-up from zero, so that the
    very first step has learning rate 0, and a tenth at epochs 150 and 180. The epoch is a fraction: it moves every
    step.
    """

    name: str = "multistep"
    warmup_epochs: float = setting(5.0, at_least=0)
    warmup_from: float = setting(0.0, at_least=0, when="warmup_epochs")
    milestones: list[float] = setting([150.0, 180.0], at_least=0)
    gamma: float = field(default=0.1, metadata={"when": "milestones"})

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """The ramp of the warm-up times gamma to the number of milestones passed, for epoch = t / steps_per_epoch."""
        epoch = t / steps_per_epoch
        ramp = min(epoch / self.warmup_epochs, 1.0) if self.warmup_epochs else 1.0
        passed = sum(epoch >= milestone for milestone in self.milestones)
        return (self.warmup_from + (1 - self.warmup_from) * ramp) * self.gamma**passed
