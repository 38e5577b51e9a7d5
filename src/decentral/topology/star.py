"""The star."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Star(GraphTopology):
    """The worker `center` talks to all others, and they only to it.

    With metropolis weights all edges and the centre itself have weight 1/n and a leaf keeps 1 - 1/n; |lambda_2| is
    1 - 1/n for n > 2.
    """

    name: str = "star"
    center: int = field(default=0, metadata={"older": 0})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """center -- i for all i != center; ConfigError if there is no such worker."""
        if not 0 <= self.center < num_workers:
            raise ConfigError(
                f"topology.center={self.center} is not a worker: with num_workers={num_workers} "
                f"use 0 to {num_workers - 1}."
            )
        i = np.arange(num_workers)
        return [(undirected(num_workers, np.full_like(i, self.center), i),)]
