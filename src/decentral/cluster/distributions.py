"""Distributions of the time that a gradient takes. Each is a function of (seed, step, worker), see `randomness`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from decentral.cluster.settings import check_positive, check_seconds
from decentral.errors import ConfigError, check_at_least
from decentral.randomness import normal, uniform

_PURPOSE = "cluster: compute"
_WIDEST = 10.0
"""Standard deviation of a logarithm: 10 is a factor of 22,000 either way."""


class Durations(ABC):
    """Times of gradients, without what stragglers add."""

    @abstractmethod
    def check(self, where: str, num_workers: int) -> None:
        """Raise ConfigError, naming a key in `where`, for what makes no sense for n workers."""

    @abstractmethod
    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Seconds of gradients t = first ... last - 1 of each worker: float64 [last - first, n]."""


def places(first: int, last: int, num_workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps [last - first, 1] and workers [1, n], the address of one number for each of both."""
    return np.arange(first, last)[:, None], np.arange(num_workers)[None, :]


@dataclass(frozen=True)
class Constant(Durations):
    """Always as long."""

    mean_s: float

    def check(self, where: str, num_workers: int) -> None:
        """A duration above 0."""
        check_seconds(f"{where}.mean_s", self.mean_s, zero=False)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """mean_s."""
        return np.full((last - first, num_workers), self.mean_s)


@dataclass(frozen=True)
class Lognormal(Durations):
    """mean exp(sigma z - sigma^2 / 2), z standard normal; its median is mean exp(-sigma^2 / 2)."""

    mean_s: float
    sigma: float

    def check(self, where: str, num_workers: int) -> None:
        """A duration and a standard deviation, both above 0."""
        check_seconds(f"{where}.mean_s", self.mean_s, zero=False)
        check_positive(f"{where}.sigma", self.sigma, "a standard deviation of the logarithm such as 0.3")
        if self.sigma > _WIDEST:
            raise ConfigError(
                f"{where}.sigma={self.sigma:g} makes no sense: times that differ by more than all that is measured; "
                f"use {_WIDEST:g} at most."
            )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        z = normal(seed, _PURPOSE, *places(first, last, num_workers))
        return self.mean_s * np.exp(self.sigma * z - self.sigma**2 / 2)


@dataclass(frozen=True)
class LengthBucketed(Durations):
    """Sentences are put into buckets by their length; a worker draws one bucket in every step, each as likely."""

    buckets: list[float]
    seconds_per_token: float

    def check(self, where: str, num_workers: int) -> None:
        """At least one bucket, and tokens and costs above 0."""
        if not self.buckets:
            raise ConfigError(
                f"{where}.buckets=[] is empty: list the tokens in a batch of each bucket, such as [512,1024]."
            )
        for tokens in self.buckets:
            check_positive(f"{where}.buckets", tokens, "a number of tokens")
        check_seconds(f"{where}.seconds_per_token", self.seconds_per_token, zero=False)
        longest = self.seconds_per_token * max(self.buckets)
        check_seconds(f"{where}.seconds_per_token times the longest of {where}.buckets", longest)

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

    floor_s: float
    index: float
    scale_s: float
    cap_s: float

    def check(self, where: str, num_workers: int) -> None:
        """Positive numbers, and a cap that is not below the floor."""
        check_seconds(f"{where}.floor_s", self.floor_s, zero=False)
        check_positive(f"{where}.index", self.index, "an index of the tail such as 1.1")
        check_seconds(f"{where}.scale_s", self.scale_s, zero=False)
        check_seconds(f"{where}.cap_s", self.cap_s, zero=False)
        if self.cap_s < self.floor_s:
            raise ConfigError(
                f"{where}.cap_s={self.cap_s:g} is below {where}.floor_s={self.floor_s:g}: the most is not less than "
                "the least."
            )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        u = uniform(seed, _PURPOSE, *places(first, last, num_workers))
        with np.errstate(over="ignore"):  # a tail beyond all numbers is at the cap
            tail = np.expm1(-np.log1p(-u) / self.index)
        return np.minimum(self.cap_s, self.floor_s + self.scale_s * tail)


@dataclass(frozen=True)
class Rollouts(Durations):
    """A gradient takes mean_s; one in rollout_every begins with a rollout, which takes a time with a heavy tail.

    Gradients 0, R, 2 R, ... of a worker, R = rollout_every, take as much longer as `shifted_pareto` draws. A worker has
    scenes for `residence` rollouts, during which that time stays the same: the longer, the less is gained by not
    waiting. (Resets and steps of environments, which differ between scenes, are what makes a rollout long or short.)
    """

    mean_s: float
    rollout_every: int
    floor_s: float
    index: float
    scale_s: float
    cap_s: float
    residence: int

    def check(self, where: str, num_workers: int) -> None:
        """Durations, and whole numbers from 1 on."""
        check_seconds(f"{where}.mean_s", self.mean_s, zero=False)
        check_at_least(f"{where}.rollout_every", self.rollout_every)
        check_at_least(f"{where}.residence", self.residence)
        self._tail.check(where, num_workers)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """As above."""
        rollouts, place = np.divmod(np.arange(first, last), self.rollout_every)
        scenes = rollouts // self.residence
        times = self._tail.draw(seed, int(scenes[0]), int(scenes[-1]) + 1, num_workers)
        return self.mean_s + np.where(place[:, None] == 0, times[scenes - scenes[0]], 0.0)

    @property
    def _tail(self) -> ShiftedPareto:
        return ShiftedPareto(self.floor_s, self.index, self.scale_s, self.cap_s)
