"""All workers in this process: rows are moved by indexing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from decentral.network import gathered, kernels
from decentral.network.network import Network
from decentral.network.rounds import Exchange, Losses
from decentral.topology.schedule import Schedule, slices


class LocalNetwork(Network):
    """The simulator: k = n. On long rows every verb works in place, with one block of columns as scratch memory."""

    def __init__(self, schedule: Schedule, losses: Losses) -> None:
        super().__init__(schedule, range(schedule.num_workers), losses)
        self._relay_tables: dict[int, gathered.RelayTable] = {}

    def gather(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows.cpu()

    def average(self, x: Tensor) -> Tensor:
        """1/n sum_j x_j: [n, P] -> [P]."""
        return x.mean(0)

    def _begin(self, x: Tensor, exchange: Exchange) -> Callable[[], object]:
        """Nothing travels: all is done at the end."""
        return lambda: self._mix(x, exchange) if exchange.pieces else self._mean(x)

    def _mix(self, x: Tensor, exchange: Exchange) -> None:
        pieces = slices(x.shape[-1], len(exchange.pieces), exchange.split)
        if "widest" not in exchange.memo:
            exchange.memo["widest"] = max(len(terms) for weights in exchange.pieces for terms in weights)
        if gathered.small(x, 8 * exchange.memo["widest"]):
            if "tables" not in exchange.memo:
                exchange.memo["tables"] = [gathered.mixing_table(weights) for weights in exchange.pieces]
            for piece, table in zip(pieces, exchange.memo["tables"], strict=True):
                x[..., piece] = gathered.mix(x[..., piece], table)
            return
        for piece, weights in zip(pieces, exchange.pieces, strict=True):
            kernels.mix(x[..., piece], weights, {}, 0, self.scratch)

    def _push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        """All leave their shares before all take theirs, so that none has to be kept. Column h of p is for piece h."""
        self._mix(x, shares)
        self._mix(p, shares)
        return x, p

    def _mean(self, x: Tensor) -> Tensor:
        kernels.average_rows(x)
        return x

    def _relay(self, y: Tensor, m: Tensor) -> Tensor:
        if not len(m):
            return m
        pieces, reverse = self.schedule.slices(y.shape[-1]), self.links.reverse.tolist()
        if gathered.small(m, 8):  # relaying gathers more than once what it writes
            return self._relay_table(y.shape[-1]).relay(y, m)
        for h, (edges, stars) in enumerate(self.stars):
            source, index = y[:, pieces[h]], self._index_of_piece[h]
            for columns in kernels.blocks(source.shape[-1], 2 * len(edges), m):
                block, fresh = source[:, columns].unbind(0), m[:, columns].unbind(0)
                before = self.scratch.rows(m, len(edges), block[0].numel())
                old = torch.index_select(m[:, columns], 0, index, out=before).unbind(0)
                for i, into in stars:
                    incoming = [old[place] for place in into]
                    self._relay_block(block[i], incoming, [fresh[reverse[edges[place]]] for place in into])
        return m

    def _relay_table(self, num_coordinates: int) -> gathered.RelayTable:
        if num_coordinates not in self._relay_tables:
            pieces = self.schedule.slices(num_coordinates)
            self._relay_tables[num_coordinates] = gathered.RelayTable(self.links, pieces, num_coordinates)
        return self._relay_tables[num_coordinates]

    @cached_property
    def _index_of_piece(self) -> list[Tensor]:
        return [torch.tensor(edges) for edges, _ in self.stars]
