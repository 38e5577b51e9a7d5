"""Shared-memory transport: the processes of one host read and write each other's rows."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.kernels import headroom, weighted_sum
from decentral.network.locks import in_time
from decentral.network.transports.posting import Limits
from decentral.network.transports.signals import NEW, READY, Signals, note_of
from decentral.network.transports.transport import (
    ALIGNED,
    CPU,
    Buffer,
    CutEdge,
    Expected,
    Transport,
    Underway,
    aligned,
    grown,
)

_RELAY_ROWS_KEPT = 8
_RELAYED = note_of("messages along edges")
_MOST_LANES = (NEW - READY - 1) // 2


def possible() -> bool:
    """Return whether all processes of the group run on one Linux host and see each other; the same on all."""
    ours = torch.tensor([host()], dtype=torch.int64)
    hosts = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(hosts, ours)
    known = {int(host) for host in hosts}
    return len(known) == 1 and 0 not in known


def host() -> int:
    """Return an ID of this host, container and user; 0 if its processes cannot open each other's files."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        os.close(os.open(f"/proc/{os.getpid()}/fd", os.O_RDONLY))
        os.close(os.memfd_create("decentral"))
        return 1 + zlib.crc32(f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}".encode())
    except (OSError, AttributeError):
        return 0


class Segments:
    """One block of memory per process, mapped by all; all processes create it at once.

    The memory is unnamed: it disappears with the last process, however that ends.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> None:
        """`shapes[p]` is the shape of process p's tensor. Raises ConnectionError if a process is gone."""
        size = max(1, torch.Size(shapes[dist.get_rank()]).numel()) * dtype.itemsize
        own = os.memfd_create("decentral")
        try:
            os.ftruncate(own, size)
            place = torch.tensor([os.getpid(), own], dtype=torch.int64)
            places = [torch.empty_like(place) for _ in shapes]
            self.tensors: list[Tensor] = []
            with in_time():
                dist.all_gather(places, place)
                for (pid, number), shape in zip(torch.stack(places).tolist(), shapes, strict=True):
                    count, file = torch.Size(shape).numel(), f"/proc/{pid}/fd/{number}"  # mappings need no descriptor
                    memory = torch.from_file(file, shared=True, size=max(1, count), dtype=dtype)
                    self.tensors.append(memory[:count].view(shape))
                dist.all_reduce(place)  # all have opened the files before any closes its own
        finally:
            os.close(own)


class _Lane(Underway):
    """Data in flight is stored once in the sender's memory, for any number of readers, and read in place. A table tells
    each reader the positions of its buffers.

    With two alternating halves, a process writes one while others may still read the other. It overwrites a half only
    after its readers have confirmed that they are done.
    """

    def __init__(self, transport: SharedMemory, number: int, halves: int) -> None:
        self.busy = False
        self._transport, self._signals = transport, transport.signals
        self._rank, size = self._signals.rank, self._signals.size
        self._there, self._read = READY + 1 + 2 * number, READY + 2 + 2 * number  # kinds of signals
        self._memory: list[Tensor] = []  # by process: uint8 [halves * capacity]
        self._tables: list[np.ndarray] = []  # by process: int64 [2, size, buffers]; messages of two processes alternate
        self._capacity = self._buffers = self._half = 0
        self._sent, self._came = [0] * size, [0] * size  # messages to, and from, each process
        self._to_read: list[dict[int, int]] = [{} for _ in range(halves)]  # process -> the message it has to read
        self._expected: Sequence[Expected] = ()
        self._reading: list[int] = []
        self._said: tuple[int, str] = 0, ""

    def reserve(self, num_bytes: int, num_buffers: int) -> None:
        """See `Transport.reserve`; `num_bytes` excludes alignment."""
        needed, size = num_bytes + num_buffers * ALIGNED, self._signals.size
        if needed > self._capacity or num_buffers > self._buffers:
            with contextlib.suppress(ConnectionError):  # the next wait for a dead process raises
                self._signals.receive()  # others may be blocked until we receive, and new memory needs all of them
        if needed > self._capacity:
            self._capacity, self._memory = grown(needed), []
            self._memory = Segments([(len(self._to_read) * self._capacity,)] * size, torch.uint8).tensors
        if num_buffers > self._buffers:
            self._buffers = num_buffers
            tables = Segments([(2, size, num_buffers)] * size, torch.int64).tensors
            self._tables = [table.numpy() for table in tables]

    def begin(self, buffers: Sequence[Buffer], expected: Sequence[Expected], note: int = 0, what: str = "") -> None:
        """See `Transport.begin`."""
        self.busy, self._expected, self._said = True, expected, (note, what)
        going: dict[int, int] = {}
        for buffer in buffers:
            for peer in buffer.peers if buffer.num_bytes else ():
                going[peer] = going.get(peer, 0) + buffer.num_bytes
        if going:
            self._lay_out(buffers)
            self._to_read[self._half] = {peer: self._sent[peer] + 1 for peer in going}
            self._half = (self._half + 1) % len(self._to_read)
        for peer, num_bytes in going.items():
            self._sent[peer] += 1
            self._transport.announce(peer, self._there, num_bytes, note)
        self._reading = sorted({buffer.peer for buffer in expected if buffer.num_bytes})
        for peer in self._reading:
            self._came[peer] += 1

    def wait(self) -> list[Tensor]:
        """See `Underway`."""
        for peer in self._reading:
            self._signals.wait(peer, self._there, self._came[peer], *self._said)
        return [self._found(buffer) for buffer in self._expected]

    def release(self) -> None:
        """See `Underway`."""
        for peer in self._reading:
            self._signals.send(peer, self._read)
        self.busy, self._reading = False, []

    def _lay_out(self, buffers: Sequence[Buffer]) -> None:
        for peer, message in self._to_read[self._half].items():
            self._signals.wait(peer, self._read, message)
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


class SharedMemory(Transport):
    """Shared-memory transport with at most one copy: a row for others is published once, for any number of readers, and
    read in place; a message is written to its receiver's memory.

    Takes memory for the published rows and for the messages of two rounds. `layout` has the workers of each process.
    """

    name: ClassVar[str] = "shared_memory"

    limits_totals: ClassVar[bool] = True

    def __init__(self, layout: Sequence[range], timeout_s: float, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.layout, self.rank = layout, dist.get_rank()
        self.signals = Signals(timeout_s)
        self.others = [p for p in range(len(layout)) if p != self.rank]
        self._awaited = [0] * len(layout)  # number of signals expected from each process so far
        self._exchanged = _Lane(self, 0, halves=2)
        self._lanes: list[_Lane] = []
        self._relay_rows: list[list[Tensor]] = []  # by process: [2, E_p, W]
        self._totals: dict[tuple[object, ...], tuple[list[Tensor], list[Tensor], int]] = {}

    @property
    def waited_s(self) -> float:
        """See `Transport`."""
        return self.signals.waited_s

    def begin(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        room: tuple[int, int],
        device: torch.device = CPU,
        note: int = 0,
        what: str = "",
    ) -> Underway:
        """See `Transport`. Uses the first free lane, the same on all processes, as all begin in the same order."""
        lane = next((lane for lane in self._lanes if not lane.busy), None)
        if lane is None:
            if len(self._lanes) + 1 >= _MOST_LANES:
                raise RuntimeError(
                    f"more than {_MOST_LANES} rows are in transit through shared memory at once: wait for some before "
                    "sending others"
                )
            lane = _Lane(self, len(self._lanes) + 1, halves=1)
            self._lanes.append(lane)
        lane.reserve(*room)
        lane.begin(buffers, expected, note, what)
        return lane

    def open(self, m: Tensor, edges: Sequence[CutEdge]) -> tuple[Tensor, list[Tensor | None]]:
        """See `Transport`. The messages of two rounds alternate in the memory.

        Edges have two directions, so when a process's messages of the last round arrive, it has read those of the round
        before.
        """
        halves, turn = self._relay_memory(m)
        return halves[self.rank][turn], [halves[edge.peer][turn][edge.back, : edge.width] for edge in edges]

    def deliver(self, edges: Sequence[CutEdge], outgoing: Sequence[Tensor]) -> None:
        """See `Transport`."""
        going: dict[int, int] = {}
        for edge, message in zip(edges, outgoing, strict=True):
            self.count(1, message.nbytes)
            going[edge.peer] = going.get(edge.peer, 0) + message.nbytes
        self._tell(dict(sorted(going.items())), _RELAYED, "messages along the edges")

    def total(self, x: Tensor, factor: float) -> Tensor:
        """See `Transport`: each process publishes its row, sums its share of the columns, and publishes that."""
        row, size, what = x.view(-1), len(self.layout), "a sum over all"
        key = row.shape, row.dtype
        if key not in self._totals:
            longest = -(-len(row) // size)
            with torch.inference_mode(False):  # others use them, too
                terms, sums = (Segments([(length,)] * size, row.dtype).tensors for length in (len(row), longest))
            self._totals[key] = terms, sums, note_of("sum", *key)
        terms, sums, note = self._totals[key]
        terms[self.rank].copy_(row)
        shares = [slice(*bound) for bound in pairwise([len(row) * p // size for p in range(size + 1)])]
        lengths = [share.stop - share.start for share in shares]
        self._tell({p: lengths[p] * row.element_size() for p in self.others}, note, what)
        ours, mine = shares[self.rank], sums[self.rank][: lengths[self.rank]]
        down = headroom(size)
        weighted_sum([(term[ours], down) for term in terms], mine, factor / down)
        self._tell(dict.fromkeys(self.others, mine.nbytes), note, what)
        for share, part, length in zip(shares, sums, lengths, strict=True):
            row[share].copy_(part[:length])
        return x

    def reserve(self, num_bytes: int, num_buffers: int = 1) -> None:
        """See `Transport`."""
        self._exchanged.release()
        self._exchanged.reserve(num_bytes, num_buffers)

    def exchange(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        device: torch.device = CPU,
        unchanged: bool = False,
    ) -> list[Tensor]:
        """See `Transport`. Copied once, for any number of readers."""
        self._exchanged.release()
        self._exchanged.begin(buffers, expected)
        return self._exchanged.wait()

    def done(self) -> None:
        """See `Transport`."""
        self._exchanged.release()

    def tell_of_something_new(self) -> None:
        """See `Transport`."""
        self.signals.tell_of_something_new()

    def spread(self, buffer: Buffer | None, root: int, num_bytes: int, device: torch.device = CPU) -> Tensor | None:
        """See `Transport`. Without limits all read it in the memory of `root`."""
        if self.limiter is not None:
            return super().spread(buffer, root, num_bytes, device)
        if buffer is not None:
            self.count(len(buffer.peers), len(buffer.peers) * num_bytes)
            self.exchange([buffer], [], device)
            return None
        return self.exchange([], [Expected(root, num_bytes)], device)[0]

    def close(self) -> None:
        """Close the sockets and release the memory."""
        super().close()
        self.signals.close()
        self._exchanged = _Lane(self, 0, halves=2)
        self._lanes.clear()
        self._relay_rows.clear()
        self._totals.clear()

    def _tell(self, going: dict[int, int], note: int, what: str) -> None:
        """Signal processes that these bytes are ready for them, and wait for theirs."""
        for peer, num_bytes in going.items():
            self.announce(peer, READY, num_bytes, note)
            self._awaited[peer] += 1
        for peer in going:
            self.signals.wait(peer, READY, self._awaited[peer], note, what)

    def announce(self, peer: int, kind: int, num_bytes: int, note: int = 0) -> None:
        """Send a signal when the bytes have arrived: at once, unless there are limits."""
        if self.limiter is None:
            self.signals.send(peer, kind, note)
        else:
            self.limiter.later(num_bytes, partial(self.signals.send_from_a_thread, peer, kind, note))

    def _relay_memory(self, m: Tensor) -> tuple[list[Tensor], int]:
        """Return the memory whose one half holds m, and the index of the other half; new memory for any other m."""
        for halves in self._relay_rows:
            for half in (0, 1):
                if halves[self.rank][half].data_ptr() == m.data_ptr():
                    return halves, 1 - half
        counts = torch.zeros(len(self.layout), dtype=torch.int64)
        counts[self.rank] = len(m)
        dist.all_reduce(counts)
        shapes = [(2, int(count), m.shape[1]) for count in counts]
        self._relay_rows = [*self._relay_rows[1 - _RELAY_ROWS_KEPT :], Segments(shapes, m.dtype).tensors]
        return self._relay_rows[-1], 0
