"""Learning-rate schedules from a function of a module of one's own: schedule=mymodule:function."""

from __future__ import annotations

import math
from functools import cache
from numbers import Real

from decentral.errors import ConfigError
from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.registry import blame
from decentral.registry.signature import Plain, component_from, taken

GIVEN = ("t", "epoch", "steps_per_epoch", "total_steps")
"""What the function is told of a step, where a parameter has this name."""


class PlainSchedule(Plain, LearningRateSchedule):
    """A function that returns the factor on the learning rate; its other parameters are the settings.

    It is told the step `t`, the `epoch` (a fraction), `steps_per_epoch` and `total_steps`.
    """

    def factor(self, t: int, steps_per_epoch: float, total_steps: int | None = None) -> float:
        """What the function returns. Raises ConfigError unless that is a finite number, at least 0."""
        known = dict(zip(GIVEN, (t, t / steps_per_epoch, steps_per_epoch, total_steps), strict=True))
        with blame.named():
            value = self.target()(**self.settings(), **taken(self.target(), known))
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ConfigError(
                f"schedule={self.name} returns {value!r} in step {t}: return the factor on lr, a finite number >= 0."
            )
        return float(value)


@cache
def plain(name: str) -> type:
    """The schedule for `module:function`. Raises ConfigError if there is no such thing."""
    return component_from("lr_schedules", name, PlainSchedule, GIVEN)
