"""Windows whose slots can all be addressed: in one process, or in memory that the processes of a host share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.shared_memory import Segments
from decentral.network.windows.locks import ByteLocks, Meeting
from decentral.network.windows.slots import Edges, Memory
from decentral.network.windows.window import Window


class _Addressed(Window):
    """Everybody writes into, and reads from, everybody's memory itself."""

    def __init__(self, edges: Edges, layout: Sequence[range], rank: int, memories: list[Memory]) -> None:
        super().__init__(edges, layout, rank, memories[rank])
        self._memories = memories
        self._first_slots = [edges.of_owners(workers).start for workers in layout]

    def vacant(self, owner: int, sender: int) -> bool:
        """See `Window`."""
        peer = self._process[owner]
        return self._memories[peer].is_empty(self.edges.number(owner, sender) - self._first_slots[peer])

    def _deliver(self, owner: int, sender: int, weight: float, add: bool) -> None:
        own, peer = sender - self.workers.start, self._process[owner]
        memory, place = self._memories[peer], self.edges.number(owner, sender) - self._first_slots[peer]
        with self.mutex(owner, sender):
            write = memory.accumulate if add else memory.put
            write(place, self.t[own], float(self.p[own]), weight)
        if peer != self.rank:
            self._count(self.t[own])

    def _fetch(self, owner: int, sender: int, weight: float) -> None:
        peer = self._process[sender]
        memory, at = self._memories[peer], sender - self.layout[peer].start
        with self.mutex(owner, sender), self.mutex(sender, sender):
            self._memory.put(self._place(owner, sender), memory.t[at], float(memory.p[at]), weight)
        if peer != self.rank:
            self._count(memory.t[at])


class OneProcessWindow(_Addressed):
    """All workers in this process, on any device: nothing has to be locked."""

    def __init__(self, edges: Edges, t: Tensor, zero_init: bool = True) -> None:
        """t is [n, P]."""
        memory = Memory.plain(edges.num_workers, len(edges), t)
        super().__init__(edges, [range(edges.num_workers)], 0, [memory])
        self._begin(t, zero_init)

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`: nobody else is there."""
        self.edges.lock(owner, sender)
        return nullcontext()

    def close(self) -> None:
        """See `Window`."""

    def _total(self, value: Tensor) -> Tensor:
        return value


class SharedMemoryWindow(_Addressed):
    """The processes of one Linux host, with rows on the CPU; to be made by all of them at once.

    Wait-free: a share is added where its receiver will look for it, whatever the receiver does. A process that dies
    takes its locks with it, but leaves a slot half written if it died in the middle.
    """

    def __init__(
        self, edges: Edges, layout: Sequence[range], t: Tensor, timeout_s: float, zero_init: bool = True
    ) -> None:
        """t [k, P] are the rows of the local workers."""
        rank, self._meeting = dist.get_rank(), Meeting(timeout_s)
        counts = [(len(workers), len(edges.of_owners(workers))) for workers in layout]
        rows = Segments([(k + e, t.shape[-1]) for k, e in counts], t.dtype).tensors
        weights = Segments([(k + e,) for k, e in counts], torch.float64).tensors
        marks = Segments([(e, 2) for _, e in counts], torch.int64).tensors
        parts = zip(rows, weights, marks, counts, strict=True)
        memories = [Memory(row, weight, mark, k) for row, weight, mark, (k, _) in parts]
        super().__init__(edges, layout, rank, memories)
        self._locks = ByteLocks(timeout_s)
        self._begin(t, zero_init)

    def mutex(self, owner: int, sender: int) -> AbstractContextManager[None]:
        """See `Window`. Raises TimeoutError if the lock is not free in time."""
        return self._locks.hold(self.edges.lock(owner, sender), self.edges.locked(owner, sender))

    def close(self) -> None:
        """See `Window`."""
        self._locks.close()
        self._memories = []

    def _total(self, value: Tensor) -> Tensor:
        return self._meeting.total(value)
