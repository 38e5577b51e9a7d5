"""All workers in this process: communication is indexing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decentral.host.machine import Lazy
from decentral.network import kernels
from decentral.network.network import Network
from decentral.network.payload import Known, Payload, Sizes, Star
from decentral.topology.delivery import Exchange, Losses, Neighbors
from decentral.topology.rounds import Rounds, slices

if TYPE_CHECKING:
    from decentral.network import sums
else:
    sums = Lazy("decentral.network.sums")  # it imports Triton


class LocalNetwork(Network):
    """The simulator: k = n. On long rows every operation works in place, with a block of columns as scratch memory."""

    def __init__(self, rounds: Rounds, losses: Losses) -> None:
        super().__init__(rounds, range(rounds.num_workers), losses)
        self._relay_tables: dict[int, kernels.RelayTable] = {}
        self._indices: dict[torch.device, list[Tensor]] = {}  # for each piece, its rows of m

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows themselves."""
        return rows.cpu()

    def average(self, x: Tensor) -> Tensor:
        """Return 1/n sum_j x_j: [n, P] -> [P]."""
        return kernels.mean_of(x)

    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        """Defer all work to the end: there are no messages."""
        return lambda: self._mix(x, exchange) if exchange.pieces else self._mean(x)

    def _mix(self, x: Tensor, exchange: Exchange) -> None:
        pieces, memo = slices(x.shape[-1], len(exchange.pieces), exchange.split), exchange.memo
        if "widest" not in memo:
            memo["widest"] = max(int(np.diff(W.starts).max()) for W in exchange.pieces)
        if exchange.combine is None and kernels.small(x, 8 * memo["widest"]):
            if "tables" not in memo:
                memo["tables"] = [kernels.mixing_table(W) for W in exchange.pieces]
            for piece, table in zip(pieces, memo["tables"], strict=True):
                x[..., piece] = kernels.mix_small(x[..., piece], table)
            return
        for h, piece in enumerate(pieces):
            self._mix_piece(x[..., piece], {}, exchange, h)

    def _push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        """Push all shares before collecting any, so that none needs storage. Column h of p is for piece h."""
        self._mix(x, shares)
        self._mix(p, shares)
        return x, p

    def _mean_of_all(self, x: Tensor) -> Tensor:
        return x.copy_(kernels.mean_of(x))

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        if kernels.small(m, 8):  # relaying reads more than it writes
            if y.shape[-1] not in self._relay_tables:
                pieces = self.rounds.slices(y.shape[-1])
                self._relay_tables[y.shape[-1]] = kernels.RelayTable(self.edges, pieces, y.shape[-1])
            return self._relay_tables[y.shape[-1]].relay(y, m)
        if m.device not in self._indices:
            self._indices[m.device] = [torch.tensor(edges, device=m.device) for edges, _ in self.stars]
        pieces, indices, reverse = self.rounds.slices(y.shape[-1]), self._indices[m.device], self._reverse
        for h, ((edges, stars), piece, index) in enumerate(zip(self.stars, pieces, indices, strict=True)):
            source = y[:, piece]
            if kernels.on_gpu(m):
                width = m[:, : source.shape[1]]
                if sums.written(self._sums, h, partial(_relayed, edges, stars, reverse), width, source, width):
                    continue
            for columns in kernels.blocks(source.shape[-1], 2 * len(edges), m):
                block, fresh = source[:, columns].unbind(0), m[:, columns].unbind(0)
                before = self.scratch.rows(m, len(edges), block[0].numel())
                old = torch.index_select(m[:, columns], 0, index, out=before).unbind(0)
                for i, into in stars:
                    incoming = [old[place] for place in into]
                    self._relay_block(block[i], incoming, [fresh[reverse[edges[place]]] for place in into])
        return m

    def _everybodys_sizes(self, payloads: Sequence[Payload]) -> list[Sizes]:
        return [payload.sizes for payload in payloads]

    def _allgather(self, payloads: Sequence[Payload], known: Known) -> list[Payload]:
        return list(payloads)

    def _broadcast(self, payload: Payload | None, root: int, sizes: Sizes) -> Payload:
        assert payload is not None
        return payload

    def _swap(self, payloads: Sequence[Payload], neighbors: Neighbors, known: Known) -> list[dict[int, Payload]]:
        found: list[dict[int, Payload]] = [{} for _ in payloads]
        for j, i in zip(neighbors.src.tolist(), neighbors.dst.tolist(), strict=True):
            found[i][j] = payloads[j]
        return found

    def _relay_payloads(self, payloads: Sequence[Payload], sizes: Sequence[Sizes]) -> list[Payload]:
        return [payloads[back] for back in self._reverse]

    @cached_property
    def _reverse(self) -> list[int]:
        return self.edges.reverse.tolist()


def _relayed(edges: Sequence[int], stars: Sequence[Star], reverse: Sequence[int]) -> sums.Plan:
    """Return the sums of `relay`: (the sender's row, all messages to it except the receiver's)."""
    places, own, others = [], [], []
    for i, into in stars:
        for place in into:
            places.append(reverse[edges[place]])
            own.append([(i, 1.0)])
            others.append([(edges[other], 1.0) for other in into if other != place])
    return places, [own, others]
