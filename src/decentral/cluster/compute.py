"""How long a gradient takes: `cluster.compute`, and the times of every gradient of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np

from decentral.cluster import settings
from decentral.cluster.distributions import (
    Constant,
    Durations,
    LengthBucketed,
    Lognormal,
    Measured,
    Resampled,
    Rollouts,
    ShiftedPareto,
)
from decentral.cluster.stragglers import Delays
from decentral.cluster.trace_file import Trace

_WHERE = "cluster.compute"
_BLOCK = 128
"""Steps that are drawn together."""
_BLOCKS_KEPT = 4


class Distribution(Enum):
    """Where the times of gradients come from."""

    constant = Constant
    lognormal = Lognormal
    length_bucketed = LengthBucketed
    shifted_pareto = ShiftedPareto
    rollouts = Rollouts
    trace = Trace
    measured = Measured


@dataclass
class ComputeTimes:
    """How long a gradient takes, of each worker and step anew. Seconds; what a distribution needs has to be given.

    distribution       constant: mean_s; lognormal: mean_s, sigma; length_bucketed: buckets, seconds_per_token;
                       shifted_pareto: floor_s, index, scale_s, cap_s; rollouts: those, mean_s, rollout_every and
                       residence; trace: trace; measured: passes
    mean_s             the mean
    sigma              standard deviation of the logarithm
    buckets            tokens in a batch of each bucket; every worker draws one of them in every step
    seconds_per_token  of a batch in a bucket
    floor_s            the least: min(cap, floor + scale ((1 - u)^(-1/index) - 1)) for u uniform in [0, 1)
    index              of the tail: the smaller, the heavier
    scale_s            of what is above the floor
    cap_s              the most
    rollout_every      of so many gradients of a worker the first one begins with a rollout, which takes as much longer
    residence          rollouts that take equally long, one after the other, before another time is drawn
    trace              path of a CSV file: lines step,worker,seconds below these words, or a line for each step with a
                       column for each worker; or the directory of a finished run of n workers in n processes (or
                       one, where networks are trained) with record_operations=true; it begins again when a run is
                       longer
    passes             how many gradients of the run itself are timed on this machine before it begins; every gradient
                       then takes one of these times
    """

    distribution: Distribution = Distribution.constant
    mean_s: float | None = field(default=None, metadata={"older": None})
    sigma: float | None = field(default=None, metadata={"older": None})
    buckets: list[float] | None = field(default=None, metadata={"older": None})
    seconds_per_token: float | None = field(default=None, metadata={"older": None})
    floor_s: float | None = field(default=None, metadata={"older": None})
    index: float | None = field(default=None, metadata={"older": None})
    scale_s: float | None = field(default=None, metadata={"older": None})
    cap_s: float | None = field(default=None, metadata={"older": None})
    rollout_every: int | None = field(default=None, metadata={"older": None})
    residence: int | None = field(default=None, metadata={"older": None})
    trace: str | None = field(default=None, metadata={"older": None, "content": True})
    passes: int | None = field(default=None, metadata={"older": None})

    def open(self, num_workers: int) -> Durations:
        """The distribution. Raises ConfigError for what is missing, out of place or makes no sense for n workers."""
        durations: Durations = settings.chosen(self.distribution.value, self, _WHERE, "distribution")
        durations.check(num_workers)
        return durations


class GradientTimes:
    """The time of gradient t of worker i, a pure function of (seed, t, i): the same whatever else is asked for."""

    def __init__(self, durations: Durations, delays: Delays, num_workers: int, seed: int, start: int = 0) -> None:
        """`start`: of which gradient the time is the first one."""
        self.num_workers = num_workers
        self._durations, self._delays, self._seed, self._start = durations, delays, seed, start
        self.passes = durations.passes if isinstance(durations, Measured) else 0
        """How many gradients have to be measured before any time is known."""
        self._block = lru_cache(_BLOCKS_KEPT)(self._draw)

    def seconds(self, first: int, last: int) -> np.ndarray:
        """How long gradients t = first ... last - 1 take, delays of stragglers included: float64 [last - first, n]."""
        return self._steps(first, last, lambda number: self._block(number)[0])

    def delays(self, first: int, last: int) -> np.ndarray:
        """What of it is because the worker straggles, in seconds: float64 [last - first, n], >= 0."""
        return self._steps(first, last, lambda number: self._block(number)[1])

    def after(self, number: int) -> GradientTimes:
        """Those of the gradients from this one on, which are numbered from 0 again."""
        return GradientTimes(self._durations, self._delays, self.num_workers, self._seed, self._start + number)

    def measured(self, seconds: np.ndarray) -> GradientTimes:
        """The same, where gradients have been measured that took so long, float64 [passes]."""
        assert isinstance(self._durations, Measured)
        return GradientTimes(Resampled(seconds), self._delays, self.num_workers, self._seed)

    def _steps(self, first: int, last: int, block: Callable[[int], np.ndarray]) -> np.ndarray:
        if not 0 <= first <= last:
            raise ValueError(f"steps {first} to {last} are none: 0 <= first <= last.")
        first, last = first + self._start, last + self._start
        parts = [np.empty((0, self.num_workers))]
        for number in range(first // _BLOCK, -(-last // _BLOCK)):
            start = number * _BLOCK
            parts.append(block(number)[max(first - start, 0) : last - start])
        return np.concatenate(parts)

    def _draw(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and delays of the steps of a block."""
        first, last = number * _BLOCK, (number + 1) * _BLOCK
        usual = self._durations.draw(self._seed, first, last, self.num_workers)
        delays = self._delays.draw(self._seed, first, last, usual)
        return usual + delays, delays
