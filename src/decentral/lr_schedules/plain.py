"""Learning-rate schedules from a user's function or from torch: schedule=mymodule:function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from numbers import Real

from decentral.errors import ConfigError
from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.registry import blame
from decentral.registry.signature import Plain, call, component_from, function, taken
from decentral.settings import setting

GIVEN = ("t", "epoch", "steps_per_epoch", "total_steps")
"""Arguments passed to the function if it has a parameter of this name."""


class PlainSchedule(Plain, LearningRateSchedule):
    """A function that returns the factor on the learning rate; its other parameters are the settings.

    It receives the step `t`, the fractional `epoch`, `steps_per_epoch` and `total_steps`.
    """

    def factor(self, t: int, steps_per_epoch: float, total_steps: int | None = None) -> float:
        """Return the function's result. Raises ConfigError unless it is a finite number >= 0."""
        known = dict(zip(GIVEN, (t, t / steps_per_epoch, steps_per_epoch, total_steps), strict=True))
        with blame.named(f"schedule={self.name}"):
            value, again = (call(self.target(), known, **self.settings()) for _ in range(2))
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ConfigError(
                f"schedule={self.name} returns {value!r} in step {t}: return the factor on lr, a finite number >= 0."
            )
        if value != again:
            raise ConfigError(
                f"schedule={self.name} returns {value!r} in step {t}, and {again!r} when called again: make it a "
                "deterministic function of its arguments."
            )
        return float(value)


@dataclass(kw_only=True)
class TorchSchedule(Plain, LearningRateSchedule):
    """A scheduler of torch; its parameters are the settings. Rates in it are factors on `lr`.

    unit   when to call step(): after each step, so that all its counts are steps; or after each epoch
    """

    unit: str = setting("step", choices=("step", "epoch"))

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that the scheduler refuses, or if its step() needs more."""
        super().__post_init__()
        self.factor(1, 1.0, 2)

    def factor(self, t: int, steps_per_epoch: float, total_steps: int | None = None) -> float:
        """Return the scheduler's rate for an optimizer with rate 1."""
        number = t if self.unit == "step" else int(t / steps_per_epoch + 1e-9)
        made, known = vars(self).setdefault("_made", {}), (steps_per_epoch, total_steps)
        if known not in made:
            made[known] = self._rates(total_steps)
        rates = made[known][1]
        while len(rates) <= number:
            rates.append(next(made[known][0]))
        return float(rates[number])

    def _rates(self, total_steps: int | None) -> tuple[Iterator[float], list[float]]:
        """Return an iterator over the rates of the steps, and the list of those already computed."""

        def rates() -> Iterator[float]:
            import torch

            with blame.named(f"schedule={self.name} cannot be used"):
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
                scheduler = self.target()(
                    optimizer, **self.settings(), **taken(self.target(), {"total_steps": total_steps})
                )
                while True:
                    yield optimizer.param_groups[0]["lr"]
                    optimizer.step()
                    scheduler.step()

        return rates(), []


@cache
def plain(name: str) -> type:
    """Return the schedule for `module:function`. Raises ConfigError if it does not exist."""
    bases = getattr(function("schedule", name), "__mro__", ())
    if any(base.__module__ == "torch.optim.lr_scheduler" for base in bases):
        return component_from("lr_schedules", name, TorchSchedule, ("optimizer", "last_epoch", "total_steps"))
    return component_from("lr_schedules", name, PlainSchedule, GIVEN)
