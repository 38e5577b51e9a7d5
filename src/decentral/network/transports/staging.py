"""Parcels through memory that the processes of a host share: laid out once by who sends them, and read in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from decentral.network.transports.doorbells import Doorbells
from decentral.network.transports.transport import ALIGNED, Expected, Parcel, aligned, grown

SENT, READ = 2, 0
"""Kinds of bells: a parcel is there; what was there has been read."""

Mapped = Callable[[Sequence[tuple[int, ...]], torch.dtype], list[Tensor]]
"""(shapes, dtype) -> one block of memory of each process, mapped by all of them."""


class Staging:
    """Two halves for each process, which take turns: it writes into one while others may still read the other.

    Before it writes into a half again, those who took something out of it have said that they have read it. Where a
    parcel lies is written in a table for its reader, in which the messages between two processes take turns as well.
    Takes memory for two exchanges of the largest size so far, at most twice as much.
    """

    def __init__(self, bells: Doorbells, mapped: Mapped, announce: Callable[[int, int, int], None]) -> None:
        """`announce` (process, kind, bytes) rings when so many bytes have arrived."""
        self._announce = announce
        self._bells, self._mapped, self._size, self._rank = bells, mapped, bells.size, bells.rank
        self._memory: list[Tensor] = []  # by process: uint8 [2 capacity]
        self._tables: list[np.ndarray] = []  # by process: int64 [2, size, parcels]
        self._capacity = self._parcels = self._half = 0
        self._sent, self._came = [0] * self._size, [0] * self._size  # messages to, and from, each process
        self._to_read: list[dict[int, int]] = [{}, {}]  # in each half: process -> which message of ours it has to read
        self._reading: list[int] = []

    def reserve(self, num_bytes: int, num_parcels: int) -> None:
        """See `Transport.reserve`; `num_bytes` without what alignment takes."""
        self.done()
        needed = num_bytes + num_parcels * ALIGNED
        if needed > self._capacity or num_parcels > self._parcels:
            with contextlib.suppress(ConnectionError):  # who waits for somebody that is gone hears of it then
                self._bells.hear()  # others may be unable to ring until we do, and new memory needs all of them
        if needed > self._capacity:
            self._capacity, self._memory = grown(needed), []
            self._memory = self._mapped([(2 * self._capacity,)] * self._size, torch.uint8)
        if num_parcels > self._parcels:
            self._parcels = num_parcels
            tables = self._mapped([(2, self._size, num_parcels)] * self._size, torch.int64)
            self._tables = [table.numpy() for table in tables]

    def exchange(self, parcels: Sequence[Parcel], expected: Sequence[Expected]) -> list[Tensor]:
        """See `Transport.exchange`."""
        self.done()
        readers = list(dict.fromkeys(peer for parcel in parcels if parcel.num_bytes for peer in parcel.peers))
        if readers:
            self._lay_out(parcels)
            self._to_read[self._half] = {peer: self._sent[peer] + 1 for peer in readers}
            self._half = 1 - self._half
        for peer in readers:
            self._sent[peer] += 1
            num_bytes = sum(parcel.num_bytes for parcel in parcels if peer in parcel.peers)
            self._announce(peer, SENT, num_bytes)
        self._reading = sorted({parcel.peer for parcel in expected if parcel.num_bytes})
        for peer in self._reading:
            self._came[peer] += 1
            self._bells.wait(peer, SENT, self._came[peer])
        return [self._found(parcel) for parcel in expected]

    def done(self) -> None:
        """See `Transport.done`."""
        for peer in self._reading:
            self._bells.ring(peer, READ)
        self._reading = []

    def close(self) -> None:
        """Let go of the memory."""
        self._memory, self._tables, self._capacity, self._parcels = [], [], 0, 0

    def _lay_out(self, parcels: Sequence[Parcel]) -> None:
        for peer, message in self._to_read[self._half].items():
            self._bells.wait(peer, READ, message)
        start = self._half * self._capacity
        table = self._tables[self._rank]
        for parcel in parcels:
            end = start + parcel.num_bytes
            assert end <= (self._half + 1) * self._capacity, "more than was reserved"
            parcel.pack(self._memory[self._rank][start:end])
            for peer in parcel.peers:
                table[self._sent[peer] % 2, peer, parcel.number] = start
            start += aligned(parcel.num_bytes)

    def _found(self, parcel: Expected) -> Tensor:
        if not parcel.num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        turn = (self._came[parcel.peer] - 1) % 2
        start = int(self._tables[parcel.peer][turn, self._rank, parcel.number])
        return self._memory[parcel.peer][start : start + parcel.num_bytes]
