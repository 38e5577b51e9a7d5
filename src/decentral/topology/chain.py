"""The chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Chain(GraphTopology):
    """A path: worker i talks to workers i-1 and i+1, the two ends to one worker only."""

    name: str = "chain"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """0 -- 1 -- ... -- n-1."""
        i = np.arange(num_workers - 1)
        return [(undirected(num_workers, i, i + 1),)]
