"""The complete graph."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.topology.graph import Graph, complete
from decentral.topology.topology import GraphTopology


@dataclass
class Complete(GraphTopology):
    """Every worker talks to every other one: one round of mixing is the exact average."""

    name: str = "complete"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """i -- j for all i != j."""
        return [(complete(num_workers),)]
