"""What a worker does next: the operations that the program of an asynchronous method is made of.

In simulated time (`begin`) an operation says when the worker can go on, or a meeting lets it go on. For real
(`carry_out`) a thread of the worker does it, and waits. What is done to the worker's rows is the same: functions that
the method gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decentral.cluster.host import Host
    from decentral.cluster.timeline import Timeline

OnRow = Callable[..., object]
"""(state, place of the worker among the rows, its gradient [P], number of its step) -> changes the worker's rows."""


class Operation(ABC):
    """Something that a worker does, in simulated time or for real."""

    @abstractmethod
    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Worker i begins it now: when it can go on; None if somebody else will say (`Timeline.resume`)."""

    @abstractmethod
    def carry_out(self, host: Host, i: int) -> None:
        """Worker i does it for real, in a thread of its own; returns when it can go on."""


@dataclass(frozen=True)
class Gradient(Operation):
    """g_i = grad F_i(x_i; xi_i) with the next sample xi_i, at the model as it is when this begins.

    copied    others may change x_i while this goes on: it is taken at a copy
    """

    copied: bool = False

    def begin(self, timeline: Timeline, i: int, now: float) -> float | None:
        """Over after the time that the worker's machine takes for this gradient."""
        return timeline.begin_gradient(i, now, self.copied)

    def carry_out(self, host: Host, i: int) -> None:
        """By the host, once it lets the worker go on."""
        host.gradient(i, self.copied)


@dataclass(frozen=True)
class Local(Operation):
    """Something that a worker does to its own rows, with its newest gradient; it takes no time."""

    what: OnRow

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once."""
        if timeline.rows is not None:
            timeline.rows.local(i, self.what, timeline.drawn[i] - 1)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """While nobody averages with the worker's row."""
        host.local(i, self.what, timed=False)


@dataclass(frozen=True)
class LocalAt(Operation):
    """The same, where the simulated time matters: what(state, i, gradient [P], number of its step, seconds)."""

    what: Callable[..., object]

    def begin(self, timeline: Timeline, i: int, now: float) -> float:
        """Over at once."""
        if timeline.rows is not None:
            timeline.rows.local(i, self.what, timeline.drawn[i] - 1, now)
        return now

    def carry_out(self, host: Host, i: int) -> None:
        """While nobody averages with the worker's row."""
        host.local(i, self.what, timed=True)


def check_ended(i: int, gradients: int, share: float) -> None:
    """The program of worker i gives no operation any more. Raises RuntimeError if it took fewer gradients than its
    share."""
    if gradients < share:
        raise RuntimeError(
            f"the program of worker {i} ended after {gradients} of {share:g} gradients: it has to give operations "
            "until nobody asks for another one, as in `while True:` or `for t in range(team.num_steps):`"
        )
