"""Settings of which each worker has its own: `lr_per_worker`, `batch_size_per_worker` and `steps_per_worker`."""

from __future__ import annotations

from typing import Any

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import normal, uniform

SPELLINGS = "[uniform,LOW,HIGH], [lognormal,MEDIAN,SIGMA] or [choice,A,B,...]"

_LARGEST = 2.0**31


def per_worker(key: str, given: list[Any], num_workers: int, seed: int, *, whole: bool) -> np.ndarray:
    """Return the numbers of all workers, float64 or (`whole`) int64 [n].

    `given` lists one number per worker, or a distribution: [uniform, low, high], [lognormal, median, sigma] (of the
    logarithm), or [choice, a, b, ...]. Draws are a function of (seed, key, worker); whole numbers are rounded, and at
    least 1. Raises ConfigError for anything else.
    """
    name, numbers = (given[0], given[1:]) if given and isinstance(given[0], str) else ("", given)
    said = f"{key}=[{','.join(map(str, given))}]"
    try:
        values = np.array([float("nan") if isinstance(one, bool) else float(one) for one in numbers])
    except (TypeError, ValueError):
        raise ConfigError(
            f"{said} has entries that are not numbers: give one number per worker, or {SPELLINGS}."
        ) from None
    if not name and len(values) != num_workers:
        raise ConfigError(
            f"{said} has {len(values)} entries, but num_workers={num_workers}: give one per worker, or {SPELLINGS}."
        )
    limited = values[:1] if name == "lognormal" else values
    within = (values >= 0) & (values <= _LARGEST)
    if not within.all() or (limited <= 0).any() or (whole and (limited % 1).any()):
        kind = "whole numbers" if whole else "finite numbers"
        raise ConfigError(f"{said} is out of range: give {kind} > 0, one per worker, or {SPELLINGS}.")
    address = seed, key, np.arange(num_workers)
    if name == "choice" and len(values):
        values = values[(uniform(*address) * len(values)).astype(np.int64)]
    elif name == "uniform" and len(values) == 2 and values[0] <= values[1]:
        values = values[0] + (values[1] - values[0]) * uniform(*address)
    elif name == "lognormal" and len(values) == 2:
        values = values[0] * np.exp(np.minimum(values[1] * normal(*address), np.log(_LARGEST / values[0])))
    elif name:
        raise ConfigError(f"{said} is not a distribution: use {SPELLINGS}, or give one number per worker.")
    return np.maximum(1, np.rint(values)).astype(np.int64) if whole else values
