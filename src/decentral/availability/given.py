"""Fixed absences from the configuration or a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decentral.availability.availability import Absences, MayCrash, Schedule
from decentral.cluster.settings import read_lines
from decentral.errors import ConfigError
from decentral.settings import setting

_HEADS = {"s": ["worker", "from_s", "to_s"], "step": ["worker", "from_step", "to_step"]}


class Interval(NamedTuple):
    """A half-open interval [begins, ends)."""

    said: str
    """Its name in messages."""
    worker: int
    begins: float
    ends: float


class Changes:
    """The present workers, from alternating arrival and departure times; initially all are absent."""

    def __init__(self, num_workers: int, make: Callable[[int], tuple[np.ndarray, np.ndarray, float]]) -> None:
        """Create the changes; make(size) returns times and workers [K] of changes, complete up to a returned time,
        which grows with size."""
        self._n, self._make, self._size = num_workers, make, 4
        self._times, self._workers, self._known_until = np.empty(0), np.empty(0, dtype=np.int64), -math.inf
        self._place, self._counts = 0, np.zeros(num_workers, dtype=np.int64)  # up to the last queried time

    def present(self, when: float) -> np.ndarray:
        """Return the present workers: bool [n]. Fast for increasing times."""
        place = int(np.searchsorted(self.times(when), when, side="right"))
        if place < self._place:
            self._place, self._counts = 0, np.zeros_like(self._counts)
        self._counts = self._counts + np.bincount(self._workers[self._place : place], minlength=self._n)
        self._place = place
        return self._counts % 2 == 1

    def times(self, until: float) -> np.ndarray:
        """Return the sorted times of all changes up to then, and more."""
        while self._known_until <= until:
            self._size *= 2
            times, workers, self._known_until = self._make(self._size)
            order = np.argsort(times, kind="stable")
            self._times, self._workers = times[order], workers[order]
        return self._times


def _changes(num_workers: int, intervals: Sequence[Interval], cycle: float | None = None) -> Changes:
    """Return the changes at the beginning and end of each interval."""
    times = np.array([end for one in intervals for end in (one.begins, min(one.ends, cycle or math.inf))])
    workers = np.repeat([one.worker for one in intervals], 2)

    def make(size: int) -> tuple[np.ndarray, np.ndarray, float]:
        if cycle is None:
            return times[times < math.inf], workers[times < math.inf], math.inf
        repeated = (np.arange(size)[:, None] * cycle + times).ravel()
        return repeated, np.tile(workers, size), (size - 1) * cycle  # one more, see `Schedule`

    return Changes(num_workers, make)


def _check_intervals(intervals: Sequence[Interval]) -> None:
    """Raise ConfigError for an interval that is empty or overlaps another one of its worker."""
    last: dict[int, Interval] = {}
    for one in sorted(intervals, key=lambda one: (one.begins, one.ends)):
        if one.begins >= one.ends:
            raise ConfigError(f"{one.said} is empty, from {one.begins:g} to {one.ends:g}: leave it out.")
        before = last.get(one.worker)
        if before is not None and one.begins < before.ends:
            raise ConfigError(
                f"{one.said} overlaps {before.said}, both of worker {one.worker}: end one before the other begins."
            )
        last[one.worker] = one


@dataclass
class Fixed(Absences):
    """Fixed absences: a list of intervals, or a part of the run for a share of the workers.

    absences       such as [[3,100,200],[5,50,null]]: worker 3 is absent from step 100 and back in step 200; worker 5 is
                   absent from step 50 permanently
    share          share of workers, those with the highest numbers, that are absent from from_fraction to to_fraction
                   of the steps
    from_fraction  fraction of the steps after which that share leaves
    to_fraction    fraction of the steps after which it is back; 1: never
    """

    name: str = "fixed"
    absences: list[Any] = setting([])
    share: float | None = setting(None, above=0, below=1)
    from_fraction: float = setting(0.0, at_least=0, below=1)
    to_fraction: float = setting(1.0, above=0, at_most=1)

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if bool(self.absences) == (self.share is not None):
            raise ConfigError(
                "availability=fixed needs either availability.absences, such as [[3,100,200]] for worker 3 in steps "
                "100 to 199, or availability.share, such as 0.25, with from_fraction and to_fraction."
            )
        if self.from_fraction >= self.to_fraction:
            raise ConfigError(
                f"availability.from_fraction={self.from_fraction:g} is not below "
                f"availability.to_fraction={self.to_fraction:g}: use a smaller fraction of the steps."
            )
        given = self._given(num_workers, 1000)
        _check_intervals(given)
        changes = self._present(num_workers, given)
        for step in changes.times(0).tolist():
            if (there := int(changes.present(step).sum())) < self.least:
                raise ConfigError(
                    f"availability=fixed leaves {there} of {num_workers} workers, fewer than "
                    f"availability.least={self.least}: use fewer simultaneous absences."
                )

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        if self.share is not None and total_steps is None:
            raise ConfigError(
                "availability.share needs the total number of steps, which is unknown here: use availability.absences."
            )
        absences = self._given(num_workers, total_steps or 0)
        late = next((one for one in absences if one.said and one.begins >= (total_steps or math.inf)), None)
        if late is not None:
            raise ConfigError(
                f"{late.said} begins after the last of {total_steps} steps: use more steps, or an earlier absence."
            )
        return self.schedule(self._present(num_workers, absences).present, num_workers, seed)

    def _present(self, num_workers: int, absences: Sequence[Interval]) -> Changes:
        """Return all workers from step 0 on, except in these intervals."""
        always = [Interval("", worker, 0, math.inf) for worker in range(num_workers)]
        return _changes(num_workers, [*always, *absences])

    def _given(self, num_workers: int, total_steps: int) -> list[Interval]:
        if self.share is not None:
            begins, ends = (round(part * total_steps) for part in (self.from_fraction, self.to_fraction))
            leaving = range(num_workers - max(round(self.share * num_workers), 1), num_workers)
            return [Interval("", i, begins, ends if self.to_fraction < 1 else math.inf) for i in leaving]
        found = []
        for number, one in enumerate(self.absences):
            said = f"availability.absences[{number}]={one}"
            fits = isinstance(one, list) and len(one) == 3 and all(type(part) is int for part in one[:2])
            if not fits or not (one[2] is None or type(one[2]) is int) or one[1] < 0:
                raise ConfigError(
                    f"{said} has the wrong form: use [worker,from_step,to_step], such as [3,100,200], or [3,100,null] "
                    "for a permanent absence."
                )
            if not 0 <= one[0] < num_workers:
                raise ConfigError(
                    f"{said} names worker {one[0]}: with num_workers={num_workers}, use 0 to {num_workers - 1}."
                )
            found.append(Interval(said, one[0], one[1], math.inf if one[2] is None else one[2]))
        return found


@dataclass
class Trace(MayCrash):
    """Availability from a CSV file. Each run writes such a file, availability.csv, of its actual schedule.

    path   CSV file with the header worker,from_s,to_s (simulated seconds; needs a cluster) or worker,from_step,to_step,
           and one line per interval in which a worker is present: half-open, from <= t < to; an empty `to` means until
           the end. A worker without a line is never present
    cycle  period, in seconds or steps, after which the file repeats
    least  minimum number of present workers: missing ones are drawn. With 0, all may be away, and nothing happens then
    """

    name: str = "trace"
    path: str = setting("", content=True)
    cycle: float | None = setting(None, above=0)
    least: int = setting(0, at_least=0)

    @property
    def in_seconds(self) -> bool:
        """Return whether the file is in seconds."""
        return self._read()[0] == "s"

    def check(self, num_workers: int) -> None:
        """See `Availability.check`."""
        super().check(num_workers)
        if not self.path:
            raise ConfigError("availability=trace needs availability.path, a CSV file: see --help availability=trace.")
        unit, intervals = self._read(num_workers)
        if self.crash and unit == "step":
            raise ConfigError(
                f"availability.crash=true needs a file in seconds, and availability.path={self.path} is in steps: "
                "leave it out."
            )
        if not intervals:
            raise ConfigError(
                f"availability.path={self.path} has no lines after the header, so no worker is ever present: add lines."
            )
        _check_intervals(intervals)
        for one in intervals:
            if self.cycle is not None and max(one.begins, one.ends if one.ends < math.inf else 0) > self.cycle:
                raise ConfigError(
                    f"{one.said} ends after availability.cycle={self.cycle:g}, where the file repeats: use a longer "
                    "cycle, or end the file there."
                )

    def open(self, num_workers: int, seed: int, total_steps: int | None) -> Schedule:
        """See `Availability.open`."""
        unit, intervals = self._read(num_workers)
        changes = _changes(num_workers, intervals, self.cycle)
        return self.schedule(changes.present, num_workers, seed, changes.times if unit == "s" else None)

    def notes(self, num_workers: int) -> list[str]:
        """Return a note on workers that the file does not name."""
        unnamed = sorted({*range(num_workers)} - {one.worker for one in self._read(num_workers)[1]})
        numbers = ", ".join(map(str, unnamed[:8])) + (", ..." if len(unnamed) > 8 else "")
        note = f"availability.path lists no session of {len(unnamed)} of {num_workers} workers ({numbers})"
        return [note] if unnamed else []

    def _read(self, num_workers: float = math.inf) -> tuple[str, list[Interval]]:
        """Return the unit, and the intervals of `num_workers` workers. Raises ConfigError for an invalid file."""
        lines = read_lines("availability.path", self.path)
        unit = next((unit for unit, head in _HEADS.items() if lines and lines[0].cells == head), "")
        if not unit:
            found = ",".join(lines[0].cells) if lines else "nothing"
            raise ConfigError(
                f"line 1 of availability.path={self.path} is {found}: use worker,from_s,to_s or "
                "worker,from_step,to_step."
            )
        intervals = []
        for line in lines[1:]:
            line.check_columns(_HEADS[unit])
            number = line.seconds if unit == "s" else lambda place, line=line: line.integer(place, "step")
            ends = number(2) if line.cells[2] else math.inf
            intervals.append(Interval(line.said, line.integer(0, "worker", num_workers), number(1), ends))
        return unit, intervals
