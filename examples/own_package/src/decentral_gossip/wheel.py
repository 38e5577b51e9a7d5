"""A topology in an installed package: the wheel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Wheel(GraphTopology):
    """A ring of workers 1, ..., n - 1 around worker 0, which is a neighbor of all. Needs at least four workers."""

    name: str = "wheel"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """0 -- i for all i, and 1 -- 2 -- ... -- n - 1 -- 1."""
        rim = np.arange(1, num_workers)
        source = np.concatenate([np.zeros_like(rim), rim])
        target = np.concatenate([rim, np.roll(rim, -1)])
        return [(undirected(num_workers, source, target),)]
