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


def check_at_least(key: str, value: float | None, least: int = 1) -> None:
    """Refuse a number below `least`; null is no number."""
    if value is not None and value < least:
        raise ConfigError(f"{key}={value} is out of range; use a number >= {least}.")
