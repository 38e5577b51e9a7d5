"""Workers in several processes, connected by a transport."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network import kernels
from decentral.network.collectives import Peers, all_reduce
from decentral.network.network import Network, pairings
from decentral.network.payload import Known, Payload, Sizes, bytes_of, unpacked
from decentral.network.settings import CollectiveChoice, NetworkSettings
from decentral.network.transports.choose import open_transport
from decentral.network.transports.signals import note_of
from decentral.network.transports.transport import Buffer, CutEdge, Expected, Transport
from decentral.network.windows.open import Pushes
from decentral.topology.delivery import Exchange, Losses, Neighbors
from decentral.topology.rounds import Rounds, slices

_PINGS = 3


def split_workers(num_workers: int, num_processes: int) -> list[range]:
    """Return the workers of each process: consecutive, sizes differ by at most one, larger ones first."""
    size, larger = divmod(num_workers, num_processes)
    starts = [p * size + min(p, larger) for p in range(num_processes + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def join(
    rounds: Rounds, losses: Losses, device: torch.device, rank: int, size: int, settings: NetworkSettings
) -> ProcessNetwork:
    """Create the network of process `rank` of `size`; all call this at once. Raises what `open_transport` raises."""
    layout = split_workers(rounds.num_workers, size)
    return ProcessNetwork(rounds, losses, device, rank, layout, open_transport(settings, layout, device), settings)


class _Carried(NamedTuple):
    """The rows of one shape and type exchanged in a round. Piece h of d of a process's row i has number d i + h."""

    pieces: list[slice]
    sends: list[tuple[int, int, list[int], int]]  # local index, piece, destinations, number
    expected: list[Expected]
    received: list[list[int]]  # worker of each received row, by piece
    shapes: list[torch.Size]  # of the pieces of a row
    counts: tuple[int, int]  # messages and bytes that this process sends
    room: tuple[int, int]
    note: int  # about the matrices, and these rows
    what: str


class ProcessNetwork(Network):
    """This process hosts some of the n workers; needs an initialized process group (gloo or nccl).

    It sends one message for each row that another process needs (mix), or for each edge between processes (relay).
    `wire_bytes` and `wire_messages` count what this process really sends. With one worker per process their sum over
    processes is `bytes_sent` and `messages_sent` (except for all-reduce and losses: a lost message is counted, but
    mixing does not send it).

    With one worker of degree d per process, in passes over a row (a read or a write), excluding the transport: mixing
    takes 2 + 3 d, relaying 6 for d = 2 and 15 for d = 3, none for d = 1 if the row can be sent in place.
    """

    def __init__(
        self,
        rounds: Rounds,
        losses: Losses,
        device: torch.device,
        rank: int,
        layout: Sequence[range],
        transport: Transport,
        settings: NetworkSettings | None = None,
    ) -> None:
        """Create the network of process `rank`; `layout` has the workers of each process, from `split_workers`.

        `settings` configure windows, which are opened on demand.
        """
        super().__init__(rounds, layout[rank], losses)
        self.settings = settings or NetworkSettings()
        self._pushes: Pushes | None = None
        self.note_pushes: Callable[[int, int, str, list[int]], object] | None = None
        """Called with the index of a piece and the arguments of `Window.note`."""
        self._cut_edges_of: dict[int, list[CutEdge]] = {}  # by the length of rows
        self.layout, self.rank, self.device, self.transport = layout, rank, device, transport
        self.owner = np.repeat(np.arange(len(layout)), [len(workers) for workers in layout])
        """The process of each worker."""
        self._others = [p for p in range(len(layout)) if p != rank]

    @property
    def wire_bytes(self) -> int:
        """The bytes that this process has sent to others."""
        return self.transport.wire_bytes + (self._pushes.wire_bytes if self._pushes else 0)

    @property
    def wire_messages(self) -> int:
        """The number of messages that this process has sent."""
        return self.transport.wire_messages + (self._pushes.wire_messages if self._pushes else 0)

    @property
    def waited_s(self) -> float:
        """The time that this process has waited for others, in seconds."""
        return self.transport.waited_s

    @property
    def facts(self) -> dict[str, str]:
        """The transport."""
        return {"transport": self.transport.name}

    def close(self) -> None:
        """Close the transport and all windows."""
        if self._pushes is not None:
            self._pushes.close()
        self.transport.close()

    def gather(self, rows: Tensor) -> Tensor:
        """Gather the rows of all workers on every process's CPU."""
        largest = len(self.layout[0])
        padded = rows.new_zeros(largest, *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.layout]
        dist.all_gather(parts, padded)
        return torch.cat([part[: len(workers)] for part, workers in zip(parts, self.layout, strict=True)]).cpu()

    def average(self, x: Tensor) -> Tensor:
        """Return 1/n sum_j x_j: [k, P] -> [P]."""
        share = kernels.wide(kernels.mean_of(x)).mul_(len(x) / self.n)
        return self.transport.total(share, 1.0).to(x.dtype)

    def _push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        if self._pushes is None:
            if self.settings.limited:
                raise ConfigError(f"{self.settings.limited} needs a synchronous method: leave it out.")
            self._pushes = Pushes(self.settings, self.rounds, self.layout, x, self.note_pushes)
        self.flushed = False
        return self._pushes.push(x, p, shares)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network`."""
        if self.flushed or self._pushes is None:
            return x, p
        self.flushed = True
        return self._pushes.drain(x, p)

    def _mean_of_all(self, x: Tensor) -> Tensor:
        down = kernels.headroom(len(self.layout[0]))  # the same in all processes
        for columns in kernels.blocks(x.shape[-1], len(x), x):
            rows = x[..., columns]
            kernels.weighted_sum([(row, down) for row in rows], rows[0])
        factor = 1 / (self.n * down)
        choice, transport = self.settings.collective, self.transport
        if choice is CollectiveChoice.library and transport.limiter is not None and not transport.limits_totals:
            choice = CollectiveChoice.ring
        elif choice is CollectiveChoice.auto and self.fastest is not None:
            choice = self.fastest(x[0].nbytes)
        peers = Peers(transport, self.rank, len(self.layout), x.device)
        if not all_reduce(choice, x[0].view(-1), factor, peers):
            transport.total(x[0], factor)
        x[1:] = x[0]
        return x

    def _ping(self, num_bytes: int) -> float:
        """Time it by the clock of the first of each pair; the minimum of several attempts on a shared machine."""
        content = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        self.transport.reserve(num_bytes)
        slowest = 0.0
        for pairs in pairings(len(self.layout)):
            self.traffic.count(2 * _PINGS * len(pairs), num_bytes)
            pair = next((pair for pair in pairs if self.rank in pair), ())
            least = math.inf if pair else 0.0
            for _ in range(_PINGS):
                self._everybodys(0.0)  # begin together
                began = time.perf_counter()
                if pair:
                    self._there_and_back(content, *pair)
                    least = min(least, (time.perf_counter() - began) / 2)
            slowest = max(slowest, self._everybodys(least if pair and self.rank == pair[0] else 0.0))
        return slowest

    def _there_and_back(self, content: Tensor, first: int, second: int) -> None:
        peer = first + second - self.rank
        send, receive = Buffer([content], [peer]), Expected(peer, len(content))
        for sender in (first, second):
            if sender == self.rank:
                self.transport.count(1, len(content))
                self.transport.exchange([send], [], self.device)
            else:
                self.transport.exchange([], [receive], self.device)
        self.transport.done()

    def _everybodys(self, seconds: float) -> float:
        """Return the maximum over processes, on all of them."""
        rows = torch.full((len(self.workers), 1), seconds, dtype=torch.float64, device=self.device)
        return float(self.gather(rows).max())

    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        if not exchange.pieces:
            return lambda: self._mean(x)
        key = "carried", x.shape, x.dtype
        if key not in exchange.memo:
            exchange.memo[key] = self._carried(x, exchange)
        plan: _Carried = exchange.memo[key]
        buffers = [Buffer([x[i][..., plan.pieces[h]]], peers, number) for i, h, peers, number in plan.sends]
        self.transport.count(*plan.counts)
        underway = self.transport.begin(buffers, plan.expected, plan.room, x.device, plan.note, plan.what)

        def finish() -> None:
            received = iter([row.view(x.dtype) for row in underway.wait()])
            for h, (piece, workers) in enumerate(zip(plan.pieces, plan.received, strict=True)):
                rows = {j: next(received) for j in workers}
                if x.dim() > 2:
                    rows = {j: row.view(plan.shapes[h]) for j, row in rows.items()}
                self._mix_piece(x[..., piece], rows, exchange, h)
            underway.release()

        return finish

    def _carried(self, x: Tensor, exchange: Exchange) -> _Carried:
        pieces = slices(x.shape[-1], len(exchange.pieces), exchange.split)
        like, d, most = [x[0][..., piece] for piece in pieces], len(pieces), len(self.layout[0])
        needed: dict[tuple[int, int], list[int]] = {}
        expected, received = [], []
        for h, W in enumerate(exchange.pieces):
            received.append(list[int]())
            for worker, peer in self._needed_elsewhere(W.src, W.dst):
                source = int(self.owner[worker])
                place = worker - self.layout[source].start
                if source == self.rank:
                    needed.setdefault((place, h), []).append(peer)
                elif peer == self.rank:
                    expected.append(Expected(source, like[h].nbytes, d * place + h))
                    received[h].append(worker)
        sums = [zlib.crc32(column.tobytes()) for W in exchange.pieces for column in (W.src, W.dst, W.weight)]
        what = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}, and of the same round"
        num_messages = sum(map(len, needed.values()))
        num_bytes = sum(len(peers) * like[h].nbytes for (_, h), peers in needed.items())
        return _Carried(
            pieces=pieces,
            sends=[(i, h, peers, d * i + h) for (i, h), peers in needed.items()],
            expected=expected,
            received=received,
            shapes=[each.shape for each in like],
            counts=(num_messages, num_bytes),
            room=(most * x[0].nbytes, most * d),
            note=(note_of(sums) + note_of(what)) % 0xFFFFFF + 1,
            what=what,
        )

    def _needed_elsewhere(self, src: np.ndarray, dst: np.ndarray) -> list[tuple[int, int]]:
        """Return sorted pairs (worker j, process p) for each other process p that needs data of j."""
        peer = self.owner[dst]
        cut = peer != self.owner[src]
        pairs = np.unique(np.stack([src[cut], peer[cut]], axis=1), axis=0).tolist()
        return [(worker, process) for worker, process in pairs]

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        widths = self.piece_widths(y.shape[-1])
        if (cut := self._cut_edges_of.get(y.shape[-1])) is None:
            cut = [edge._replace(width=widths[h]) for edge, h in self._cut_edges]
            self._cut_edges_of[y.shape[-1]] = cut
        fresh, remote = self.transport.open(m, cut)
        going = {edge.row: place for edge, place in zip(cut, remote, strict=True) if place is not None}
        going |= {row: fresh[back, : widths[h]] for row, back, h in self._inner_edges}
        self._add_up(y, m, going)
        self.transport.deliver(cut, [going[edge.row] for edge in cut])
        return fresh

    @cached_property
    def _cut_edges(self) -> list[tuple[CutEdge, int]]:
        """Return the edges from other processes into this one, each with its piece; widths are filled in later."""
        firsts = np.searchsorted(self.edges.dst, [workers.start for workers in self.layout])
        found = []
        for e in self.local_edges:
            peer, back = int(self.owner[self.edges.src[e]]), int(self.edges.reverse[e])
            if peer != self.rank:
                edge = CutEdge(e - self.local_edges.start, peer, back - int(firsts[peer]), 0, e, back)
                found.append((edge, int(self.edges.piece[e])))
        return found

    @cached_property
    def _inner_edges(self) -> list[tuple[int, int, int]]:
        """Return (row of m, row for the opposite message, piece) of the edges between local workers."""
        first = self.local_edges.start
        return [
            (e - first, int(self.edges.reverse[e]) - first, int(self.edges.piece[e]))
            for e in self.local_edges
            if int(self.owner[self.edges.src[e]]) == self.rank
        ]

    # -- payloads: one buffer per payload and process ---------------------------------------------------------------

    def _everybodys_sizes(self, payloads: Sequence[Payload]) -> list[Sizes]:
        """Exchange lengths; names and types are known to all. Not counted.

        Raises ValueError if tensor names or types differ between processes.
        """
        kinds = {name: dtype for name, (dtype, _) in payloads[0].sizes.items()}
        signature = zlib.crc32(repr(kinds).encode())
        lengths = [length for payload in payloads for _, length in payload.sizes.values()]
        ours = torch.tensor([signature, *lengths], device=self.device)
        num_bytes = [8 * (1 + len(workers) * len(kinds)) for workers in self.layout]
        self.transport.reserve(max(num_bytes))
        expected = [Expected(p, num_bytes[p]) for p in self._others]
        came = self.transport.exchange([Buffer([ours], self._others)], expected, self.device)
        said = dict(zip(self._others, (each.view(torch.int64) for each in came), strict=True)) | {self.rank: ours}
        rows = []
        for p, workers in enumerate(self.layout):
            theirs, *lengths = said[p].tolist()
            if theirs != signature:
                raise ValueError(f"the payloads of process {p} have tensors of other names or types than ours")
            rows += np.reshape(lengths, (len(workers), len(kinds))).tolist()
        return [dict(zip(kinds, zip(kinds.values(), row, strict=True), strict=True)) for row in rows]

    def _allgather(self, payloads: Sequence[Payload], known: Known) -> list[Payload]:
        """See `PayloadVerbs`."""
        workers = [j for p in self._others for j in self.layout[p]]
        found = self._exchange(payloads, known, [self._others] * len(payloads), workers)
        return [found[j] for j in range(self.n)]

    def _broadcast(self, payload: Payload | None, root: int, sizes: Sizes) -> Payload:
        """See `PayloadVerbs`."""
        self.transport.reserve(bytes_of(sizes))
        buffer = Buffer(payload.parts, self._others) if payload is not None else None
        flat = self.transport.spread(buffer, int(self.owner[root]), bytes_of(sizes), self.device)
        if payload is not None:
            return payload
        assert flat is not None
        return unpacked(flat, sizes)

    def _swap(self, payloads: Sequence[Payload], neighbors: Neighbors, known: Known) -> list[dict[int, Payload]]:
        """See `PayloadVerbs`."""
        if "payloads" not in neighbors.memo:
            peers: list[list[int]] = [[] for _ in self.workers]
            workers = []
            for j, p in self._needed_elsewhere(neighbors.src, neighbors.dst):
                if j in self.workers:
                    peers[j - self.workers.start].append(p)
                elif p == self.rank:
                    workers.append(j)
            ends = np.searchsorted(neighbors.dst, [*self.workers, self.workers.stop])
            heard = [neighbors.src[a:b].tolist() for a, b in pairwise(ends.tolist())]
            neighbors.memo["payloads"] = peers, workers, heard
        peers, workers, heard = neighbors.memo["payloads"]
        found = self._exchange(payloads, known, peers, workers)
        return [{j: found[j] for j in others} for others in heard]

    def _relay_payloads(self, payloads: Sequence[Payload], sizes: Sequence[Sizes]) -> list[Payload]:
        """See `PayloadVerbs`."""
        num_bytes, cut = [bytes_of(each) for each in sizes], self._cut_edges
        most_edges = int(np.bincount(self.owner[self.edges.dst]).max())
        self.transport.reserve(most_edges * max(num_bytes), most_edges)
        buffers = [Buffer(payloads[edge.row].parts, [edge.peer], edge.back) for edge, _ in cut]
        self.transport.count(len(buffers), sum(buffer.num_bytes for buffer in buffers))
        expected = [Expected(edge.peer, num_bytes[h], edge.row) for edge, h in cut]
        came = self.transport.exchange(buffers, expected, self.device)
        found = {row: payloads[back] for row, back, _ in self._inner_edges}
        for (edge, h), flat in zip(cut, came, strict=True):
            found[edge.row] = unpacked(flat, sizes[h])
        return [found[row] for row in range(len(payloads))]

    def _exchange(
        self, payloads: Sequence[Payload], known: Known, peers: Sequence[Sequence[int]], workers: Sequence[int]
    ) -> dict[int, Payload]:
        """Send each local payload to its peers; return those of these workers and the local ones, by worker."""
        of_processes = np.add.reduceat(known.num_bytes, [workers.start for workers in self.layout])
        self.transport.reserve(int(of_processes.max()), len(self.layout[0]))
        buffers = []
        for number, payload in enumerate(payloads):
            if peers[number]:
                buffers.append(Buffer(payload.parts, peers[number], number))
                num_messages = len(peers[number])
                self.transport.count(num_messages, num_messages * (buffers[-1].num_bytes + known.length_bytes))
        expected = []
        for j in workers:
            p = int(self.owner[j])
            expected.append(Expected(p, int(known.num_bytes[j]), j - self.layout[p].start))
        came = self.transport.exchange(buffers, expected, self.device)
        found = dict(zip(self.workers, payloads, strict=True))
        for j, flat in zip(workers, came, strict=True):
            found[j] = unpacked(flat, known.each[j])
        return found
