"""Dataclasses of settings: each field declares its valid values, and one check rejects all others.

    @dataclass
    class Momentum(Optimizer):
        beta: float = setting(0.9, at_least=0, below=1)

The check runs for every new instance, from the command line, a stored file or Python; `--help` shows the limits.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import cache, partial, wraps
from typing import Any

from decentral.errors import ConfigError, suggest

_SIGNS = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}


def setting(
    default: Any = dataclasses.MISSING,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = True,
    choices: Collection[Any] | Callable[[], Collection[Any]] | None = None,
    hint: str = "",
    **metadata: Any,
) -> Any:
    """Declare a field of a `Settings` dataclass with its valid values.

    None (null) is not checked; in a list, each entry is.

    above, at_least, below, at_most   the range of a number, or of the numbers in a list
    finite     whether a number with a range has to be finite
    choices    the values there are, or a function without arguments that returns them
    hint       unit or examples, in brackets at the end of the message that refuses a value: "seconds"
    metadata   of the field, such as `help` and `content`
    """
    limits = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    known = metadata | {"limits": limits, "finite": finite, "choices": choices, "hint": hint}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=partial(copy, default), metadata=known)
    return dataclasses.field(default=default, metadata=known)


class Settings:
    """Base of dataclasses with settings. `check` runs before the `__post_init__` of the class, if it defines one.

    `class Optimizer(Settings, where="optim")` sets the path of the settings in a configuration.
    """

    settings_at = ""

    def __init_subclass__(cls, where: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if where is not None:
            cls.settings_at = where
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _checked(vars(cls)["__post_init__"])  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check(type(self), vars(self), self.settings_at)


def _checked(own: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(own)
    def checked(self: Any) -> None:
        check(type(self), vars(self), self.settings_at)
        own(self)

    return checked


def check(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError, naming the key below `where`, if a field of the dataclass has an invalid value."""
    for name, metadata in limited(cls).items():
        value = values.get(name)
        if value is not None:
            check_value(f"{where}.{name}" if where else name, value, metadata)


@cache
def limited(cls: type) -> dict[str, Mapping[str, Any]]:
    """Return field -> metadata of the fields with limits, including inherited ones; a subclass may change a default."""
    fields = [vars(base).get("__dataclass_fields__", {}) for base in reversed(cls.__mro__)]
    return {name: f.metadata for own in fields for name, f in own.items() if "limits" in f.metadata}


def documented(cls: type) -> dict[str, str]:
    """Return the one-line description of each setting, from the docstrings of a dataclass and its base classes."""
    return {
        name: " ".join(text.split())
        for base in reversed(cls.__mro__)
        for name, text in re.findall(r"^(\w+)  +(\S.*(?:\n  +.*)*)", inspect.cleandoc(base.__doc__ or ""), re.M)
    }


def check_value(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the field's metadata allow the value."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        choices = _choices(metadata)
        if choices and entry not in choices:
            if isinstance(entry, str):
                raise ConfigError(f"{key}={entry} does not exist.{suggest(entry, map(str, choices))}")
            raise ConfigError(f"{key}={_shown(entry)} is not a valid choice; use {limits_in_words(metadata)}.")
        if metadata["limits"] and not _fits(entry, metadata["limits"], metadata["finite"]):
            hint = f" ({metadata['hint']})" if metadata["hint"] else ""
            open_ended = metadata["finite"] and not {"below", "at_most"} & set(metadata["limits"])
            number = "a finite number" if open_ended and not isinstance(entry, int) else "a number"
            raise ConfigError(
                f"{key}={_shown(entry)} is {_fault(entry)}; use {number} {limits_in_words(metadata)}{hint}."
            )


def limits_in_words(metadata: Mapping[str, Any]) -> str:
    """Return '>= 0 and < 1', or the choices; '' for a field without limits."""
    choices = _choices(metadata)
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    limits = metadata.get("limits", {})
    if set(limits) == {"at_least", "at_most"}:
        return f"from {_shown(limits['at_least'])} to {_shown(limits['at_most'])}"
    return " and ".join(f"{_SIGNS[name]} {_shown(limit)}" for name, limit in limits.items())


def _choices(metadata: Mapping[str, Any]) -> Collection[Any]:
    choices = metadata.get("choices") or ()
    return choices() if callable(choices) else choices


def _fits(value: Any, limits: Mapping[str, float], finite: bool) -> bool:
    try:
        number = value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        return False
    return (
        number > limits.get("above", -math.inf)
        and number >= limits.get("at_least", -math.inf)
        and (number < limits.get("below", math.inf) or "below" not in limits)
        and number <= limits.get("at_most", math.inf)
        and (math.isfinite(number) or not finite)
    )


def _fault(value: Any) -> str:
    """Return what is wrong with a value that does not fit its limits."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "not a number"
    if not math.isfinite(number):
        return "not finite"
    return "negative" if number < 0 else "out of range"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
