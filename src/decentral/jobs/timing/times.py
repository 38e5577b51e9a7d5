"""Several things timed in turn, round after round, so that a slow machine is slow for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Ratio(NamedTuple):
    """One time divided by another, round by round."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Times:
    """Seconds per call of each thing, one number per round."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = dict(seconds)

    def median(self, name: str) -> float:
        """Of the rounds."""
        return statistics.median(self.seconds[name])

    def least(self, name: str) -> float:
        """Of the rounds: what the machine does when nobody disturbs it."""
        return min(self.seconds[name])

    def ratio(self, name: str, to: str) -> Ratio:
        """The one divided by the other within each round: median and extremes."""
        ratios = [a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def in_turn(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Call each of the works `repeats` times, one after the other, in every round; the order turns from round to round.

    `clock` is CPU time of this process unless told otherwise (`time.perf_counter` for wall time). Every work is called
    once before, untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    names = list(works)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            work, began = works[name], clock()
            for _ in range(repeats):
                work()
            seconds[name].append((clock() - began) / repeats)
    return Times(seconds)
