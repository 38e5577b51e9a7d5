"""Workers in several processes: what leaves the process travels by a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network import kernels
from decentral.network.network import Network
from decentral.network.rounds import Exchange, Losses, Terms
from decentral.network.settings import NetworkSettings
from decentral.network.transports.choose import open_transport
from decentral.network.transports.transport import CutLink, Row, Transport
from decentral.network.windows.pushes import Pushes
from decentral.topology.schedule import Schedule, slices


def split_workers(num_workers: int, num_processes: int) -> list[range]:
    """The workers of each process: consecutive, sizes differ by at most one, the larger ones first."""
    size, larger = divmod(num_workers, num_processes)
    starts = [p * size + min(p, larger) for p in range(num_processes + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def join(
    schedule: Schedule, losses: Losses, device: torch.device, rank: int, size: int, settings: NetworkSettings
) -> ProcessNetwork:
    """The network of process `rank` of `size`; all of them call this at once. Raises what `open_transport` raises."""
    layout = split_workers(schedule.num_workers, size)
    return ProcessNetwork(schedule, losses, device, rank, layout, open_transport(settings, layout, device), settings)


class _Crossings(NamedTuple):
    """The rows that cross in a round, by what this process does with them; it sends local row `worker`."""

    sends: list[Row]
    receives: list[Row]
    received: list[list[int]]  # worker of each received row, by piece


class ProcessNetwork(Network):
    """This process hosts some of the n workers; needs an initialised process group (gloo or nccl).

    One message for each row that another process needs (mix), or for each link that is cut (relay). `wire_bytes` and
    `wire_messages` count what this process really sends; with one worker per process their sum is `bytes_sent` and
    `messages_sent` (all-reduce apart, and where no message is lost: a lost one is counted, but mixing does not send
    it).

    With one worker of degree d per process, in passes over a row (a read or a write), the transport apart: mixing takes
    2 + 3 d, relaying 6 for d = 2 and 15 for d = 3, nothing for d = 1 where the row can be sent as it lies.
    """

    def __init__(
        self,
        schedule: Schedule,
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
        super().__init__(schedule, layout[rank], losses)
        self.settings = settings or NetworkSettings()
        self._pushes: Pushes | None = None
        self._settled = True
        self.layout, self.rank, self.device, self.transport = layout, rank, device, transport
        self.owner = [p for p, workers in enumerate(layout) for _ in workers]

    @property
    def wire_bytes(self) -> int:
        """What this process has sent to others."""
        return self.transport.wire_bytes + (self._pushes.wire_bytes if self._pushes else 0)

    @property
    def wire_messages(self) -> int:
        """In how many messages."""
        return self.transport.wire_messages + (self._pushes.wire_messages if self._pushes else 0)

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
            self._pushes = Pushes(self.settings, self.schedule, self.layout, x)
        self._settled = False
        return self._pushes.push(x, p, shares)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network`."""
        if self._settled or self._pushes is None:
            return x, p
        self._settled = True
        return self._pushes.drain(x, p)

    @property
    def settled(self) -> bool:
        """See `Network`."""
        return self._settled

    def _mean(self, x: Tensor) -> Tensor:
        kernels.total_rows(x)
        self.transport.total(x[0], 1 / self.n)
        x[1:] = x[0]
        return x

    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        if not exchange.pieces:
            return lambda: self._mean(x)
        pieces = slices(x.shape[-1], len(exchange.pieces), exchange.split)
        if "crossings" not in exchange.memo:
            exchange.memo["crossings"] = self._crossings(exchange.pieces)
        crossings: _Crossings = exchange.memo["crossings"]
        shared = self.transport.share(x, pieces, crossings.sends, crossings.receives)

        def finish() -> None:
            received = iter(shared.rows())
            for piece, weights, workers in zip(pieces, exchange.pieces, crossings.received, strict=True):
                remote = {j: next(received) for j in workers}
                local = weights[self.workers.start : self.workers.stop]
                kernels.mix(x[..., piece], local, remote, self.workers.start, self.scratch)
            shared.release()

        return finish

    def _crossings(self, pieces: Sequence[Terms]) -> _Crossings:
        everything = [
            Row(j, h, peer, 0) for h, weights in enumerate(pieces) for j, peer in self._needed_elsewhere(weights)
        ]
        numbered = [row._replace(tag=tag) for tag, row in enumerate(everything)]
        first, mine = self.workers.start, [row for row in numbered if row.peer == self.rank]
        return _Crossings(
            [row._replace(worker=row.worker - first) for row in numbered if self.owner[row.worker] == self.rank],
            [row._replace(peer=self.owner[row.worker]) for row in mine],
            [[row.worker for row in mine if row.piece == h] for h in range(len(pieces))],
        )

    def _needed_elsewhere(self, weights: Terms) -> list[tuple[int, int]]:
        """(worker j, process p), sorted, for each row j that another process p needs."""
        return sorted(
            {(j, self.owner[i]) for i, terms in enumerate(weights) for j, _ in terms if self.owner[j] != self.owner[i]}
        )

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        pieces, widths = self.schedule.slices(y.shape[-1]), self.piece_widths(y.shape[-1])
        links = [link._replace(width=widths[h]) for link, h in self._cut_links]
        fresh, remote = self.transport.open(m, links)
        going = {link.row: place for link, place in zip(links, remote, strict=True) if place is not None}
        going |= {row: fresh[back, : widths[h]] for row, back, h in self._inner_links}
        for (edges, stars), piece, width in zip(self.stars, pieces, widths, strict=True):
            source = y[:, piece]
            for i, into in stars:
                alone = len(into) == 1 and source[i].is_contiguous()
                for place, over in zip(into, kernels.places(len(into)), strict=True):
                    going.setdefault(edges[place], source[i] if alone else m[edges[into[over]], :width])
            for columns in kernels.blocks(width, 2 * len(edges) + len(y), m):
                block, old = source[:, columns].unbind(0), m[:, :width][:, columns].unbind(0)
                for i, into in stars:
                    incoming = [old[edges[place]] for place in into]
                    self._relay_block(block[i], incoming, [going[edges[place]][columns] for place in into])
        self.transport.deliver(links, [going[link.row] for link in links])
        return fresh

    @cached_property
    def _cut_links(self) -> list[tuple[CutLink, int]]:
        """The links from other processes into this one, each with its piece; widths are filled in later."""
        firsts = np.searchsorted(self.links.dst, [workers.start for workers in self.layout])
        found = []
        for e in self.local_links:
            peer, back = self.owner[int(self.links.src[e])], int(self.links.reverse[e])
            if peer != self.rank:
                link = CutLink(e - self.local_links.start, peer, back - int(firsts[peer]), 0, e, back)
                found.append((link, int(self.links.piece[e])))
        return found

    @cached_property
    def _inner_links(self) -> list[tuple[int, int, int]]:
        """(row of m, row for the message that goes back, piece) of the links between local workers."""
        first = self.local_links.start
        return [
            (e - first, int(self.links.reverse[e]) - first, int(self.links.piece[e]))
            for e in self.local_links
            if self.owner[int(self.links.src[e])] == self.rank
        ]
