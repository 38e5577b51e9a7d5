"""Where the messages of the local workers lie: what follows from a schedule and the workers of a process."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from decentral.topology.facts import mean_delay
from decentral.topology.schedule import Links, Schedule


class Layout:
    """The links and pieces of a schedule, for the workers that this process hosts."""

    def __init__(self, schedule: Schedule, workers: range) -> None:
        self.schedule = schedule
        self.workers = workers  # the local ones

    def piece_widths(self, num_coordinates: int) -> list[int]:
        """How many coordinates each piece has."""
        return [len(range(num_coordinates)[piece]) for piece in self.schedule.slices(num_coordinates)]

    @cached_property
    def links(self) -> Links:
        """All links; asked for by algorithms that relay, whose topology has been checked to be static and
        undirected."""
        return self.schedule.links()

    @cached_property
    def local_links(self) -> range:
        """The links into local workers: consecutive, by the order of `Links`."""
        first, last = np.searchsorted(self.links.dst, [self.workers.start, self.workers.stop])
        return range(int(first), int(last))

    @cached_property
    def stars(self) -> list[tuple[list[int], list[tuple[int, list[int]]]]]:
        """For each piece: its rows of m, and for each local worker with links where among those its messages lie."""
        first, found = self.local_links.start, []
        for h in range(self.schedule.num_pieces):
            edges = [e for e in self.local_links if self.links.piece[e] == h]
            into: dict[int, list[int]] = {}
            for place, e in enumerate(edges):
                into.setdefault(int(self.links.dst[e]) - self.workers.start, []).append(place)
            found.append(([e - first for e in edges], list(into.items())))
        return found

    @cached_property
    def _local_nodes(self) -> Tensor:
        """For each local link, the number of its receiver's piece: local worker * d + piece."""
        local = slice(self.local_links.start, self.local_links.stop)
        d = self.schedule.num_pieces
        return torch.from_numpy((self.links.dst[local] - self.workers.start) * d + self.links.piece[local])

    @cached_property
    def _links_of_piece(self) -> list[int]:
        return np.bincount(self.links.piece, minlength=self.schedule.num_pieces).tolist()

    @cached_property
    def _link_tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(getattr(self.links, name)) for name in ("src", "dst", "piece", "reverse")}

    @cached_property
    def _mean_delays(self) -> dict[bool, float]:
        return {overlap: mean_delay(self.schedule, overlap) for overlap in (False, True)}
