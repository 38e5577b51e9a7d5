"""Independent arrivals and departures in simulated seconds: sessions and absences, or failures and repairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from decentral.availability.availability import Absences, MayCrash, Schedule
from decentral.availability.given import Changes
from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.randomness import normal, numpy_generator, uniform
from decentral.settings import setting

_PURPOSE = "availability: sessions"


class Distribution(Enum):
    """Distribution of session and absence lengths; its value is the key of the parameter besides the mean."""

    exponential = ""
    lognormal = "sigma"
    weibull = "shape"


def _renewals(
    num_workers: int, seed: int, present_s: float, away_s: float, kind: Distribution, more: float = 1.0
) -> Changes:
    """Return alternating sessions and absences with these means, stationary from the start."""
    workers = np.arange(num_workers)
    begins_there = uniform(seed, f"{_PURPOSE} at the start", workers) < present_s / (present_s + away_s)

    def make(size: int) -> tuple[np.ndarray, np.ndarray, float]:
        number = np.arange(size)[:, None]
        there = begins_there ^ (number % 2 == 1)
        lasts = np.where(there, present_s, away_s) * _of_mean_1(kind, more, seed, number, workers)
        lasts[0] = np.where(there[0], present_s, away_s) * _left_of_mean_1(kind, more, seed, workers)
        ends = np.cumsum(lasts, axis=0)
        known_until = float(ends[-1].min())
        kept = ends <= known_until
        at_first = workers[begins_there]
        times = np.concatenate([np.zeros(len(at_first)), ends[kept]])
        return times, np.concatenate([at_first, np.broadcast_to(workers, ends.shape)[kept]]), known_until

    return Changes(num_workers, make)


def _of_mean_1(kind: Distribution, more: float, seed: int, number: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Return lengths of sessions or absences with mean 1, [K, n]."""
    if kind is Distribution.lognormal:
        return np.exp(more * normal(seed, _PURPOSE, number, workers) - more**2 / 2)
    lasts = -np.log1p(-uniform(seed, _PURPOSE, number, workers))
    return lasts if kind is Distribution.exponential else lasts ** (1 / more) / math.gamma(1 + 1 / more)


def _left_of_mean_1(kind: Distribution, more: float, seed: int, workers: np.ndarray) -> np.ndarray:
    """Return the remaining length of each worker's first stretch, [n]: a uniform part of a length-biased stretch."""
    if kind is Distribution.exponential:
        return _of_mean_1(kind, more, seed, np.zeros(1, dtype=np.int64), workers)
    part = uniform(seed, f"{_PURPOSE}, what is left", workers)
    if kind is Distribution.lognormal:
        return part * np.exp(more * normal(seed, _PURPOSE, 0, workers) + more**2 / 2)
    gammas = [numpy_generator(seed, _PURPOSE, i).gamma(1 + 1 / more) for i in workers.tolist()]
    return np.asarray(part * np.power(gammas, 1 / more) / math.gamma(1 + 1 / more))


@dataclass
class Sessions(Absences):
    """Independent sessions of each worker, in simulated seconds: a renewal process, stationary from the start.

    present_s     mean length of a session
    away_s        mean length of an absence
    distribution  distribution of both: exponential (memoryless); lognormal (sigma); weibull (shape)
    sigma         standard deviation of the logarithm (null: 1)
    shape         Weibull shape; below 1, long sessions tend to continue (null: 0.5)
    """

    name: str = "sessions"
    present_s: float = setting(60.0, above=0, at_most=LONGEST_S, hint="seconds")
    away_s: float = setting(20.0, above=0, at_most=LONGEST_S, hint="seconds")
    distribution: Distribution = Distribution.exponential
    sigma: float | None = setting(None, above=0, at_most=5)
    shape: float | None = setting(None, at_least=0.2, at_most=100)

    @property
    def in_seconds(self) -> bool:
        """Return True: sessions are in seconds."""
        return True

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        for kind in Distribution:
            if kind.value and kind is not self.distribution and getattr(self, kind.value) is not None:
                raise ConfigError(
                    f"availability.{kind.value}={getattr(self, kind.value):g} needs "
                    f"availability.distribution={kind.name}, not {self.distribution.name}: leave it out."
                )

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        more = {Distribution.lognormal: self.sigma or 1.0, Distribution.weibull: self.shape or 0.5}
        changes = _renewals(
            num_workers, seed, self.present_s, self.away_s, self.distribution, more.get(self.distribution, 1.0)
        )
        return self.schedule(changes.present, num_workers, seed, changes.times)


@dataclass
class Failures(MayCrash):
    """Independent failures and repairs of each worker, in simulated seconds, with exponentially distributed times.

    Llama 3's 419 unexpected interruptions of 16,384 GPUs in 54 days are 2e-5 per hour and GPU.

    per_worker_hour  failures per worker and hour of work
    repair_s         mean time to repair
    """

    name: str = "failures"
    per_worker_hour: float = setting(1.0, above=0, at_most=1e6)
    repair_s: float = setting(60.0, above=0, at_most=LONGEST_S, hint="seconds")
    crash: bool = True

    @property
    def in_seconds(self) -> bool:
        """Return True: failures are in seconds."""
        return True

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        changes = _renewals(num_workers, seed, 3600 / self.per_worker_hour, self.repair_s, Distribution.exponential)
        return self.schedule(changes.present, num_workers, seed, changes.times)
