"""Learning-rate schedules from a user's function or from torch: schedule=mymodule:function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from decentral.errors import ConfigError
from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.registry import blame
from decentral.registry.signature import Plain, call, component_from, parameters_of
from decentral.settings import setting

GIVEN = ("t", "epoch", "steps_per_epoch", "total_steps")
"""Arguments passed to the function if it has a parameter of this name."""


class PlainSchedule(Plain, LearningRateSchedule):
    """A function that returns the factor on the learning rate; its other parameters are the settings.

    It receives the step `t`, the fractional `epoch`, `steps_per_epoch` and `total_steps`.
    """

    factor: ClassVar[Any] = None

    def formula(self) -> Callable[..., float]:
        """Return the checked function."""
        return self._called

    def _called(self, t: int, steps_per_epoch: float, total_steps: int | None = None) -> float:
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
    """A scheduler of torch, or a function of `optimizer` that returns one; its parameters are the settings.

    Its rates are factors on `lr`. Other settings that it changes, such as the momentum, change in `optim`.

    unit   when to call step(): after each step, so that all its counts are steps; or after each epoch
    """

    unit: str = setting("step", choices=("step", "epoch"))

    factor: ClassVar[Any] = None

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that the scheduler refuses, or if its step() needs more."""
        super().__post_init__()
        self.formula()(1, 1.0, 2)

    def formula(self) -> Callable[..., float]:
        """Return the scheduler's rate for an optimizer with rate 1."""
        return lambda t, steps_per_epoch, total_steps=None: float(
            self._group(t, steps_per_epoch, total_steps, {"lr": 1.0, "momentum": 0.0})["lr"]
        )

    def group_settings(
        self, optimizer: Any, steps_per_epoch: float, total_steps: int | None
    ) -> Callable[[int], dict[str, Any]]:
        """See `LearningRateSchedule`: settings by their names in `optimizer`; of one of torch, in its group."""
        made, kinds = getattr(optimizer, "made", None), int | float | tuple
        if made is not None:
            import torch

            given = made([torch.nn.Parameter(torch.zeros(1))], 1.0).defaults
        else:
            given = vars(optimizer)
        before: dict[str, Any] = {key: value for key, value in given.items() if isinstance(value, kinds)} | {"lr": 1.0}
        if "beta1" in before:
            before["betas"] = before["beta1"], before["beta2"]
        changed: set[str] = set()

        def settings(t: int) -> dict[str, Any]:
            group = self._group(t, steps_per_epoch, total_steps, before)
            changed.update(key for key in before if key != "lr" and group[key] != before[key])
            found = {key: group[key] for key in changed}
            if made is None and "betas" in found:
                found["beta1"], found["beta2"] = found.pop("betas")
            return found

        settings(0)
        return settings

    def _group(self, t: int, steps_per_epoch: float, total_steps: int | None, before: dict[str, Any]) -> dict[str, Any]:
        """Return the parameter group of step t of an optimizer that has these values `before` the first one."""
        number = t if self.unit == "step" else int(t / steps_per_epoch + 1e-9)
        made, known = vars(self).setdefault("_made", {}), (steps_per_epoch, total_steps, *before.items())
        if known not in made:
            made[known] = self._groups(total_steps, before), []
        groups: list[dict[str, Any]] = made[known][1]
        while len(groups) <= number:
            groups.append(next(made[known][0]))
        return groups[number]

    def _groups(self, total_steps: int | None, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import torch

        class Group(torch.optim.Optimizer):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                """Leave the parameter as it is."""

        with blame.named(f"schedule={self.name} cannot be used"):
            optimizer = Group([torch.nn.Parameter(torch.zeros(1))], dict(before))
            given = {"optimizer": optimizer, "total_steps": total_steps}
            scheduler: Any = call(self.target(), given, **self.settings())
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise ConfigError(
                    f"schedule={self.name} needs a metric in each step, but rates here depend on the step alone: use "
                    "another schedule, such as torch.optim.lr_scheduler:CosineAnnealingLR."
                )
            if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
                raise ConfigError(
                    f"schedule={self.name} returns a {type(scheduler).__name__}: return a scheduler of torch for the "
                    "optimizer, or, from a function without the parameter optimizer, the factor on lr."
                )
            while True:
                yield {key: optimizer.param_groups[0][key] for key in before}
                optimizer.step()
                scheduler.step()


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the schedule of this name that calls a class or function."""
    if objects := {"lr_lambda", "schedulers"} & parameters_of(target).keys():
        raise ConfigError(
            f"schedule={name} takes objects ({objects.pop()}): make it in a function of your own with the parameter "
            "optimizer, and give its name, as in schedule=mymodule:function."
        )
    bases = getattr(target, "__mro__", ())
    if "optimizer" in parameters_of(target) or any(one.__module__ == "torch.optim.lr_scheduler" for one in bases):
        return component_from("lr_schedules", name, target, TorchSchedule, ("optimizer", "last_epoch", "total_steps"))
    return component_from("lr_schedules", name, target, PlainSchedule, GIVEN)
