"""What claims say of the cells that they compare, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from decentral.report.claims.claim import NOT_RUN, WITHIN_NOISE, Finding
from decentral.report.entries import Entry, plain


def level(entry: Entry, larger_is_better: bool) -> float:
    """The entry's mean; the worst there is if all its runs diverged without a value."""
    if entry.values:
        return entry.mean
    return -math.inf if larger_is_better else math.inf


def told(entry: Entry) -> str:
    """For example '84.6 ± 0.3 (1 of 3 diverged)'."""
    text = number(entry.mean) if entry.values else "diverged"
    if entry.std is not None:
        text += f" ± {entry.std:.2g}"
    return f"{text} ({entry.diverged} of {entry.runs} diverged)" if entry.diverged and entry.values else text


def number(value: float) -> str:
    """Four digits are enough to judge by."""
    return f"{value:.4g}"


def combined(entries: list[Entry]) -> float | None:
    """Standard error of a difference of means; None if a spread is not known."""
    errors = [entry.error for entry in entries]
    return None if any(error is None for error in errors) else math.hypot(*[error or 0.0 for error in errors])


def weighed(why: str, difference: float, error: float | None) -> str:
    """`why`, with a remark where a difference is smaller than its standard error, or that one is not known."""
    if error is None:
        return f"{why}; the spread over seeds is not known"
    if abs(difference) < error:
        return f"{WITHIN_NOISE}: {why}, with a standard error of {number(error)}"
    return why


def at_most(value: float, limit: float) -> bool:
    """Whether a value is not above a limit, but for rounding."""
    return value <= limit or math.isclose(value, limit, rel_tol=1e-9)


def missing(*cells: tuple[Mapping[str, Any], Entry | None]) -> Finding | None:
    """'not run' if one of the cells has no values, or not all of those that it will have."""
    for wanted, entry in cells:
        labels = ", ".join(f"{name}={plain(value)}" for name, value in wanted.items())
        if entry is None:
            return Finding(NOT_RUN, why=f"no run of {labels} has ended")
        if entry.unfinished:
            return Finding(NOT_RUN, why=f"{entry.unfinished} of {labels}")
    return None
