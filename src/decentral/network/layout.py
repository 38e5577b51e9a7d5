"""Where the messages of the local workers lie: what follows from rounds and the workers of a process."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from decentral.topology.rounds import RelayEdges, Rounds

Star = tuple[int, list[int]]
"""A local worker with edges, and where among the messages of a piece its own lie."""


class EdgeLayout:
    """The edges and pieces of the rounds of a topology, for the workers that this process hosts."""

    def __init__(self, rounds: Rounds, workers: range) -> None:
        self.rounds = rounds
        self.workers = workers  # the local ones
        self.n = rounds.num_workers

    def piece_widths(self, num_coordinates: int) -> list[int]:
        """How many coordinates each piece has."""
        return [len(range(num_coordinates)[piece]) for piece in self.rounds.slices(num_coordinates)]

    @cached_property
    def edges(self) -> RelayEdges:
        """All edges; asked for by algorithms that relay, whose topology has been checked to be static and
        undirected."""
        return self.rounds.edges()

    @cached_property
    def local_edges(self) -> range:
        """The edges into local workers: consecutive, by the order of `RelayEdges`."""
        first, last = np.searchsorted(self.edges.dst, [self.workers.start, self.workers.stop])
        return range(int(first), int(last))

    @cached_property
    def stars(self) -> list[tuple[list[int], list[Star]]]:
        """For each piece: its rows of m, and for each local worker with edges where among those its messages lie."""
        local = slice(self.local_edges.start, self.local_edges.stop)
        found = []
        for h in range(self.rounds.num_pieces):
            rows = np.flatnonzero(self.edges.piece[local] == h)
            receivers, first = np.unique(self.edges.dst[local][rows] - self.workers.start, return_index=True)
            bounds = [*first.tolist(), len(rows)]
            stars = [(i, list(range(*bounds[place : place + 2]))) for place, i in enumerate(receivers.tolist())]
            found.append((rows.tolist(), stars))
        return found

    @cached_property
    def _local_nodes(self) -> Tensor:
        """For each local edge, the number of its receiver's piece: local worker * d + piece."""
        local = slice(self.local_edges.start, self.local_edges.stop)
        d = self.rounds.num_pieces
        return torch.from_numpy((self.edges.dst[local] - self.workers.start) * d + self.edges.piece[local])

    @cached_property
    def _edges_of_piece(self) -> list[int]:
        return np.bincount(self.edges.piece, minlength=self.rounds.num_pieces).tolist()

    @cached_property
    def _edge_tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(getattr(self.edges, name)) for name in ("src", "dst", "piece", "reverse")}
