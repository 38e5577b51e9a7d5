"""What the verbs of a network cost: bytes, messages and time, of all workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from decentral.cluster.clock import Clock
    from decentral.cluster.costs import Prices
    from decentral.topology.delivery import Exchange, Neighbors
    from decentral.topology.rounds import RelayEdges


class Traffic:
    """What the verbs say that workers send each other.

    bytes_sent, messages_sent   of all n workers together, whatever the number of processes
    clock      simulated time, which is put forward by what is sent; None: nobody asks for it
    measured   what probes have found that collectives take; None: nobody has measured
    carried    where that is measured: name of a collective -> how often it was carried out, the seconds that it was to
               take, and those that it took in this process
    """

    def __init__(self, num_workers: int) -> None:
        self.n = num_workers
        self.bytes_sent = 0
        self.messages_sent = 0
        self.clock: Clock | None = None
        self.measured: Prices | None = None
        self.carried: dict[str, list[float]] = {}

    @property
    def prices(self) -> Prices | None:
        """What is known of the time that collectives take: as measured, or else as simulated; None: nothing."""
        return self.clock if self.measured is None else self.measured

    def _count(self, num_messages: int, bytes_each: int) -> None:
        """So many messages are sent."""
        self.messages_sent += num_messages
        self.bytes_sent += num_messages * bytes_each

    def _count_mean(self, row_bytes: int) -> None:
        """An all-reduce counts as a ring of all workers."""
        self.messages_sent += 2 * (self.n - 1) * self.n
        self.bytes_sent += 2 * (self.n - 1) * row_bytes

    def _begin_sending(
        self, over: Exchange | RelayEdges | Neighbors, num_bytes: Sequence[float] | np.ndarray
    ) -> Callable[[], object]:
        """In simulated time messages leave now, see `Clock.begin`; what is returned, when called, waits for them."""
        clock = self.clock
        if clock is None:
            return _nothing
        underway = clock.begin(over, num_bytes)
        return lambda: clock.wait(underway)

    def _begin_collective(self, name: str, num_bytes: float) -> Callable[[], object]:
        """The same for an all_reduce, allgather or broadcast."""
        clock = self.clock
        if clock is None:
            return _nothing
        underway = clock.begin_collective(name, num_bytes)
        return lambda: clock.wait(underway)

    @contextmanager
    def _collective(self, name: str, num_bytes: float) -> Iterator[None]:
        """A collective is carried out, which takes its time."""
        self._begin_collective(name, num_bytes)()
        if self.clock is not None or self.measured is None:
            yield
            return
        name, predicted_s = self.measured.collective(name, num_bytes)
        began = time.perf_counter()
        yield
        kept = self.carried.setdefault(name, [0, 0.0, 0.0])
        for place, value in enumerate((1, predicted_s, time.perf_counter() - began)):
            kept[place] += value


def _nothing() -> None:
    """No time passes."""
