"""The ring."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from decentral.topology.graph import Graph, directed, undirected
from decentral.topology.topology import GraphTopology


class Direction(Enum):
    """Which way messages go: both ways, only from i to i-1, or only from i to i+1."""

    both = "both"
    left = "left"
    right = "right"


@dataclass
class Ring(GraphTopology):
    """A cycle: worker i talks to workers i-1 and i+1 modulo n. For two workers this is a single edge.

    With `direction` both, all weights are 1/3 (1/2 for two workers). left: worker i sends to i-1 only; right: to i+1
    only. Then it keeps one half and takes one half, which is doubly stochastic but not symmetric.
    """

    name: str = "ring"
    direction: Direction = field(default=Direction.both, metadata={"older": Direction.both})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """0 -- 1 -- ... -- n-1 -- 0, or one way around."""
        i = np.arange(num_workers)
        right = (i + 1) % num_workers
        if self.direction is Direction.both:
            return [(undirected(num_workers, i, right),)]
        source, target = (i, right) if self.direction is Direction.right else (right, i)
        return [(directed(num_workers, source, target),)]
