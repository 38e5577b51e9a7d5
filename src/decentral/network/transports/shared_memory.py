"""Rows that the processes of one host write into, and read from, each other's memory."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.posting import Limits
from decentral.network.transports.signals import NEW, READY, Signals, note_of
from decentral.network.transports.staging import SENT, Staging
from decentral.network.transports.transport import CPU, Buffer, CutEdge, Expected, Row, Shared, Transport

_RELAY_ROWS_KEPT = 8
_FIRST_BOARD = SENT + 1
_RELAYED = note_of("messages along edges")
_MOST_BOARDS = NEW - _FIRST_BOARD


def possible() -> bool:
    """Whether all processes of the group run on one Linux host and see each other; the same answer everywhere."""
    ours = torch.tensor([host()], dtype=torch.int64)
    hosts = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(hosts, ours)
    known = {int(host) for host in hosts}
    return len(known) == 1 and 0 not in known


def host() -> int:
    """A number for this host, container and user; 0 where its processes cannot open each other's files."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        os.close(os.open(f"/proc/{os.getpid()}/fd", os.O_RDONLY))
        os.close(os.memfd_create("decentral"))
        return 1 + zlib.crc32(f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}".encode())
    except (OSError, AttributeError):
        return 0


class Segments:
    """One block of memory of each process, mapped by all of them; to be made by all of them at once.

    The memory has no name: it is gone when the last process is, however that ends.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> None:
        """`shapes[p]` is the shape of process p's tensor."""
        size = max(1, torch.Size(shapes[dist.get_rank()]).numel()) * dtype.itemsize
        own = os.memfd_create("decentral")
        try:
            os.ftruncate(own, size)
            place = torch.tensor([os.getpid(), own], dtype=torch.int64)
            places = [torch.empty_like(place) for _ in shapes]
            dist.all_gather(places, place)
            self.tensors = [_mapped(place, shape, dtype) for place, shape in zip(places, shapes, strict=True)]
            dist.all_reduce(place)  # nobody closes what another has not opened yet
        finally:
            os.close(own)


def _mapped(place: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The memory behind a file descriptor of a process, (pid, number); the mapping needs none of its own."""
    (pid, number), count = place.tolist(), torch.Size(shape).numel()
    memory = torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=max(1, count), dtype=dtype)
    return memory[:count].view(shape)


@dataclass
class _Board:
    """Where every process shows rows to others, and how often each reader has to be done before ours may change."""

    rows: list[Tensor]  # by process: [k_p, ..., P]
    done: int  # the kind of signal by which readers say that they are
    what: str  # is shown
    readers: dict[int, int]  # process -> how often
    shown: dict[int, int]  # process -> how often we have shown it something here
    busy: bool = False


class _Shown(Shared):
    """Rows on a board; those of process p can be read when it has sent `awaited[p]` signals."""

    def __init__(
        self, signals: Signals, board: _Board, awaited: dict[int, int], received: list[Tensor], note: int
    ) -> None:
        self.signals, self.board, self.awaited, self.received, self.note = signals, board, awaited, received, note

    def rows(self) -> list[Tensor]:
        """See `Shared`."""
        for peer, count in self.awaited.items():
            self.signals.wait(peer, READY, count, self.note, self.board.what)
        return self.received

    def release(self) -> None:
        """See `Shared`."""
        for peer in self.awaited:
            self.signals.send(peer, self.board.done)
        self.board.busy = False


class SharedMemory(Transport):
    """Nobody copies more than once: a row that others need is shown once, whatever their number, and read in place; a
    message is written where its receiver keeps it.

    Takes memory for the rows that are shown, and for the messages of two rounds. `layout` are the workers of each
    process.
    """

    name: ClassVar[str] = "shared_memory"

    limits_totals: ClassVar[bool] = True

    def __init__(self, layout: Sequence[range], timeout_s: float, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.layout, self.rank = layout, dist.get_rank()
        self.signals = Signals(timeout_s)
        self.others = [p for p in range(len(layout)) if p != self.rank]
        self._awaited = [0] * len(layout)  # how often each process has had to send a signal so far
        self._boards: dict[tuple[object, ...], list[_Board]] = {}
        self._relay_rows: list[list[Tensor]] = []  # by process: [2, E_p, W]
        self._totals: dict[tuple[object, ...], tuple[list[Tensor], list[Tensor], int]] = {}
        self._staging = Staging(self.signals, lambda shapes, dtype: Segments(shapes, dtype).tensors, self._announce)

    @property
    def waited_s(self) -> float:
        """See `Transport`."""
        return self.signals.waited_s

    def share(
        self, x: Tensor, pieces: Sequence[slice], sends: Sequence[Row], receives: Sequence[Row], note: int = 0
    ) -> Shared:
        """See `Transport`."""
        board = self._board(x)
        note = (note + board.done) % 0xFFFFFF + 1  # all processes number their boards alike
        for peer, count in board.readers.items():
            self.signals.wait(peer, board.done, count)
        own = board.rows[self.rank]
        for worker, piece in dict.fromkeys((row.worker, row.piece) for row in sends):
            own[worker][..., pieces[piece]].copy_(x[worker][..., pieces[piece]])
        going: dict[int, int] = {}
        for row in sends:
            part = x[row.worker][..., pieces[row.piece]]
            self._count(part)
            going[row.peer] = going.get(row.peer, 0) + part.numel() * part.element_size()
        readers = sorted(going)
        for peer in readers:
            board.shown[peer] = board.shown.get(peer, 0) + 1
            self._announce(peer, READY, going[peer], note)
        board.readers, board.busy = {peer: board.shown[peer] for peer in readers}, True
        received = [
            board.rows[row.peer][row.worker - self.layout[row.peer].start][..., pieces[row.piece]] for row in receives
        ]
        return _Shown(self.signals, board, self._await(sorted({row.peer for row in receives})), received, note)

    def open(self, m: Tensor, edges: Sequence[CutEdge]) -> tuple[Tensor, list[Tensor | None]]:
        """See `Transport`. The messages of two rounds take turns in the memory.

        A process has read those of the round before last when its messages of the last round arrive: edges have two
        directions.
        """
        halves, turn = self._relay_memory(m)
        return halves[self.rank][turn], [halves[edge.peer][turn][edge.back, : edge.width] for edge in edges]

    def deliver(self, edges: Sequence[CutEdge], outgoing: Sequence[Tensor]) -> None:
        """See `Transport`."""
        going: dict[int, int] = {}
        for edge, message in zip(edges, outgoing, strict=True):
            self._count(message)
            going[edge.peer] = going.get(edge.peer, 0) + message.numel() * message.element_size()
        self._tell(dict(sorted(going.items())), _RELAYED, "messages along the edges")

    def total(self, x: Tensor, factor: float) -> Tensor:
        """See `Transport`: everybody shows its row, adds up its share of the columns, and shows that."""
        row = x.view(-1)
        terms, sums, note = self._total(row)
        terms[self.rank].copy_(row)
        bounds = [len(row) * p // len(self.layout) for p in range(len(self.layout) + 1)]
        shares, width = [slice(*bound) for bound in pairwise(bounds)], row.element_size()
        what = "a sum over all"
        self._tell({p: (bounds[p + 1] - bounds[p]) * width for p in self.others}, note, what)
        ours, mine = shares[self.rank], sums[self.rank]
        torch.add(terms[0][ours], terms[1][ours], out=mine[: ours.stop - ours.start])
        for term in terms[2:]:
            mine[: ours.stop - ours.start].add_(term[ours])
        self._tell(dict.fromkeys(self.others, (ours.stop - ours.start) * width), note, what)
        for share, part in zip(shares, sums, strict=True):
            torch.mul(part[: share.stop - share.start], factor, out=row[share])
        return x

    def reserve(self, num_bytes: int, num_buffers: int = 1) -> None:
        """See `Transport`."""
        self._staging.reserve(num_bytes, num_buffers)

    def exchange(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        device: torch.device = CPU,
        unchanged: bool = False,
    ) -> list[Tensor]:
        """See `Transport`. Copied once, whatever the number of those who read it."""
        return self._staging.exchange(buffers, expected)

    def done(self) -> None:
        """See `Transport`."""
        self._staging.done()

    def tell_of_something_new(self) -> None:
        """See `Transport`."""
        self.signals.tell_of_something_new()

    def spread(self, buffer: Buffer | None, root: int, num_bytes: int, device: torch.device = CPU) -> Tensor | None:
        """See `Transport`. Without limits all read it where `root` has laid it."""
        if self.limiter is not None:
            return super().spread(buffer, root, num_bytes, device)
        if buffer is not None:
            self.count(len(buffer.peers), len(buffer.peers) * num_bytes)
            self.exchange([buffer], [], device)
            return None
        return self.exchange([], [Expected(root, num_bytes)], device)[0]

    def close(self) -> None:
        """Close the sockets and let go of the memory."""
        super().close()
        self.signals.close()
        self._staging.close()
        self._boards.clear()
        self._relay_rows.clear()
        self._totals.clear()

    def _tell(self, going: dict[int, int], note: int, what: str) -> None:
        """Say to processes that so many bytes are there for them, and wait for what they write."""
        for peer, num_bytes in going.items():
            self._announce(peer, READY, num_bytes, note)
        for peer, count in self._await(list(going)).items():
            self.signals.wait(peer, READY, count, note, what)

    def _announce(self, peer: int, kind: int, num_bytes: int, note: int = 0) -> None:
        """Send a signal when so many bytes have arrived: at once, unless there are limits."""
        if self.limiter is None:
            self.signals.send(peer, kind, note)
        else:
            self.limiter.later(num_bytes, partial(self.signals.send_from_a_thread, peer, kind, note))

    def _await(self, writers: Sequence[int]) -> dict[int, int]:
        """How often each of them has to have sent a signal for what it writes next."""
        for peer in writers:
            self._awaited[peer] += 1
        return {peer: self._awaited[peer] for peer in writers}

    def _board(self, x: Tensor) -> _Board:
        """One that is not in use; all processes take theirs in the same order, so that they take the same."""
        boards = self._boards.setdefault((x.shape[1:], x.dtype), [])
        for board in boards:
            if not board.busy:
                return board
        shapes = [(len(workers), *x.shape[1:]) for workers in self.layout]
        number = sum(map(len, self._boards.values()))
        if number >= _MOST_BOARDS:
            raise RuntimeError(
                f"more than {_MOST_BOARDS} rows are on their way through shared memory at once, or of different "
                "shapes: wait for some before others are begun"
            )
        with contextlib.suppress(ConnectionError):  # who waits for somebody that is gone hears of it then
            self.signals.receive()  # others may be unable to send until we do, and a new board needs all of them
        rows = Segments(shapes, x.dtype).tensors
        what = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}, and of the same round"
        boards.append(_Board(rows, _FIRST_BOARD + number, what, {}, {}))
        return boards[-1]

    def _relay_memory(self, m: Tensor) -> tuple[list[Tensor], int]:
        """The memory in one half of which m lies, and the number of the other half; new ones for any other m."""
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

    def _total(self, row: Tensor) -> tuple[list[Tensor], list[Tensor], int]:
        key = row.shape, row.dtype
        if key not in self._totals:
            size = len(self.layout)
            share = -(-len(row) // size)
            terms = Segments([(len(row),)] * size, row.dtype).tensors
            self._totals[key] = terms, Segments([(share,)] * size, row.dtype).tensors, note_of("sum", *key)
        return self._totals[key]
