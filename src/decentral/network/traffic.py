"""The communication cost of a network: bytes and messages of all workers, and their time."""

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

WEIGHT_BYTES = 8
"""Size of a push-sum weight, sent with its row."""

Wait = Callable[[], object]


class Traffic:
    """Records everything that the network's operations send.

    bytes_begun, messages_begun   what all n workers together have begun to send, whatever the number of processes: a
               message for each edge
    clock      simulated time, which is put forward by what is sent; None: nobody asks for it
    measured   what probes have found that collectives take; None: nobody has measured
    carried    where that is measured: name of a collective -> how often it was carried out, the seconds that it was to
               take, and those that it took in this process
    """

    def __init__(self, num_workers: int) -> None:
        self.n = num_workers
        self.bytes_begun = self.messages_begun = 0
        self.scale = 1.0
        """Factor by which true messages are larger than the exchanged ones."""
        self.stands_for: dict[int, int] = {}
        """Length of placeholder rows -> true length. Single numbers in a payload of such rows do not scale with the
        row."""
        self.overlaps = False
        """True if collectives carry gradients and overlap their computation."""
        self.clock: Clock | None = None
        self.measured: Prices | None = None
        self.carried: dict[str, list[float]] = {}

    @property
    def bytes_sent(self) -> int:
        """The bytes sent so far: in simulated time without those still leaving a port."""
        return self.bytes_begun - (0 if self.clock is None else self.clock.not_left()[0])

    @property
    def messages_sent(self) -> int:
        """The number of messages sent so far, likewise."""
        return self.messages_begun - (0 if self.clock is None else self.clock.not_left()[1])

    @property
    def prices(self) -> Prices | None:
        """The costs of collectives as measured, else as simulated; None if unknown."""
        return self.clock if self.measured is None else self.measured

    def count(self, num_messages: int, bytes_each: float, extra: int = 0) -> None:
        """Count messages of bytes_each bytes of rows plus `extra` bytes each."""
        self.messages_begun += num_messages
        self.bytes_begun += num_messages * (round(bytes_each) + extra)

    def count_pieces(self, num_messages: Sequence[int], num_bytes: Sequence[float], extra: int = 0) -> None:
        """Count the messages of each piece h: num_messages[h] of num_bytes[h] plus `extra` bytes each."""
        for messages, each in zip(num_messages, num_bytes, strict=True):
            self.count(messages, each, extra)

    def count_senders(self, num_messages: np.ndarray, num_bytes: np.ndarray) -> None:
        """Count the messages of each worker, and the bytes of each message: int64 [n]."""
        self.messages_begun += int(num_messages.sum())
        self.bytes_begun += round(num_messages @ num_bytes)

    def begin(
        self,
        over: Exchange | RelayEdges | Neighbors,
        num_bytes: Sequence[float] | np.ndarray,
        extra: int = 0,
        later: bool = False,
    ) -> Wait:
        """Begin to send these already counted messages in simulated time, see `Clock.begin`. Return a function that
        waits for them. With `later`, `arrive` waits for them in another step."""
        return self._waiting(None if self.clock is None else self.clock.begin(over, num_bytes, extra), later)

    def begin_collective(self, name: str, num_bytes: float, later: bool = False) -> Wait:
        """Begin an all_reduce, allgather or broadcast likewise. An all_reduce is counted here: in simulated time as its
        actual algorithm, else as a ring of all workers."""
        underway: Underway | None = None
        messages, rows = 2 * (self.n - 1) * self.n, 2.0 * (self.n - 1)
        if self.clock is not None:
            underway, messages, rows = self.clock.begin_collective(name, num_bytes, self.overlaps)
        if name == "all_reduce":
            self.messages_begun += messages
            self.bytes_begun += round(rows * num_bytes)
        return self._waiting(underway, later)

    def arrive(self) -> None:
        """Wait, in simulated time, for the oldest messages begun with `later`."""
        if self.clock is not None and self.clock.underway:
            self.clock.wait(self.clock.underway.pop(0))

    @contextmanager
    def collective(self, name: str, num_bytes: float) -> Iterator[None]:
        """Spend the time of a collective."""
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

    def _waiting(self, underway: Underway | None, later: bool) -> Wait:
        clock = self.clock
        if clock is None or underway is None:
            return lambda: None
        if later:
            clock.underway.append(underway)
            return lambda: None
        return lambda: clock.wait(underway)
