"""The one error that users see, and the nearest right name for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Something the user asked for cannot be done.

    The message is one sentence that names the key, the value and what would work. It is printed without a traceback and
    the program exits with status 2.
    """


def suggest(wrong: str, known: Iterable[str]) -> str:
    """' Did you mean 'ring'?' for the nearest of the known names, else the list of all of them.

    >>> suggest("rnig", ["ring", "chain"])
    " Did you mean 'ring'?"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose one of: {', '.join(names)}."


def check_range(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside [low, high)."""
    if not low <= value < high:
        limits = f"at least {low:g}" if high == float("inf") else f"in [{low:g}, {high:g})"
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be {limits}.")


def check_between(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be from {low:g} to {high:g}.")


def check_share(key: str, value: float) -> None:
    """Refuse a value outside (0, 1]."""
    if not 0 < value <= 1:
        raise ConfigError(f"{key}={value:g} makes no sense: it has to be above 0 and at most 1.")


def check_at_least(key: str, value: float | None, least: int = 1) -> None:
    """Refuse a number below `least`; null is no number."""
    if value is not None and value < least:
        raise ConfigError(f"{key}={value} makes no sense: it has to be at least {least}.")
