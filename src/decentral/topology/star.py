"""The star."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Star(GraphTopology):
    """Worker 0 talks to all others, and they only to it."""

    name: str = "star"

    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """0 -- i for all i >= 1."""
        leaf = np.arange(1, num_workers)
        return [(undirected(num_workers, np.zeros_like(leaf), leaf),)]
