"""What a network's verbs cost, observed: bytes and messages of all workers, and the time that they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from decentral.cluster.clock import Clock, Underway
    from decentral.cluster.links import Prices
    from decentral.topology.delivery import Exchange, Neighbors
    from decentral.topology.rounds import RelayEdges

Wait = Callable[[], object]


class Traffic:
    """Hears of everything that the verbs of a network send.

    bytes_sent, messages_sent   of all n workers together, whatever the number of processes: a message for each edge; a
               mean counts as a ring all-reduce
    clock      simulated time, which is put forward by what is sent; None: nobody asks for it
    measured   what probes have found that collectives take; None: nobody has measured
    carried    where that is measured: name of a collective -> how often it was carried out, the seconds that it was to
               take, and those that it took in this process
    """

    def __init__(self, num_workers: int) -> None:
        self.n = num_workers
        self.bytes_sent = self.messages_sent = 0
        self.clock: Clock | None = None
        self.measured: Prices | None = None
        self.carried: dict[str, list[float]] = {}

    @property
    def prices(self) -> Prices | None:
        """What is known of the time that collectives take: as measured, or else as simulated; None: nothing."""
        return self.clock if self.measured is None else self.measured

    def count(self, num_messages: int, bytes_each: int) -> None:
        """So many messages are sent."""
        self.messages_sent += num_messages
        self.bytes_sent += num_messages * bytes_each

    def count_mean(self, row_bytes: int) -> None:
        """An all-reduce counts as a ring of all workers."""
        self.messages_sent += 2 * (self.n - 1) * self.n
        self.bytes_sent += 2 * (self.n - 1) * row_bytes

    def count_pieces(self, num_messages: Sequence[int], num_bytes: Sequence[int]) -> None:
        """For each piece so many messages are sent, of so many bytes each."""
        for messages, each in zip(num_messages, num_bytes, strict=True):
            self.count(messages, each)

    def count_senders(self, num_messages: np.ndarray, num_bytes: np.ndarray) -> None:
        """Each worker sends so many messages, of so many bytes each: int64 [n]."""
        self.messages_sent += int(num_messages.sum())
        self.bytes_sent += int(num_messages @ num_bytes)

    def begin(self, over: Exchange | RelayEdges | Neighbors, num_bytes: Sequence[float] | np.ndarray) -> Wait:
        """In simulated time these messages leave now, see `Clock.begin`; what is returned, when called, waits for them.
        They have been counted."""
        return self._until(lambda clock: clock.begin(over, num_bytes))

    def begin_collective(self, name: str, num_bytes: float) -> Wait:
        """The same for an all_reduce, allgather or broadcast."""
        return self._until(lambda clock: clock.begin_collective(name, num_bytes))

    @contextmanager
    def collective(self, name: str, num_bytes: float) -> Iterator[None]:
        """A collective is carried out, which takes its time."""
        self.begin_collective(name, num_bytes)()
        if self.clock is not None or self.measured is None:
            yield
            return
        name, predicted_s = self.measured.collective(name, num_bytes)
        began = time.perf_counter()
        yield
        found = 1, predicted_s, time.perf_counter() - began
        self.carried[name] = [
            before + now for before, now in zip(self.carried.get(name, [0, 0, 0]), found, strict=True)
        ]

    def _until(self, begin: Callable[[Clock], Underway]) -> Wait:
        clock = self.clock
        if clock is None:
            return lambda: None
        underway = begin(clock)
        return lambda: clock.wait(underway)
