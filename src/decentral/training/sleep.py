"""Stragglers for real: workers that sleep before their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from decentral.cluster.compute import GradientTimes


class Sleep(NamedTuple):
    """How long a worker sleeps before its gradients, in seconds: `delays` of stragglers, or all of a simulated time."""

    times: GradientTimes
    all: bool = False

    def seconds(self, workers: range, t: int) -> float:
        """Before gradient t of these workers, who sleep at the same time."""
        found = self.times.seconds(t, t + 1) if self.all else self.times.delays(t, t + 1)
        return float(found[0, workers.start : workers.stop].max())
