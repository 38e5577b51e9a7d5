"""How near what is simulated is to what was observed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from decentral.measurements.validation.replay import Simulated


class Compared(NamedTuple):
    """A run as it was observed, as the clock replays it, and as it was predicted."""

    round: int
    observed: Simulated
    replayed: Simulated
    predicted: Simulated

    @property
    def replay_error(self) -> float:
        """Of the replayed time per step, in percent of the observed one; above 0: too slow."""
        return 100 * (self.replayed.step_s / self.observed.step_s - 1)

    @property
    def error(self) -> float:
        """The same of the predicted time per step."""
        return 100 * (self.predicted.step_s / self.observed.step_s - 1)

    @property
    def stale_error(self) -> float | None:
        """Predicted less observed share of stale contributions, in percentage points; None where there are none."""
        if self.predicted.stale_share is None or self.observed.stale_share is None:
            return None
        return 100 * (self.predicted.stale_share - self.observed.stale_share)


class Sizes(NamedTuple):
    """Of many errors, whatever their sign."""

    median: float
    p95: float


def sizes(errors: Iterable[float]) -> Sizes | None:
    """Median and 95th percentile (linear between two) of their magnitudes; None of no errors."""
    magnitudes = np.abs(list(errors))
    return Sizes(float(np.median(magnitudes)), float(np.quantile(magnitudes, 0.95))) if len(magnitudes) else None


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b of two lists: 1 where they have the same order, -1 where one is the other backwards; nan of fewer
    than two, or where one of them does not tell any two apart.

    >>> kendall([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.3333333333333333
    """
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    signs = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]
    told = [sum(bool(sign[side]) for sign in signs) for side in (0, 1)]
    return float(sum(a * b for a, b in signs)) / math.sqrt(told[0] * told[1]) if all(told) else math.nan
