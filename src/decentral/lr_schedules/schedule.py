"""Learning-rate schedules: the interface, and one class for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from decentral.errors import ConfigError
from decentral.settings import Settings, setting


@dataclass(kw_only=True)
class LearningRateSchedule(Settings, ABC, where="schedule"):
    """A learning-rate schedule, a dataclass of settings. The learning rate of step t is lr * rate(t), with

        rate(t) = (warmup_from + (1 - warmup_from) min(epoch / warmup_epochs, 1)) max(factor(t), final_factor)

    and fractional epoch = t / steps_per_epoch. It is a pure function of the step, so a resumed run has the same rates.
    A custom class that declares `warmup_epochs` warms up in its `factor`, without the ramp.

    warmup_epochs   epochs over which the learning rate rises linearly to its full value, from the share warmup_from in
                    the very first step
    warmup_from     factor of the very first step
    final_factor    smallest factor; cosine and linear end there
    """

    warmup_epochs: float = setting(0.0, at_least=0, older=0.0, in_rates=True)
    warmup_from: float = setting(0.0, at_least=0, when="warmup_epochs", older=0.0)
    final_factor: float = setting(0.0, at_least=0, at_most=1, older=0.0)

    @abstractmethod
    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return the factor on `lr` in step t = 0, 1, ..., without warm-up. A factor that depends on the length of the
        run takes another argument, `total_steps`."""

    def rates(self, steps_per_epoch: float, total_steps: int | None) -> Callable[[int], float]:
        """Return step t -> the factor on `lr`, in a run of `total_steps` (None: until it reaches its target).

        Raises ConfigError if the factor needs a run length that is unknown.
        """
        further: dict[str, Any] = {}
        formula = self.formula()
        warms_up = self.__dataclass_fields__["warmup_epochs"].metadata.get("in_rates") and self.warmup_epochs > 0
        if (length := signature(formula).parameters.get("total_steps")) is not None:
            if total_steps is None and length.default is length.empty:
                raise ConfigError(
                    f"schedule={getattr(self, 'name', type(self).__name__)} needs the length of a run, but this one "
                    "ends at its target: use schedule=constant, or another one without a length."
                )
            further = {"total_steps": total_steps}

        def rate(t: int) -> float:
            ramp = min(t / steps_per_epoch / self.warmup_epochs, 1.0) if warms_up else 1.0
            factor = formula(t, steps_per_epoch, **further)
            return (self.warmup_from + (1 - self.warmup_from) * ramp) * max(factor, self.final_factor)

        return rate

    def formula(self) -> Callable[..., float]:
        """Return `factor`; classes made from a user's function have parameters of any name, also of this one."""
        return self.factor

    def group_settings(
        self, optimizer: Any, steps_per_epoch: float, total_steps: int | None
    ) -> Callable[[int], dict[str, Any]] | None:
        """Return step t -> what it changes in the optimizer besides the rate, such as its momentum; None: nothing."""
        return None

    def progress(self, t: int, steps_per_epoch: float, total_steps: int) -> float:
        """Return the progress from 0 at the end of the warm-up to 1 after the last step."""
        first = self.warmup_epochs * steps_per_epoch
        return min(1.0, max(0.0, t - first) / max(1.0, total_steps - first))


@dataclass
class Constant(LearningRateSchedule):
    """Constant learning rate: factor(t) = 1."""

    name: str = "constant"

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return 1 for every step."""
        return 1.0


@dataclass
class Cosine(LearningRateSchedule):
    """Cosine decay from 1 after the warm-up to `final_factor` at the end of the run.

        factor(t) = final_factor + (1 - final_factor) (1 + cos(pi s)) / 2,  s = (t - w) / (T - w)

    for a run of T steps, w of them warm-up. Loshchilov and Hutter, ICLR 2017 (SGDR), without restarts: torch's
    `CosineAnnealingLR` with T_max = T and eta_min = final_factor lr.
    """

    name: str = "cosine"

    def factor(self, t: int, steps_per_epoch: float, total_steps: int) -> float:  # type: ignore[override]
        """Return the factor of the class formula."""
        falling = (1 + math.cos(math.pi * self.progress(t, steps_per_epoch, total_steps))) / 2
        return self.final_factor + (1 - self.final_factor) * falling


@dataclass
class Linear(LearningRateSchedule):
    """Linear decay from 1 after the warm-up to `final_factor` at the end of the run.

        factor(t) = 1 - (1 - final_factor) s,  s = (t - w) / (T - w)

    for a run of T steps, w of them warm-up: torch's `LinearLR` with start_factor 1 and total_iters = T.
    """

    name: str = "linear"

    def factor(self, t: int, steps_per_epoch: float, total_steps: int) -> float:  # type: ignore[override]
        """Return the factor of the class formula."""
        return 1 - (1 - self.final_factor) * self.progress(t, steps_per_epoch, total_steps)


@dataclass
class Exponential(LearningRateSchedule):
    """Exponential decay: the rate is multiplied by gamma after every epoch.

    factor(epoch) = gamma^floor(epoch). The thesis' schedule (gamma = 0.9) leaves 0.5 % of the rate after 50 epochs.
    """

    name: str = "exponential"
    gamma: float = setting(0.9, at_least=0)

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return gamma^floor(epoch), for epoch = t / steps_per_epoch."""
        return self.gamma ** int(t / steps_per_epoch + 1e-9)


@dataclass
class Inverse(LearningRateSchedule):
    """Inverse decay: one over the step number, the rate of a running average.

    factor(t) = 1 / (t + 1). With lr=1 and task=mean_estimation, `algo=dpsgd` is the gossip baseline of the RelaySum
    paper's section 3: x <- W (x + (s - x) / (t + 1)).
    """

    name: str = "inverse"

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return 1 / (t + 1)."""
        return 1.0 / (t + 1)


@dataclass
class InverseSqrt(LearningRateSchedule):
    """Linear warm-up, then one over the square root of the number of steps: the Transformer's schedule.

        factor(t) = min((t + 1) / warmup_steps, sqrt(warmup_steps / (t + 1)))

    Vaswani et al., NeurIPS 2017, equation 3, whose d^(-1/2) warmup_steps^(-1/2) is `lr` here: the peak rate, reached in
    step warmup_steps - 1. (With d = 512 and 4,000 steps that is 7.0e-4.)
    """

    name: str = "inverse_sqrt"
    warmup_steps: int = setting(400, at_least=1)

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return the ramp or, after it, the inverse square root."""
        return min((t + 1) / self.warmup_steps, math.sqrt(self.warmup_steps / (t + 1)))


@dataclass
class MultiStep(LearningRateSchedule):
    """Linear warm-up, then decay by gamma at each milestone (epochs).

        factor(epoch) = gamma^(milestones passed)

    The defaults are the RelaySum paper's for CIFAR-10 (appendix C.1): five epochs of warm-up from zero, so the very
    first step has learning rate 0, and a tenth at epochs 150 and 180. The epoch is fractional: it changes every step.
    """

    name: str = "multistep"
    warmup_epochs: float = setting(5.0, at_least=0, in_rates=True)
    warmup_from: float = setting(0.0, at_least=0, when="warmup_epochs")
    milestones: list[float] = setting([150.0, 180.0], at_least=0)
    gamma: float = field(default=0.1, metadata={"when": "milestones"})

    def factor(self, t: int, steps_per_epoch: float) -> float:
        """Return gamma to the number of milestones passed, for epoch = t / steps_per_epoch."""
        return self.gamma ** sum(t / steps_per_epoch >= milestone for milestone in self.milestones)
