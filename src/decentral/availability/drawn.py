"""Random absences per step: independent per worker, a fixed number, or by time of day."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from decentral.availability.availability import Absences, Present, Schedule
from decentral.cluster.settings import LONGEST_S
from decentral.cluster.stragglers import BLOCK, Delays, Mode, Stragglers
from decentral.errors import ConfigError
from decentral.randomness import numpy_generator, uniform
from decentral.settings import setting

_PER_PERIOD = 1440
"""Number of changes per period in seconds: one per minute of a day."""


def _by_blocks(rows: Callable[[int, int], np.ndarray]) -> Present:
    """Return the present workers of a step, from rows(first, steps), bool [steps, n], computed in blocks."""
    block = lru_cache(maxsize=2)(lambda number: rows(number * BLOCK, BLOCK))
    return lambda step: block(int(step) // BLOCK)[int(step) % BLOCK]


class _AsStragglers(Absences):
    """Absences distributed as the slow workers of the `cluster.stragglers` mode of this name, with other draws."""

    name: str

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        mode = Mode[self.name]
        own: dict[str, Any] = {key: getattr(self, key) for key in mode.value}
        away = Delays(Stragglers(mode=mode, **own), num_workers, "availability")
        rows = _by_blocks(lambda first, steps: away.slowness(seed, first, steps) == 0)
        return self.schedule(rows, num_workers, seed)


@dataclass(kw_only=True)
class _ByProbability(_AsStragglers):
    """Absences with a probability, or with the share of the time that a worker is absent.

    share  share of the time that a worker is absent, instead of `probability`
    """

    probability: float = 0.0
    share: float | None = setting(None, above=0, below=1, older=None)

    def needed(self, share: float) -> float:
        """Return the probability with which a worker is absent for this share of the time."""
        return share

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if self.share is None:
            return
        if self.probability != type(self)().probability:
            raise ConfigError(
                f"availability.share={self.share:g} and availability.probability={self.probability:g} exclude each "
                "other: use one."
            )
        if self.needed(self.share) >= 1:
            raise ConfigError(
                f"availability.share={self.share:g} is out of reach with such short absences: use a larger "
                "availability.residence_steps."
            )

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        if self.share is None:
            return super().open(num_workers, seed, total_steps)
        chosen = replace(self, probability=self.needed(self.share), share=None)
        return chosen.open(num_workers, seed, total_steps)


@dataclass
class Exactly(_AsStragglers):
    """A fixed number of random workers is absent in each step, drawn anew: client sampling.

    count  number of absent workers
    """

    name: str = "exactly"
    count: int = setting(1, at_least=1)

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if self.count > num_workers - self.least:
            raise ConfigError(
                f"availability.count={self.count} leaves fewer than availability.least={self.least} of "
                f"num_workers={num_workers} workers: use at most {num_workers - self.least}."
            )


@dataclass
class Independent(_ByProbability):
    """Each worker is independently absent in each step with a fixed probability.

    probability  probability that a worker is absent in a step
    """

    name: str = "independent"
    probability: float = setting(0.25, above=0, below=1)


@dataclass
class Persistent(_ByProbability):
    """Workers leave and return: a two-state Markov chain per worker, stationary from the start.

    A worker is absent probability / (probability + 1 / residence_steps) of the time: a quarter with the defaults.

    probability      probability that a present worker leaves in a step; sessions last 1 / probability steps on average
    residence_steps  mean number of steps of an absence, geometrically distributed
    """

    name: str = "persistent"
    probability: float = setting(0.02, above=0, below=1)
    residence_steps: float = setting(17.0, at_least=1)

    def needed(self, share: float) -> float:
        """Return the solution of share = p / (p + 1 / residence_steps)."""
        return share / (1 - share) / self.residence_steps


@dataclass
class Diurnal(Absences):
    """Day and night: a sine sets the number of present workers, those with the highest own sine.

        k(t) = n (lowest + (highest - lowest) (1 + sin(2 pi t / T)) / 2)  with the largest sin(2 pi t / T + phi_i) + b_i

    phi_i is uniform and b_i is Beta(2, 5) - 2/7: each worker has its own time zone and propensity.

    lowest        share of workers present at night
    highest       share of workers present in the daytime
    period_steps  T, in steps
    period_s      T in simulated seconds, instead; the present workers change 1440 times per period
    """

    name: str = "diurnal"
    lowest: float = setting(0.1, at_least=0, at_most=1)
    highest: float = setting(0.8, above=0, at_most=1)
    period_steps: float = setting(200.0, above=1)
    period_s: float | None = setting(None, above=0, at_most=LONGEST_S, hint="seconds")

    @property
    def in_seconds(self) -> bool:
        """Return whether the period is in seconds."""
        return self.period_s is not None

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if self.lowest > self.highest:
            raise ConfigError(
                f"availability.lowest={self.lowest:g} exceeds availability.highest={self.highest:g}: swap them."
            )

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        phase = 2 * math.pi * uniform(seed, "availability: phase", np.arange(num_workers))
        eager = [numpy_generator(seed, "availability: eager", i).beta(2, 5) - 2 / 7 for i in range(num_workers)]
        period = self.period_steps if self.period_s is None else _PER_PERIOD

        def rows(first: int, steps: int) -> np.ndarray:
            """Return the present workers of these steps, or parts of a period: bool [steps, n]."""
            angle = 2 * math.pi * np.arange(first, first + steps)[:, None] / period
            share = self.lowest + (self.highest - self.lowest) * (1 + np.sin(angle)) / 2
            rank = np.argsort(np.argsort(-np.sin(angle + phase) - eager, axis=1, kind="stable"), axis=1, kind="stable")
            return np.asarray(rank < np.rint(num_workers * share))

        present = _by_blocks(rows)
        if self.period_s is None:
            return self.schedule(present, num_workers, seed)
        tick = self.period_s / _PER_PERIOD

        def at(second: float) -> np.ndarray:
            """Return the present workers of the last tick up to this time, corrected for rounding."""
            number = int(second / tick)
            return present(number + int((number + 1) * tick <= second) - int(number * tick > second))

        return self.schedule(at, num_workers, seed, lambda until: np.arange(int(until / tick) + _PER_PERIOD) * tick)
