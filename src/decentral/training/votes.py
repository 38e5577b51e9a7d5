"""When the processes of a run ask each other whether to write a checkpoint, or to stop."""

from __future__ import annotations

import time

from decentral.network.world import World

_PERIOD_S = 1.0
_PATIENT_PERIOD_S = 5.0
_PERIOD_STEPS = 20


class Votes:
    """A vote costs an all-reduce, so several processes hold one every 20 steps, or every second where steps are long.

    A process that is alone has nobody to agree with: it decides at every step.
    """

    def __init__(self, world: World, step: int, patient: bool = False) -> None:
        """`patient`: workers go on by themselves, and a vote stops them, so that it is held every 5 seconds."""
        self._world, self._period_s = world, _PATIENT_PERIOD_S if patient else _PERIOD_S
        self.next = step + 1
        """At which step it is time."""
        self._asked = step, time.monotonic()

    def due(self, step: int) -> bool:
        """Whether it is time to ask; the same answer on all processes."""
        return step >= self.next

    def ask(self, step: int, checkpoint: bool, stop: bool) -> tuple[bool, bool]:
        """Whether some process wants a checkpoint, and whether some process wants to stop."""
        before, then = self._asked
        now = time.monotonic()
        step_s = (now - then) / max(1, step - before)
        steps = int(min(_PERIOD_STEPS, max(1.0, self._period_s / max(step_s, 1e-9)))) if self._world.distributed else 1
        checkpoint_wanted, stop_wanted, steps = self._world.largest(checkpoint, stop, steps)
        self._asked, self.next = (step, now), step + steps
        return bool(checkpoint_wanted), bool(stop_wanted)
