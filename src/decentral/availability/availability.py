"""The configuration group `availability=`: schedules of present workers. `training` applies them to steps."""

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
"""A step, or simulated seconds -> the present workers: bool [n]."""


class OnReturn(Enum):
    """The model that a returning worker continues with."""

    stale = "stale"
    neighbor = "neighbor"
    average = "average"


class OnLeave(Enum):
    """The treatment of a leaving worker's corrections."""

    keep = "keep"
    handover = "handover"
    restart = "restart"


_PATIENCE_S = 1e6


class Schedule:
    """The present workers over time: a pure function of the seed and the time, equal on all processes."""

    def __init__(
        self,
        present: Present,
        num_workers: int,
        seed: int,
        least: int,
        changes: Callable[[float], np.ndarray] | None = None,
        until: float | None = None,
    ) -> None:
        """Create a schedule from present(when), with at least `least` workers present, and all of them from `until` on.

        changes(until), for a schedule in seconds: the sorted times of arrivals and departures up to `until`, and of at
        least one more arrival, if there is one.
        """
        self.num_workers, self.in_seconds = num_workers, changes is not None
        self._present, self._seed, self._least, self._changes = present, seed, least, changes
        self._until = math.inf if until is None else until
        self._recorded, self._before = -1.0, np.zeros(num_workers, dtype=bool)
        self._since, self._sessions = dict[int, float](), list[tuple[int, float, str]]()

    def at_step(self, step: int) -> np.ndarray:
        """Return the present workers of a step: bool [n]."""
        return self._filled(step, step)

    def at(self, second: float) -> np.ndarray:
        """Return the present workers at a simulated time: bool [n]."""
        return self._filled(second, 0)

    def stays(self, second: float, until: np.ndarray) -> np.ndarray:
        """Return the workers present at a simulated time that stay until their own time `until` [n]: bool [n]."""
        found = self.at(second)
        for when in self._moments(second, float(until.max())):
            found &= self.at(when) | (when >= until)
        return found

    def next_arrival(self, second: float) -> float:
        """Return the first time after this one with a present worker; inf for never."""
        return next((when for when in self._moments(second, math.inf) if self.at(when).any()), math.inf)

    def next_change(self, second: float) -> float:
        """Return the next time after this one when a worker may arrive or leave; inf for never."""
        times = self._times(second)
        place = np.searchsorted(times, second, side="right")
        return float(times[place]) if place < len(times) else math.inf

    def complete(self, second: float, lasts: float) -> float:
        """Return the first time, now or later, from which all workers are present for `lasts` seconds.

        Raises ConfigError if there is none within 11 days.
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
        """Return the presence intervals in the first `until` steps or seconds, as a file for `availability=trace`.

        Continues from the previous call.
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
        """Return the steps in [after, until); or the times of possible arrivals and departures in (after, until] (inf:
        up to at least one more arrival)."""
        if self._changes is None:
            return range(max(int(after), 0), int(until))
        times = self._times(until if until < math.inf else after)
        first, last = np.searchsorted(times, [after, until], side="right")
        moments: list[float] = np.unique(times[first:last]).tolist()
        return moments if after >= 0 or 0.0 in moments[:1] else [0.0, *moments]

    def _times(self, until: float) -> np.ndarray:
        """Return `changes(until)`, cut off at the time from which all workers are present."""
        assert self._changes is not None, "a schedule in steps"
        times = self._changes(until)
        return times if self._until == math.inf else np.append(times[times < self._until], self._until)

    def _filled(self, when: float, step: int) -> np.ndarray:
        """Return the present workers, with the absent workers of the smallest draws added if there are too few."""
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
        """Return whether the schedule is in simulated seconds instead of steps."""
        return False

    @property
    def detection_s(self) -> float | None:
        """Return the seconds until others detect a crashed worker; None: departures are announced."""
        return None

    def notes(self, num_workers: int) -> list[str]:
        """Return notes for readers of the results, a clause each."""
        return []

    @abstractmethod
    def check(self, num_workers: int) -> None:
        """Raise ConfigError for missing or contradictory settings, or settings that do not fit n workers."""

    @abstractmethod
    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """Return the schedule of a run of `total_steps` steps (None: unknown).

        Raises ConfigError if it depends on an unknown number of steps.
        """


@dataclass
class AlwaysPresent(Availability):
    """All workers are present in every step."""

    name: str = "none"

    def check(self, num_workers: int) -> None:
        """Accept any number of workers."""

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """Return a schedule with all workers."""
        return Schedule(lambda when: np.ones(num_workers, dtype=bool), num_workers, seed, least=0)


@dataclass(kw_only=True)
class Absences(Availability):
    """Temporary absences: rows of absent workers are frozen; they do not compute or send, and no worker waits for them.

    absent     rerouted: the present workers, in the order of their numbers, form the topology of their number, so that
               they stay connected; induced: they keep the graph's edges among them
    weights    weights of an induced graph. metropolis: from the remaining degrees; keep: unchanged, with the weight of
               an absent neighbor added to the worker's own; auto: the one that suits the topology
    on_return  model of a worker that returns. stale: its own; neighbor: that of its lowest-numbered neighbor; average:
               the mean of its neighbors' models. Only neighbors present in the previous step count
    on_leave   treatment of a leaving worker's correction, in methods whose corrections sum to zero. keep:
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
        """Return a schedule with `least` and `until`."""
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
    """Absences that may come without warning.

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
