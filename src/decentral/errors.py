"""`ConfigError`, the one error that users see, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """The program cannot do what the user asked for.

    The message is one sentence that names the key, the value and what would work. It is printed without a traceback and
    the program exits with status 2.
    """


_LISTED = 80


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list all of them (of many, the nearest three) if none is close.

    >>> suggest("rnig", ["ring", "chain"])
    " Did you mean 'ring'?"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    near += [name for name in names if wrong in name.split("_")]
    if near:
        return f" Did you mean '{near[0]}'?"
    if len(names) > _LISTED:
        return f" The nearest are {', '.join(difflib.get_close_matches(wrong, names, n=3, cutoff=0.0))}."
    return f" Choose one of: {', '.join(names)}."


def check_at_least(key: str, value: float | None, least: int = 1) -> None:
    """Raise ConfigError for a number below `least`; None passes."""
    if value is not None and value < least:
        raise ConfigError(f"{key}={value} is out of range; use a number >= {least}.")
