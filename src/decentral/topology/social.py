"""The social network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology

_NUM_WORKERS = 32


@dataclass
class Social(GraphTopology):
    """The Davis southern women network: 18 women and the 14 events they met at, 89 edges; num_workers=32 only.

    The vertices are numbered as networkx lists them, women first. Vogels et al., NeurIPS 2021, section 5.2 and
    Figure 3.
    """

    name: str = "social"

    def implied_num_workers(self) -> int:
        """32."""
        return _NUM_WORKERS

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """The 89 edges of the network; ConfigError unless n = 32."""
        if num_workers != _NUM_WORKERS:
            raise ConfigError(
                f"topology=social is a network of {_NUM_WORKERS} people and events, not {num_workers}: "
                f"use num_workers={_NUM_WORKERS}."
            )
        import networkx as nx  # type: ignore[import-untyped]

        network = nx.davis_southern_women_graph()
        number = {vertex: i for i, vertex in enumerate(network)}
        one, other = np.array([(number[u], number[v]) for u, v in network.edges]).T
        return [(undirected(num_workers, one, other),)]
