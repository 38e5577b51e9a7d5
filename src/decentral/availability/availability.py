"""The configuration group `availability=`: who is present when. What that means for a step is `training`'s matter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.randomness import uniform
from decentral.settings import Settings, setting
from decentral.topology.present import Absent, Weights

Present = Callable[[float], np.ndarray]
"""A step, or simulated seconds -> who is there: bool [n]."""


class OnReturn(Enum):
    """Which model a worker goes on with that returns."""

    stale = "stale"
    neighbor = "neighbor"
    average = "average"


class OnLeave(Enum):
    """What becomes of the corrections of a worker that leaves."""

    keep = "keep"
    handover = "handover"
    restart = "restart"


_PATIENCE_S = 1e6


class Schedule:
    """Who is present when: a pure function of the seed and the time, and so equal on all processes."""

    def __init__(
        self,
        present: Present,
        num_workers: int,
        seed: int,
        least: int,
        changes: Callable[[float], np.ndarray] | None = None,
        until: float | None = None,
    ) -> None:
        """present(when) says who would be there; at least `least` are, and from `until` on everyone is.

        changes(until), for a schedule in seconds: when workers come or leave, sorted, all up to then and those of at
        least one more arrival, if there is one.
        """
        self.num_workers, self.in_seconds = num_workers, changes is not None
        self._present, self._seed, self._least, self._changes = present, seed, least, changes
        self._until = math.inf if until is None else until
        self._recorded, self._before = -1.0, np.zeros(num_workers, dtype=bool)
        self._since, self._sessions = dict[int, float](), list[tuple[int, float, str]]()

    def at_step(self, step: int) -> np.ndarray:
        """Who is present in a step: bool [n]."""
        return self._filled(step, step)

    def at(self, second: float) -> np.ndarray:
        """Who is present at a simulated time: bool [n]."""
        return self._filled(second, 0)

    def stays(self, second: float, until: np.ndarray) -> np.ndarray:
        """Who is present at a simulated time and does not leave before its own other one, [n]: bool [n]."""
        found = self.at(second)
        for when in self._moments(second, float(until.max())):
            found &= self.at(when) | (when >= until)
        return found

    def next_arrival(self, second: float) -> float:
        """When, after this time, somebody is present for the first time; inf for never."""
        return next((when for when in self._moments(second, math.inf) if self.at(when).any()), math.inf)

    def next_change(self, second: float) -> float:
        """When, after this time, somebody may come or leave; inf for never."""
        times = self._times(second)
        place = np.searchsorted(times, second, side="right")
        return float(times[place]) if place < len(times) else math.inf

    def complete(self, second: float, lasts: float) -> float:
        """From when on, at this time or later, all are present for so many seconds.

        Raises ConfigError if that is not within 11 days.
        """
        when, since = second, second if self.at(second).all() else math.inf
        while when < second + _PATIENCE_S:
            when = self.next_change(when)
            if when - since >= lasts:
                return since
            since = min(since, when) if self.at(when).all() else math.inf
        raise ConfigError(
            f"availability.wait=true never ends: all {self.num_workers} workers are never present together for "
            f"{lasts:.3g} s within 11 days of simulated time; use rarer failures or shorter repairs."
        )

    def record(self, until: float) -> str:
        """Who is present from when to when, in the first `until` steps or seconds: a file for `availability=trace`.

        Goes on from what was recorded before.
        """
        for when in self._moments(self._recorded, until):
            now = self.at(when) if self.in_seconds else self.at_step(int(when))
            for worker in np.flatnonzero(now != self._before).tolist():
                if now[worker]:
                    self._since[worker] = when
                else:
                    self._sessions.append((worker, self._since.pop(worker), str(when)))
            self._before = now
        self._recorded = max(until, self._recorded)
        unit = "s" if self.in_seconds else "step"
        lines = sorted([*self._sessions, *((worker, begun, "") for worker, begun in self._since.items())])
        return "\n".join([f"worker,from_{unit},to_{unit}", *(f"{i},{begun},{ends}" for i, begun, ends in lines)])

    def _moments(self, after: float, until: float) -> Iterable[float]:
        """Steps from one to before another; or when somebody may come or leave, after one time and up to another (inf:
        up to one more arrival at least)."""
        if self._changes is None:
            return range(max(int(after), 0), int(until))
        times = self._times(until if until < math.inf else after)
        first, last = np.searchsorted(times, [after, until], side="right")
        found: list[float] = np.unique(times[first:last]).tolist()
        return found if after >= 0 or 0.0 in found[:1] else [0.0, *found]

    def _times(self, until: float) -> np.ndarray:
        """When workers come or leave, as `changes` of the constructor; the last time is that when all are there."""
        assert self._changes is not None, "a schedule in steps"
        times = self._changes(until)
        return times if self._until == math.inf else np.append(times[times < self._until], self._until)

    def _filled(self, when: float, step: int) -> np.ndarray:
        """With the smallest draws of the absent, where too few are there."""
        if when >= self._until:
            return np.ones(self.num_workers, dtype=bool)
        present = self._present(when).copy()
        if (missing := self._least - np.count_nonzero(present)) > 0:
            draws = uniform(self._seed, "availability: least", step, np.arange(self.num_workers))
            present[np.argsort(np.where(present, np.inf, draws), kind="stable")[:missing]] = True
        return present


class Availability(Settings, ABC, where="availability"):
    """A choice of `availability=`: a dataclass whose fields are its configuration."""

    @property
    def in_seconds(self) -> bool:
        """Whether a schedule is asked by simulated seconds instead of steps."""
        return False

    @property
    def detection_s(self) -> float | None:
        """How long it takes until others notice that a worker has crashed; None: whoever leaves says so."""
        return None

    def notes(self, num_workers: int) -> list[str]:
        """What a reader of the results has to know, a clause each."""
        return []

    @abstractmethod
    def check(self, num_workers: int) -> None:
        """Raise ConfigError for anything that is missing, contradicts something or does not fit n workers."""

    @abstractmethod
    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """Who is present when, in a run of so many steps (None: it is not known of how many).

        Raises ConfigError for what depends on a number of steps that is not known.
        """


@dataclass
class AlwaysPresent(Availability):
    """Everybody takes part in every step."""

    name: str = "none"

    def check(self, num_workers: int) -> None:
        """Always possible."""

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """Everybody."""
        return Schedule(lambda when: np.ones(num_workers, dtype=bool), num_workers, seed, least=0)


@dataclass(kw_only=True)
class Absences(Availability):
    """Some workers are absent at times: their rows rest, nobody computes, sends or waits for them.

    absent     rerouted: the present workers, in the order of their numbers, form the topology of their number, so that
               they stay connected; induced: they keep the graph's edges among them
    weights    weights of an induced graph. metropolis: from the remaining degrees; keep: unchanged, with the weight of
               an absent neighbor added to the worker's own; auto: the one that suits the topology
    on_return  model of a worker that returns. stale: its own; neighbor: that of its lowest-numbered neighbor; average:
               the mean of its neighbors' models. Only neighbors present in the previous step count
    on_leave   in methods whose corrections sum to zero, what happens to the correction of a worker that leaves. keep:
               it is frozen, and all converge to the optimum of all workers; handover: its neighbors take it over;
               restart: all corrections become zero at each change, which gives the optimum of the present workers
    least      minimum number of present workers: missing ones are drawn
    until      step, or simulated second for absences in seconds, from which on all workers are present
    """

    absent: Absent = Absent.rerouted
    weights: Weights = Weights.auto
    on_return: OnReturn = OnReturn.average
    on_leave: OnLeave = OnLeave.keep
    least: int = setting(1, at_least=1)
    until: float | None = setting(None, above=0, older=None, hint="steps, or simulated seconds")

    def schedule(
        self, present: Present, num_workers: int, seed: int, changes: Callable[[float], np.ndarray] | None = None
    ) -> Schedule:
        """A schedule with `least` and `until`."""
        return Schedule(present, num_workers, seed, self.least, changes, self.until)

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        if self.least > num_workers:
            raise ConfigError(
                f"availability.least={self.least} exceeds num_workers={num_workers}: use at most {num_workers}."
            )
        if self.weights is not Weights.auto and self.absent is Absent.rerouted:
            raise ConfigError(
                f"availability.weights={self.weights.name} needs availability.absent=induced, because with rerouted "
                "the topology sets the weights: leave it out, or add availability.absent=induced."
            )


@dataclass(kw_only=True)
class MayCrash(Absences):
    """Absences that may come without a warning.

    crash     a worker that leaves loses its current step, unless too few workers remain, and those that wait for it
              notice detect_s later; false: it finishes the step
    detect_s  time until a failure is detected, such as the interval between two heartbeats
    wait      in simulated time: all workers stop until every one is back, as in a plain all-reduce job, and repeat a
              step in which one crashed
    """

    crash: bool = False
    wait: bool = False
    detect_s: float = setting(5.0, at_least=0, at_most=LONGEST_S, when="crash", hint="seconds")

    @property
    def detection_s(self) -> float | None:
        """See `Availability.detection_s`."""
        return self.detect_s if self.crash else None

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if self.wait and not self.in_seconds:
            raise ConfigError("availability.wait=true needs absences in simulated seconds: leave it out.")
