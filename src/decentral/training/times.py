"""Where the time of a run goes, as its leader sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

_STORED = ("waiting", "data", "passes", "evaluation", "checkpoints")


@dataclass
class Times:
    """Seconds in all attempts so far.

    steps         in the steps, with what they wait for: `wall_s` of a run
    waiting       of these, until messages of other processes were there, or asleep as a straggler; where the workers of
                  a process have threads, their mean
    data          of these, until batches were there
    passes        of these, in forward and backward passes; on a GPU, where work is queued, until they were asked for
    evaluation    in evaluations
    checkpoints   in checkpoints

    What is left of the steps is the exchange: averaging, messages, the optimizer.
    """

    steps: float = 0.0
    waiting: float = 0.0
    data: float = 0.0
    passes: float = 0.0
    evaluation: float = 0.0
    checkpoints: float = 0.0

    @classmethod
    def of(cls, wall_s: float, stored: Mapping[str, float]) -> Self:
        """What was stored; older runs did not tell the parts."""
        return cls(wall_s, *(float(stored.get(part, 0.0)) for part in _STORED))

    def with_gradients(self, seconds: float, data: float) -> Self:
        """And what the gradients of this attempt took, of which so long for data."""
        return replace(self, data=self.data + data, passes=self.passes + seconds - data)

    def stored(self) -> dict[str, float]:
        """For checkpoints and the status: what adds up to the time in all."""
        waiting = max(0.0, min(self.waiting, self.steps - self.data - self.passes))  # while others compute, in threads
        exchange = max(0.0, self.steps - self.data - self.passes - waiting)
        parts = {"passes": self.passes, "exchange": exchange, "waiting": waiting, "data": self.data}
        parts |= {"evaluation": self.evaluation, "checkpoints": self.checkpoints}
        return {part: round(value, 6) for part, value in parts.items()}


class Stopwatch:
    """Adds the time that passes to the part of a run that goes on.

    `waited_s` says how long this process has waited for messages so far.
    """

    def __init__(self, times: Times, waited_s: Callable[[], float]) -> None:
        self._times, self._waited_s = times, waited_s
        self._part, self._began, self._waited_before = "steps", time.perf_counter(), waited_s()

    def turn_to(self, part: str) -> None:
        """From now on it is `part`: steps, evaluation or checkpoints."""
        now, waited = time.perf_counter(), self._waited_s()
        setattr(self._times, self._part, getattr(self._times, self._part) + now - self._began)
        if self._part == "steps":
            self._times.waiting += waited - self._waited_before
        self._part, self._began, self._waited_before = part, now, waited
