"""The ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Ring(GraphTopology):
    """A cycle: worker i talks to workers i-1 and i+1 modulo n. For two workers this is a single edge."""

    name: str = "ring"

    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """0 -- 1 -- ... -- n-1 -- 0."""
        i = np.arange(num_workers)
        return [(undirected(num_workers, i, (i + 1) % num_workers),)]
