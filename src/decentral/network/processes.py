"""Workers in several processes: what leaves the process travels by a transport."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network import kernels
from decentral.network.collectives import AllReduce, Peers, chosen
from decentral.network.network import Network, pairings
from decentral.network.payload_transfer import PayloadTransfer
from decentral.network.settings import CollectiveChoice, NetworkSettings
from decentral.network.transports.choose import open_transport
from decentral.network.transports.signals import note_of
from decentral.network.transports.transport import Buffer, CutEdge, Expected, Row, Transport
from decentral.network.windows.pushes import Pushes
from decentral.topology.delivery import Exchange, Losses
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds, slices

_PINGS = 3


def split_workers(num_workers: int, num_processes: int) -> list[range]:
    """The workers of each process: consecutive, sizes differ by at most one, the larger ones first."""
    size, larger = divmod(num_workers, num_processes)
    starts = [p * size + min(p, larger) for p in range(num_processes + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def join(
    rounds: Rounds, losses: Losses, device: torch.device, rank: int, size: int, settings: NetworkSettings
) -> ProcessNetwork:
    """The network of process `rank` of `size`; all of them call this at once. Raises what `open_transport` raises."""
    layout = split_workers(rounds.num_workers, size)
    return ProcessNetwork(rounds, losses, device, rank, layout, open_transport(settings, layout, device), settings)


class _Crossings(NamedTuple):
    """The rows that cross in a round, by what this process does with them; it sends local row `worker`."""

    sends: list[Row]
    receives: list[Row]
    received: list[list[int]]  # worker of each received row, by piece
    note: int  # about the matrices


def _rows(workers: np.ndarray, piece: int, peers: np.ndarray, tags: np.ndarray) -> list[Row]:
    columns = zip(workers.tolist(), peers.tolist(), tags.tolist(), strict=True)
    return [Row(worker, piece, peer, tag) for worker, peer, tag in columns]


class ProcessNetwork(PayloadTransfer, Network):
    """This process hosts some of the n workers; needs an initialised process group (gloo or nccl).

    One message for each row that another process needs (mix), or for each edge that is cut (relay). `wire_bytes` and
    `wire_messages` count what this process really sends; with one worker per process their sum is `bytes_sent` and
    `messages_sent` (all-reduce apart, and where no message is lost: a lost one is counted, but mixing does not send
    it).

    With one worker of degree d per process, in passes over a row (a read or a write), the transport apart: mixing takes
    2 + 3 d, relaying 6 for d = 2 and 15 for d = 3, nothing for d = 1 where the row can be sent as it lies.
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
        """`layout` are the workers of each process, from `split_workers`; this is process `rank`.

        `settings` are for windows, which are opened when they are needed.
        """
        super().__init__(rounds, layout[rank], losses)
        self.settings = settings or NetworkSettings()
        self._pushes: Pushes | None = None
        self.tell_pushes: Callable[[str, int, list[int]], object] | None = None
        """See `Window.tell`."""
        self._cut_edges_of: dict[int, list[CutEdge]] = {}  # by the length of rows
        self.layout, self.rank, self.device, self.transport = layout, rank, device, transport
        self.owner = np.repeat(np.arange(len(layout)), [len(workers) for workers in layout])

    @property
    def wire_bytes(self) -> int:
        """What this process has sent to others."""
        return self.transport.wire_bytes + (self._pushes.wire_bytes if self._pushes else 0)

    @property
    def wire_messages(self) -> int:
        """In how many messages."""
        return self.transport.wire_messages + (self._pushes.wire_messages if self._pushes else 0)

    @property
    def waited_s(self) -> float:
        """How long this process has waited for others."""
        return self.transport.waited_s

    @property
    def facts(self) -> dict[str, str]:
        """The transport."""
        return {"transport": self.transport.name}

    def close(self) -> None:
        """Let go of the transport and of windows."""
        if self._pushes is not None:
            self._pushes.close()
        self.transport.close()

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all workers on every process, on the CPU."""
        largest = len(self.layout[0])
        padded = rows.new_zeros(largest, *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.layout]
        dist.all_gather(parts, padded)
        return torch.cat([part[: len(workers)] for part, workers in zip(parts, self.layout, strict=True)]).cpu()

    def average(self, x: Tensor) -> Tensor:
        """1/n sum_j x_j: [k, P] -> [P]."""
        return self.transport.total(x.sum(0), 1 / self.n)

    def _push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        if self._pushes is None:
            if self.settings.limited:
                raise ConfigError(
                    f"{self.settings.limited} is for methods whose messages are waited for: leave it out."
                )
            self._pushes = Pushes(self.settings, self.rounds, self.layout, x, self.tell_pushes)
        self.flushed = False
        return self._pushes.push(x, p, shares)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network`."""
        if self.flushed or self._pushes is None:
            return x, p
        self.flushed = True
        return self._pushes.drain(x, p)

    def _mean(self, x: Tensor) -> Tensor:
        kernels.total_rows(x)
        if (collective := self._chosen(x[0])) is None:
            self.transport.total(x[0], 1 / self.n)
        else:
            collective.total(x[0].view(-1), 1 / self.n, Peers(self.transport, self.rank, len(self.layout), x.device))
        x[1:] = x[0]
        return x

    def _ping(self, num_bytes: int) -> float:
        """By the clock of the first one of each pair; the least of some attempts, as others use this machine, too."""
        content = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        self.transport.reserve(num_bytes)
        slowest = 0.0
        for pairs in pairings(len(self.layout)):
            self._count(2 * _PINGS * len(pairs), num_bytes)
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
        """The largest that a process has; the same on all of them."""
        rows = torch.full((len(self.workers), 1), seconds, dtype=torch.float64, device=self.device)
        return float(self.gather(rows).max())

    def _chosen(self, row: Tensor) -> AllReduce | None:
        """None: the transport's own. Where that cannot be limited: a ring."""
        if self.settings.collective is CollectiveChoice.library:
            own = self.transport.limiter is None or self.transport.limits_totals
            return None if own else chosen(CollectiveChoice.ring, 0, None)
        return chosen(self.settings.collective, row.numel() * row.element_size(), self.fastest)

    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        if not exchange.pieces:
            return lambda: self._mean(x)
        pieces = slices(x.shape[-1], len(exchange.pieces), exchange.split)
        if "crossings" not in exchange.memo:
            exchange.memo["crossings"] = self._crossings(exchange.pieces)
        crossings: _Crossings = exchange.memo["crossings"]
        shared = self.transport.share(x, pieces, crossings.sends, crossings.receives, crossings.note)

        def finish() -> None:
            received = iter(shared.rows())
            for h, (piece, workers) in enumerate(zip(pieces, crossings.received, strict=True)):
                self._mix_piece(x[..., piece], {j: next(received) for j in workers}, exchange, h)
            shared.release()

        return finish

    def _crossings(self, pieces: Sequence[MixingMatrix]) -> _Crossings:
        sends, receives, received, tag = [], [], [], 0
        for h, W in enumerate(pieces):
            worker, peer = self._needed_elsewhere(W)
            source, tags = self.owner[worker], tag + np.arange(len(worker))
            tag += len(worker)
            ours, mine = source == self.rank, peer == self.rank
            sends += _rows(worker[ours] - self.workers.start, h, peer[ours], tags[ours])
            receives += _rows(worker[mine], h, source[mine], tags[mine])
            received.append(worker[mine].tolist())
        sums = [zlib.crc32(column.tobytes()) for W in pieces for column in (W.src, W.dst, W.weight)]
        return _Crossings(sends, receives, received, note_of(sums))

    def _needed_elsewhere(self, W: MixingMatrix) -> tuple[np.ndarray, np.ndarray]:
        """Worker j and process p, sorted, for each row j that another process p needs."""
        size, peer = len(self.layout), self.owner[W.dst]
        cut = peer != self.owner[W.src]
        keys = np.unique(W.src[cut] * size + peer[cut])
        return keys // size, keys % size

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        widths = self.piece_widths(y.shape[-1])
        cut = self._cut_edges_for(y.shape[-1])
        fresh, remote = self.transport.open(m, cut)
        going = {edge.row: place for edge, place in zip(cut, remote, strict=True) if place is not None}
        going |= {row: fresh[back, : widths[h]] for row, back, h in self._inner_edges}
        self._add_up(y, m, going)
        self.transport.deliver(cut, [going[edge.row] for edge in cut])
        return fresh

    def _cut_edges_for(self, num_coordinates: int) -> list[CutEdge]:
        if num_coordinates not in self._cut_edges_of:
            widths = self.piece_widths(num_coordinates)
            self._cut_edges_of[num_coordinates] = [edge._replace(width=widths[h]) for edge, h in self._cut_edges]
        return self._cut_edges_of[num_coordinates]
