"""Buffers through memory that the processes of a host share: laid out once by who sends them, and read in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from decentral.network.transports.signals import Signals
from decentral.network.transports.transport import ALIGNED, Buffer, Expected, aligned, grown

SENT, READ = 2, 0
"""Kinds of signals: a buffer is there; what was there has been read."""

Mapped = Callable[[Sequence[tuple[int, ...]], torch.dtype], list[Tensor]]
"""(shapes, dtype) -> one block of memory of each process, mapped by all of them."""


class Staging:
    """Two halves for each process, which take turns: it writes into one while others may still read the other.

    Before it writes into a half again, those who took something out of it have said that they have read it. Where a
    buffer lies is written in a table for its reader, in which the messages between two processes take turns as well.
    Takes memory for two exchanges of the largest size so far, at most twice as much.
    """

    def __init__(self, signals: Signals, mapped: Mapped, announce: Callable[[int, int, int], None]) -> None:
        """`announce` (process, kind, bytes) sends a signal when so many bytes have arrived."""
        self._announce = announce
        self._signals, self._mapped, self._size, self._rank = signals, mapped, signals.size, signals.rank
        self._memory: list[Tensor] = []  # by process: uint8 [2 capacity]
        self._tables: list[np.ndarray] = []  # by process: int64 [2, size, buffers]
        self._capacity = self._buffers = self._half = 0
        self._sent, self._came = [0] * self._size, [0] * self._size  # messages to, and from, each process
        self._to_read: list[dict[int, int]] = [{}, {}]  # in each half: process -> which message of ours it has to read
        self._reading: list[int] = []

    def reserve(self, num_bytes: int, num_buffers: int) -> None:
        """See `Transport.reserve`; `num_bytes` without what alignment takes."""
        self.done()
        needed = num_bytes + num_buffers * ALIGNED
        if needed > self._capacity or num_buffers > self._buffers:
            with contextlib.suppress(ConnectionError):  # who waits for somebody that is gone hears of it then
                self._signals.receive()  # others may be unable to send until we do, and new memory needs all of them
        if needed > self._capacity:
            self._capacity, self._memory = grown(needed), []
            self._memory = self._mapped([(2 * self._capacity,)] * self._size, torch.uint8)
        if num_buffers > self._buffers:
            self._buffers = num_buffers
            tables = self._mapped([(2, self._size, num_buffers)] * self._size, torch.int64)
            self._tables = [table.numpy() for table in tables]

    def exchange(self, buffers: Sequence[Buffer], expected: Sequence[Expected]) -> list[Tensor]:
        """See `Transport.exchange`."""
        self.done()
        readers = list(dict.fromkeys(peer for buffer in buffers if buffer.num_bytes for peer in buffer.peers))
        if readers:
            self._lay_out(buffers)
            self._to_read[self._half] = {peer: self._sent[peer] + 1 for peer in readers}
            self._half = 1 - self._half
        for peer in readers:
            self._sent[peer] += 1
            num_bytes = sum(buffer.num_bytes for buffer in buffers if peer in buffer.peers)
            self._announce(peer, SENT, num_bytes)
        self._reading = sorted({buffer.peer for buffer in expected if buffer.num_bytes})
        for peer in self._reading:
            self._came[peer] += 1
            self._signals.wait(peer, SENT, self._came[peer])
        return [self._found(buffer) for buffer in expected]

    def done(self) -> None:
        """See `Transport.done`."""
        for peer in self._reading:
            self._signals.send(peer, READ)
        self._reading = []

    def close(self) -> None:
        """Let go of the memory."""
        self._memory, self._tables, self._capacity, self._buffers = [], [], 0, 0

    def _lay_out(self, buffers: Sequence[Buffer]) -> None:
        for peer, message in self._to_read[self._half].items():
            self._signals.wait(peer, READ, message)
        start = self._half * self._capacity
        table = self._tables[self._rank]
        for buffer in buffers:
            end = start + buffer.num_bytes
            assert end <= (self._half + 1) * self._capacity, "more than was reserved"
            buffer.pack(self._memory[self._rank][start:end])
            for peer in buffer.peers:
                table[self._sent[peer] % 2, peer, buffer.number] = start
            start += aligned(buffer.num_bytes)

    def _found(self, buffer: Expected) -> Tensor:
        if not buffer.num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        turn = (self._came[buffer.peer] - 1) % 2
        start = int(self._tables[buffer.peer][turn, self._rank, buffer.number])
        return self._memory[buffer.peer][start : start + buffer.num_bytes]
