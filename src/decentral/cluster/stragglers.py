"""Stragglers (`cluster.stragglers`): slow workers, their steps, and their delays.

Slowness is a number from 0 (normal speed) to 1 (fully slow); all modes but the last have these two values only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from decentral.cluster.settings import LONGEST_S, check_choice, optional
from decentral.errors import ConfigError
from decentral.randomness import normal, uniform

_WHERE = "cluster.stragglers"
_SLOWEST = 1e6
"""Largest slowdown: beyond it, a worker is effectively gone."""
BLOCK = 256
"""Number of steps computed together if each depends on the previous one."""

Following = Callable[[int, int, np.ndarray], np.ndarray]
"""(seed, index of a block, last row of the previous one) -> its rows [BLOCK, n]."""


class Mode(Enum):
    """The kind of stragglers, and the settings it needs."""

    none = ()
    exactly = ("count",)
    independent = ("probability",)
    persistent = ("probability", "residence_steps")
    fixed = ("workers",)
    drifting = ("drift",)


@dataclass
class Stragglers:
    """Stragglers over the steps. Each mode needs its own keys, and one of delay_s and slowdown.

    mode             none; exactly: count workers, drawn again in every step; independent: each worker with probability,
                     in every step; persistent: a worker becomes slow with probability in a step and stays slow for
                     residence_steps on average; fixed: workers; drifting: every worker's slowness is a random walk of
                     step size drift between 0 (as usual) and 1 (delay_s, slowdown in full)
    delay_s          additional seconds of a slow worker's gradient
    slowdown         or: factor by which a slow worker's gradient takes longer
    count            number of slow workers in every step
    probability      probability that a worker is slow, or becomes slow, in a step
    residence_steps  mean number of consecutive slow steps of a worker, geometrically distributed
    workers          numbers of the workers that are always slow
    drift            standard deviation of a step of the walk, for example 0.01
    """

    mode: Mode = Mode.none
    delay_s: float | None = optional(above=0, at_most=LONGEST_S, hint="seconds")
    slowdown: float | None = optional(above=1, at_most=_SLOWEST, hint="such as 10 for ten times as long")
    count: int | None = optional()
    probability: float | None = optional(above=0, below=1)
    residence_steps: float | None = optional(at_least=1)
    workers: list[int] | None = optional()
    drift: float | None = optional(above=0, at_most=1, hint="standard deviation of a step of the walk")

    def open(self, num_workers: int) -> Delays:
        """Return the delays. Raises ConfigError for missing, misplaced or invalid settings for n workers."""
        check_choice(self, _WHERE, "mode", () if self.mode is Mode.none else ("delay_s", "slowdown"))
        if self.count is not None and not 1 <= self.count <= num_workers:
            raise ConfigError(
                f"{_WHERE}.count={self.count} is out of range for num_workers={num_workers}: use a number from 1 to "
                f"{num_workers}, or a cluster without stragglers, such as cluster=even."
            )
        if self.workers is not None and (not self.workers or len(set(self.workers)) < len(self.workers)):
            raise ConfigError(
                f"{_WHERE}.workers={self.workers} is empty or repeats a worker: name each slow worker once, such as "
                "[0]."
            )
        for worker in self.workers or ():
            if not 0 <= worker < num_workers:
                raise ConfigError(
                    f"{_WHERE}.workers={self.workers} names worker {worker}: with num_workers={num_workers}, use 0 to "
                    f"{num_workers - 1}."
                )
        said = f"{_WHERE}.mode={self.mode.name}"
        if self.mode is not Mode.none and self.delay_s is None and self.slowdown is None:
            raise ConfigError(
                f"{said} needs {_WHERE}.delay_s or {_WHERE}.slowdown, and neither is given: set the additional "
                "seconds of a slow worker, or its factor."
            )
        if self.delay_s is not None and self.slowdown is not None:
            raise ConfigError(
                f"{_WHERE}.delay_s={self.delay_s:g} and {_WHERE}.slowdown={self.slowdown:g} conflict: set one of them "
                "to null."
            )
        return Delays(self, num_workers)


class Delays:
    """Delays of gradients: slowness s adds s delay_s, or slowdown^s - 1 times the usual time."""

    def __init__(self, stragglers: Stragglers, num_workers: int, purpose: str = "cluster: stragglers") -> None:
        """Create the delays; `purpose` is part of the address of all draws."""
        self.stragglers, self.num_workers, self.purpose = stragglers, num_workers, purpose
        self._ends: dict[int, list[np.ndarray]] = {}  # by seed: the start, and the last row of each block so far

    def draw(self, seed: int, first: int, usual: np.ndarray) -> np.ndarray:
        """Return the extra seconds of gradients t = first, first + 1, ... beyond `usual`: both [T, n]."""
        given = self.stragglers
        slowness = self.slowness(seed, first, len(usual))
        if given.slowdown is not None:
            return np.asarray(usual * (np.power(given.slowdown, slowness) - 1))
        return np.asarray(slowness * (given.delay_s or 0.0))

    def slowness(self, seed: int, first: int, steps: int) -> np.ndarray:
        """Return each worker's slowness in these steps, a function of (seed, step, worker): float64 [steps, n]."""
        given: Any = self.stragglers
        slow = np.zeros((steps, self.num_workers))
        if given.mode is Mode.exactly:  # the `count` smallest of n uniform numbers: all sets are equally likely
            smallest = np.argpartition(self._uniform(seed, first, steps), given.count - 1, axis=1)[:, : given.count]
            np.put_along_axis(slow, smallest, 1.0, axis=1)
        elif given.mode is Mode.independent:
            slow[:] = self._uniform(seed, first, steps) < given.probability
        elif given.mode is Mode.fixed:
            slow[:, given.workers] = 1.0
        elif given.mode is Mode.persistent:
            slow[:] = self._chain(seed, first, steps, self._persistent)
        elif given.mode is Mode.drifting:
            place = np.mod(self._chain(seed, first, steps, self._walk), 2.0)  # folded, it is reflected at 0 and 1
            slow = np.minimum(place, 2.0 - place)
        return slow

    def _uniform(self, seed: int, first: int, steps: int) -> np.ndarray:
        numbers = np.arange(first, first + steps)[:, None]
        return uniform(seed, self.purpose, numbers, np.arange(self.num_workers)[None, :])

    def _chain(self, seed: int, first: int, steps: int, following: Following) -> np.ndarray:
        """Return a chain whose steps depend on the previous one, in blocks with cached last rows: [steps, n]."""
        ends = self._ends.setdefault(seed, [uniform(seed, f"{self.purpose} at the start", np.arange(self.num_workers))])
        parts = []
        for number in range(-(-(first + steps) // BLOCK)):
            begin = number * BLOCK
            if begin + BLOCK > first or number + 1 == len(ends):
                rows = following(seed, number, ends[number])
                if number + 1 == len(ends):
                    ends.append(rows[-1])
                parts.append(rows[max(first - begin, 0) : first + steps - begin])
        return np.concatenate(parts)

    def _persistent(self, seed: int, number: int, before: np.ndarray) -> np.ndarray:
        """Advance a Markov chain with two states, which starts in its stationary distribution, slow with p / (p + 1/L).

        One uniform number u_t per step decides: a slow worker stays slow for u_t < 1 - 1/L, another one
        becomes so for u_t < p.
        """
        given: Any = self.stragglers
        slow, rows = before, np.empty((BLOCK, self.num_workers), dtype=bool)
        for t, u in enumerate(self._uniform(seed, number * BLOCK, BLOCK)):
            if number == t == 0:
                slow = before < given.probability / (given.probability + 1 / given.residence_steps)
            else:
                slow = u < np.where(slow, 1 - 1 / given.residence_steps, given.probability)
            rows[t] = slow
        return rows

    def _walk(self, seed: int, number: int, before: np.ndarray) -> np.ndarray:
        """Advance a free walk with normal steps, starting uniformly in [0, 1]."""
        steps = np.arange(number * BLOCK, (number + 1) * BLOCK)[:, None]
        walk = np.cumsum(normal(seed, self.purpose, steps, np.arange(self.num_workers)[None, :]), axis=0)
        return np.asarray(before + (self.stragglers.drift or 0.0) * walk)
