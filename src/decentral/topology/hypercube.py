"""The hypercube."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Hypercube(GraphTopology):
    """Worker i talks to the workers whose numbers differ from i in one bit; n must be a power of two."""

    name: str = "hypercube"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """i -- i xor 2^k; ConfigError unless n is a power of two."""
        below = 1 << (num_workers.bit_length() - 1)
        if num_workers != below:
            raise ConfigError(
                f"topology=hypercube needs a power of two, not num_workers={num_workers}: "
                f"use num_workers={below} or {2 * below}."
            )
        i, bit = np.arange(num_workers)[:, None], 1 << np.arange(num_workers.bit_length() - 1)
        return [(undirected(num_workers, i, i ^ bit),)]
