"""Distributions of the time that a gradient takes. Each is a function of (seed, step, worker), see `randomness`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.randomness import normal, uniform
from decentral.settings import Settings, setting

_PURPOSE, _MEASURED = "cluster: compute", "cluster: measured"
_WIDEST = 10.0
"""Standard deviation of a logarithm: 10 is a factor of 22,000 either way."""


class Durations(Settings, ABC, where="cluster.compute"):
    """Times of gradients, without what stragglers add."""

    def check(self, num_workers: int) -> None:
        """Raise ConfigError for what does not fit n workers."""

    @abstractmethod
    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Seconds of gradients t = first ... last - 1 of each worker: float64 [last - first, n]."""


def places(first: int, last: int, num_workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps [last - first, 1] and workers [1, n], the address of one number for each of both."""
    return np.arange(first, last)[:, None], np.arange(num_workers)[None, :]


def _duration() -> Any:
    return setting(above=0, at_most=LONGEST_S, hint="a number of seconds")


@dataclass(frozen=True)
class Constant(Durations):
    """Always as long."""

    mean_s: float = _duration()

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """mean_s."""
        return np.full((last - first, num_workers), self.mean_s)


@dataclass(frozen=True)
class Lognormal(Durations):
    """mean exp(sigma z - sigma^2 / 2), z standard normal; its median is mean exp(-sigma^2 / 2)."""

    mean_s: float = _duration()
    sigma: float = setting(above=0, at_most=_WIDEST, hint="a standard deviation of the logarithm such as 0.3")

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        z = normal(seed, _PURPOSE, *places(first, last, num_workers))
        return self.mean_s * np.exp(self.sigma * z - self.sigma**2 / 2)


@dataclass(frozen=True)
class LengthBucketed(Durations):
    """Sentences are put into buckets by their length; a worker draws one bucket in every step, each as likely."""

    buckets: list[float] = setting(above=0, hint="a number of tokens")
    seconds_per_token: float = _duration()

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ConfigError(
                "cluster.compute.buckets=[] is empty: list the tokens in a batch of each bucket, such as [512,1024]."
            )
        longest = self.seconds_per_token * max(self.buckets)
        if longest > LONGEST_S:
            raise ConfigError(
                f"cluster.compute.seconds_per_token times the longest of cluster.compute.buckets is {longest:g}: it "
                f"has to be at most {LONGEST_S:g} seconds."
            )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """seconds_per_token times the tokens of the bucket."""
        drawn = uniform(seed, _PURPOSE, *places(first, last, num_workers)) * len(self.buckets)
        return self.seconds_per_token * np.asarray(self.buckets, dtype=np.float64)[drawn.astype(np.int64)]


@dataclass(frozen=True)
class ShiftedPareto(Durations):
    """min(cap, floor + scale ((1 - u)^(-1/index) - 1)), u uniform in [0, 1).

    With floor 1.7 s, index 1.1, scale 0.015 s and cap 43.5 s: collecting experience in Habitat's environments, 1.7 to
    43.5 s with a median below 2 s (Li et al. 2021, Figure 9).
    """

    floor_s: float = _duration()
    index: float = setting(above=0, hint="an index of the tail such as 1.1")
    scale_s: float = _duration()
    cap_s: float = _duration()

    def __post_init__(self) -> None:
        if self.cap_s < self.floor_s:
            raise ConfigError(
                f"cluster.compute.cap_s={self.cap_s:g} is below cluster.compute.floor_s={self.floor_s:g}: the most is "
                "not less than the least."
            )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        u = uniform(seed, _PURPOSE, *places(first, last, num_workers))
        with np.errstate(over="ignore"):  # a tail beyond all numbers is at the cap
            tail = np.expm1(-np.log1p(-u) / self.index)
        return np.minimum(self.cap_s, self.floor_s + self.scale_s * tail)


@dataclass(frozen=True)
class Rollouts(ShiftedPareto):
    """A gradient takes mean_s; one in rollout_every begins with a rollout, which takes a time with a heavy tail.

    Gradients 0, R, 2 R, ... of a worker, R = rollout_every, take as much longer as `shifted_pareto` draws. A worker has
    scenes for `residence` rollouts, during which that time stays the same: the longer, the less is gained by not
    waiting. (Resets and steps of environments, which differ between scenes, are what makes a rollout long or short.)
    """

    mean_s: float = _duration()
    rollout_every: int = setting(at_least=1)
    residence: int = setting(at_least=1)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        rollouts, place = np.divmod(np.arange(first, last), self.rollout_every)
        scenes = rollouts // self.residence
        times = super().draw(seed, int(scenes[0]), int(scenes[-1]) + 1, num_workers)
        return self.mean_s + np.where(place[:, None] == 0, times[scenes - scenes[0]], 0.0)


@dataclass(frozen=True)
class Measured(Durations):
    """Times that are still to be measured: so many `passes` of the run's own gradients."""

    passes: int = setting(at_least=1)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Nothing is known yet. Raises ConfigError: only where a run trains something there are gradients."""
        raise ConfigError(
            "cluster.compute.distribution=measured is for training in one process, which has gradients to measure: "
            "elsewhere give times, such as distribution=trace with the directory of a run that recorded its operations."
        )


@dataclass(frozen=True)
class Resampled(Durations):
    """One of these times, which have been measured, each as likely, for every worker and step anew."""

    times: np.ndarray

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        drawn = uniform(seed, _MEASURED, *places(first, last, num_workers)) * len(self.times)
        return self.times[drawn.astype(np.int64)]


@dataclass(frozen=True)
class Known(Durations):
    """Gradient t of worker i takes `table[t, i]` seconds; after the last line the table begins again."""

    table: np.ndarray

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above, whatever the seed."""
        return self.table[np.arange(first, last) % len(self.table)]
