"""The stopwatch of a run, and the votes of its processes on checkpoints and the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from decentral.network.world import World

_PERIOD_S = 1.0
_PATIENT_PERIOD_S = 5.0
_PERIOD_STEPS = 20


class Stopwatch:
    """A stopwatch that assigns elapsed time to the current part of a run.

    `waited_s` returns the time that this process has waited for messages so far.
    """

    def __init__(self, times: Counter[str], waited_s: Callable[[], float]) -> None:
        self._times, self._waited_s = times, waited_s
        self._part, self._began, self._waited_before = "steps", time.perf_counter(), waited_s()

    def turn_to(self, part: str) -> None:
        """Switch to `part`: steps, evaluation or checkpoints."""
        now, waited = time.perf_counter(), self._waited_s()
        self._times[self._part] += now - self._began  # type: ignore[assignment]
        if self._part == "steps":
            self._times["waiting"] += waited - self._waited_before  # type: ignore[assignment]
        self._part, self._began, self._waited_before = part, now, waited


class Votes:
    """Votes of all processes, by an all-reduce: every 20 steps, or every second if steps are long.

    A single process decides at every step.
    """

    def __init__(self, world: World, step: int, patient: bool = False) -> None:
        """`patient`: vote every 5 seconds, because a vote stops asynchronous workers."""
        self._world, self._period_s = world, _PATIENT_PERIOD_S if patient else _PERIOD_S
        self.next = step + 1
        """The step of the next vote."""
        self._asked = step, time.monotonic()

    def due(self, step: int) -> bool:
        """Return whether a vote is due; the same on all processes."""
        return step >= self.next

    def ask(self, step: int, checkpoint: bool, stop: bool) -> tuple[bool, bool]:
        """Return whether any process wants a checkpoint, and whether any wants to stop."""
        before, then = self._asked
        now = time.monotonic()
        step_s = (now - then) / max(1, step - before)
        steps = int(min(_PERIOD_STEPS, max(1.0, self._period_s / max(step_s, 1e-9)))) if self._world.distributed else 1
        checkpoint_wanted, stop_wanted, steps = self._world.largest(checkpoint, stop, steps)
        self._asked, self.next = (step, now), step + steps
        return bool(checkpoint_wanted), bool(stop_wanted)
