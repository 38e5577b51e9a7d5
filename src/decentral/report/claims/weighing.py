"""What claims say of the cells that they compare, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from decentral.report.claims.claim import WITHIN_NOISE
from decentral.report.entries import Entry

_ONE_SIGMA = 0.8413447
"""The share of a normal distribution that is below its mean plus one standard deviation."""


def told(entry: Entry) -> str:
    """For example '84.6 ± 0.3 (1 of 3 diverged)'."""
    if not entry.values:
        return "never" if entry.never else "diverged"
    text = number(entry.mean)
    if entry.std is not None:
        text += f" ± {entry.std:.2g}"
    notes = [f"{entry.diverged} of {entry.runs} diverged"] if entry.diverged else []
    notes += [f"{entry.never} of {entry.runs} never"] if entry.never else []
    return f"{text} ({', '.join(notes)})" if notes else text


def number(value: float) -> str:
    """Four digits are enough to judge by."""
    return f"{value:.4g}"


def combined(*terms: tuple[float, Entry]) -> float | None:
    """Standard error of a sum of means, each times its factor: (1, a), (-1, b) for a difference.

    Where all have the same seeds, that of the sums seed by seed, since a seed gives all methods the same data, models
    and delays; otherwise as of independent means. None if a spread is not known. Of runs without a value it knows
    nothing.
    """
    entries = [entry for _, entry in terms]
    if any(entry.error is None for entry in entries):
        return None
    seeds = entries[0].by_seed.keys()
    if seeds and all(entry.by_seed.keys() == seeds for entry in entries):
        sums = [math.fsum(factor * entry.by_seed[seed] for factor, entry in terms) for seed in seeds]
        return statistics.stdev(sums) / math.sqrt(len(sums))
    return math.hypot(*[factor * (entry.error or 0.0) for factor, entry in terms])


def noise(error: float, entries: Sequence[Entry]) -> float:
    """What a difference with this standard error has to exceed: the error itself where there are many seeds, more where
    there are few (1.8 times of it for 2, 1.3 times for 3), as Student's t says. Where there is no difference, chance
    exceeds it to one side in 16 % of cases.
    """
    from scipy.special import stdtrit

    freedom = min(len(entry.values) for entry in entries) - 1
    return error * float(stdtrit(freedom, _ONE_SIGMA)) if error else 0.0


def weighed(why: str, margin: float, error: float | None, entries: Sequence[Entry], always: bool = True) -> str:
    """`why`, with a remark where the margin by which a claim is met or missed is within the noise, or it is not known
    whether it is: in a study without any spread only if `always`."""
    if error is None:
        stochastic = any(entry.runs > 1 for entry in entries)
        words = f"{why}; the spread over seeds is not known"
        return f"{WITHIN_NOISE}: {words}" if stochastic else words if always else why
    if abs(margin) < noise(error, entries):
        seeds = min(len(entry.values) for entry in entries)
        return f"{WITHIN_NOISE}: {why}, with a standard error of {number(error)} from {seeds} seeds"
    return why


def at_most(value: float, limit: float) -> bool:
    """Whether a value is not above a limit, but for rounding."""
    return value <= limit or math.isclose(value, limit, rel_tol=1e-9)
