"""Who is slower than usual, in which steps, and by how much: `cluster.stragglers`.

Slowness is a number from 0 (as fast as usual) to 1 (slow in full); all modes but the last have these two values only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np

from decentral.cluster import settings
from decentral.cluster.distributions import places
from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.randomness import normal, uniform
from decentral.settings import Settings, setting

_WHERE = "cluster.stragglers"
_EFFECTS = ("delay_s", "slowdown")
_SLOWEST = 1e6
"""More than that is a worker that is gone."""
_PURPOSE = "cluster: stragglers"
_START = "cluster: stragglers at the start"
_BACK = 256
"""Steps that are looked at together on the way back to where a state is known, and those of a walk."""


class Slowness(Settings, ABC, where=_WHERE):
    """Who is slow when: a function of (seed, step, worker), see `randomness`."""

    def check(self, num_workers: int) -> None:
        """Raise ConfigError for what does not fit n workers."""

    @abstractmethod
    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Slowness of each worker in steps t = first ... last - 1: float64 [last - first, n], from 0 to 1."""


@dataclass(frozen=True)
class Nobody(Slowness):
    """All are as fast as usual."""

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """0."""
        return np.zeros((last - first, num_workers))


@dataclass(frozen=True)
class Exactly(Slowness):
    """`count` random workers in every step, every set of so many as likely."""

    count: int

    def check(self, num_workers: int) -> None:
        """From 1 to n."""
        if not 1 <= self.count <= num_workers:
            raise ConfigError(
                f"{_WHERE}.count={self.count} makes no sense for num_workers={num_workers}: use at least 1 and at most "
                f"{num_workers}, or a cluster in which nobody is late, such as cluster=even."
            )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """1 for those with the `count` smallest of n uniform numbers."""
        u = uniform(seed, _PURPOSE, *places(first, last, num_workers))
        slow = np.zeros(u.shape)
        if len(u):
            np.put_along_axis(slow, np.argpartition(u, self.count - 1, axis=1)[:, : self.count], 1.0, axis=1)
        return slow


@dataclass(frozen=True)
class Independent(Slowness):
    """Each worker with a probability, in every step anew."""

    probability: float = setting(above=0, below=1)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """1 where a uniform number is below the probability."""
        u = uniform(seed, _PURPOSE, *places(first, last, num_workers))
        return (u < self.probability).astype(np.float64)


@dataclass(frozen=True)
class Persistent(Slowness):
    """A worker becomes slow with probability p in a step and usual again with 1/L: slow for L steps on average.

    A Markov chain with two states, which starts in its stationary distribution: slow with p / (p + 1/L). One uniform
    number u_t per step decides: with b = P(slow | usual) = p and a = P(slow | slow) = 1 - 1/L, a worker is slow after
    u_t < min(a, b) and usual after u_t >= max(a, b), whatever it was; in between it stays what it is if b <= a, and
    changes if not. The state of step t thus follows from the last step whose number is not in between, and nothing
    has to be carried on from step 0.
    """

    probability: float = setting(above=0, below=1)
    residence_steps: float = setting(at_least=1)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """1 for those that are slow."""
        if first == last:
            return np.zeros((0, num_workers))
        slow = np.empty((last - first, num_workers), dtype=bool)
        slow[0] = self._state(seed, first, num_workers)
        low, high = sorted((self.probability, 1 - 1 / self.residence_steps))
        u = uniform(seed, _PURPOSE, *places(first + 1, last, num_workers))
        changes = self._changes
        for t in range(1, last - first):
            between = slow[t - 1] ^ changes
            slow[t] = (u[t - 1] < low) | ((u[t - 1] < high) & between)
        return slow.astype(np.float64)

    @property
    def _changes(self) -> bool:
        """Whether a number in between changes the state."""
        return self.probability > 1 - 1 / self.residence_steps

    def _state(self, seed: int, t: int, num_workers: int) -> np.ndarray:
        """Who is slow in step t: bool [n]."""
        low, high = sorted((self.probability, 1 - 1 / self.residence_steps))
        slow = np.zeros(num_workers, dtype=bool)
        open_ = np.arange(num_workers)  # those whose state is not known yet
        last = t + 1
        while len(open_) and last > 1:
            first = max(last - _BACK, 1)
            u = uniform(seed, _PURPOSE, np.arange(last - 1, first - 1, -1)[:, None], open_[None, :])
            decided = (u < low) | (u >= high)
            known = decided.any(axis=0)
            row = decided.argmax(axis=0)[known]  # the latest, as they go backwards
            passed = t - (last - 1 - row)
            slow[open_[known]] = (u[row, np.flatnonzero(known)] < low) ^ (self._changes & (passed % 2 == 1))
            open_, last = open_[~known], first
        share = self.probability / (self.probability + 1 / self.residence_steps)
        start = uniform(seed, _START, open_) < share
        slow[open_] = start ^ (self._changes and t % 2 == 1)
        return slow


@dataclass(frozen=True)
class Fixed(Slowness):
    """Always the same workers."""

    workers: list[int]

    def check(self, num_workers: int) -> None:
        """At least one worker, none twice, all of them among n."""
        if not self.workers or len(set(self.workers)) < len(self.workers):
            raise ConfigError(f"{_WHERE}.workers={self.workers} has to name each slow worker once, such as [0].")
        for worker in self.workers:
            if not 0 <= worker < num_workers:
                raise ConfigError(
                    f"{_WHERE}.workers={self.workers} names worker {worker}, but with num_workers={num_workers} they "
                    f"are numbered 0 to {num_workers - 1}."
                )

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """1 for these workers."""
        slow = np.zeros((last - first, num_workers))
        slow[:, self.workers] = 1.0
        return slow


@dataclass(frozen=True)
class Drifting(Slowness):
    """Every worker's slowness is a random walk with normal steps of standard deviation `drift`, reflected at 0 and 1.

    It starts anywhere in [0, 1] with the same probability, which is the walk's stationary distribution, too. With
    `slowdown` this is a walk in the logarithm of the speed.
    """

    drift: float = setting(above=0, at_most=1, hint="the standard deviation of a step of a walk from 0 to 1")

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """The free walk, folded into [0, 1], which is the reflected walk."""
        blocks = range(first // _BACK, -(-last // _BACK))
        walk = [np.empty((0, num_workers))]
        for number in blocks:
            start = number * _BACK
            block = _walk_start(seed, number, num_workers, self.drift) + _walk(seed, number, num_workers, self.drift)
            walk.append(block[max(first - start, 0) : last - start])
        place = np.mod(np.concatenate(walk), 2.0)
        return np.minimum(place, 2.0 - place)


def _walk(seed: int, number: int, num_workers: int, drift: float) -> np.ndarray:
    """How far a free walk is after each step of a block from where it was before: [_BACK, n]."""
    return drift * np.cumsum(normal(seed, _PURPOSE, *places(number * _BACK, (number + 1) * _BACK, num_workers)), axis=0)


def _walk_start(seed: int, number: int, num_workers: int, drift: float) -> np.ndarray:
    """Where it is before a block: [n]."""
    starts = _known_starts(seed, num_workers, drift)
    while len(starts) <= number:
        starts.append(starts[-1] + _walk(seed, len(starts) - 1, num_workers, drift)[-1])
    return starts[number]


@lru_cache(maxsize=4)
def _known_starts(seed: int, num_workers: int, drift: float) -> list[np.ndarray]:
    """Where a walk is before each block, as far as it has been asked for: blocks are added up in order, once."""
    return [uniform(seed, _START, np.arange(num_workers))]


class Mode(Enum):
    """Who straggles when."""

    none = Nobody
    exactly = Exactly
    independent = Independent
    persistent = Persistent
    fixed = Fixed
    drifting = Drifting


@dataclass
class Stragglers:
    """Who is slower than usual, in which steps. A mode needs its own keys, and one of delay_s and slowdown.

    mode             none; exactly: count of them, drawn anew in every step; independent: each worker with
                     probability, in every step anew; persistent: a worker becomes slow with probability in a step and
                     stays slow for residence_steps on average; fixed: workers; drifting: every worker's slowness is a
                     random walk of step size drift between 0 (as usual) and 1 (delay_s, slowdown in full)
    delay_s          how many seconds a slow worker's gradient takes longer
    slowdown         or: how many times as long it takes
    count            how many are slow in every step
    probability      to be slow, or to become it
    residence_steps  mean number of steps in a row in which a worker is slow, which is geometrically distributed
    workers          numbers of those that are always slow
    drift            standard deviation of a step of the walk, for example 0.01
    """

    mode: Mode = Mode.none
    delay_s: float | None = field(default=None, metadata={"older": None})
    slowdown: float | None = field(default=None, metadata={"older": None})
    count: int | None = field(default=None, metadata={"older": None})
    probability: float | None = field(default=None, metadata={"older": None})
    residence_steps: float | None = field(default=None, metadata={"older": None})
    workers: list[int] | None = field(default=None, metadata={"older": None})
    drift: float | None = field(default=None, metadata={"older": None})

    def open(self, num_workers: int) -> Delays:
        """The delays. Raises ConfigError for what is missing, out of place or makes no sense for n workers."""
        straggle = self.mode is not Mode.none
        slowness: Slowness = settings.chosen(self.mode.value, self, _WHERE, "mode", _EFFECTS if straggle else ())
        slowness.check(num_workers)
        if straggle:
            self._check_effect()
        return Delays(slowness, self.delay_s, self.slowdown)

    def _check_effect(self) -> None:
        said = f"{_WHERE}.mode={self.mode.name}"
        if self.delay_s is None and self.slowdown is None:
            raise ConfigError(
                f"{said} needs {_WHERE}.delay_s or {_WHERE}.slowdown, of which none is given: say how many seconds "
                "longer a slow worker takes, or how many times as long."
            )
        if self.delay_s is not None and self.slowdown is not None:
            raise ConfigError(
                f"{_WHERE}.delay_s={self.delay_s:g} and {_WHERE}.slowdown={self.slowdown:g} contradict each other: "
                "give one of them, and set the other one to null."
            )


@dataclass(frozen=True)
class Delays(Settings, where=_WHERE):
    """What slowness s in [0, 1] adds to the usual time of a gradient: s delay_s, or slowdown^s - 1 times that time."""

    slowness: Slowness
    delay_s: float | None = setting(None, above=0, at_most=LONGEST_S, hint="a number of seconds")
    slowdown: float | None = setting(None, above=1, at_most=_SLOWEST, hint="such as 10 for ten times as long")

    def draw(self, seed: int, first: int, last: int, usual: np.ndarray) -> np.ndarray:
        """By how many seconds gradients t = first ... last - 1 take longer than `usual`: both [last - first, n]."""
        slowness = self.slowness.draw(seed, first, last, usual.shape[1])
        if self.slowdown is not None:
            return usual * (np.power(self.slowdown, slowness) - 1)
        return slowness * (self.delay_s or 0.0)
