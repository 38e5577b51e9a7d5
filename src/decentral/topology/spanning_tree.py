"""Spanning trees of other topologies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.another import check_choice, graphs_of
from decentral.topology.graph import Graph, breadth_first, is_connected, is_undirected, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class SpanningTree(GraphTopology):
    """The shortest-path tree of another topology (`graph`, with its own defaults) from the worker `root`.

    Of all shortest paths from the root to a worker, the one whose sequence of worker numbers is smallest is kept; the
    tree is the union of the kept paths. `path` is for graph=file. Vogels et al., NeurIPS 2021, section 5.2: what the
    spanning tree protocol of Ethernet finds.
    """

    name: str = "spanning_tree"
    graph: str = "social"
    root: int = 0
    path: str | None = field(default=None, metadata={"content": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, self.graph, {"path": self.path})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """The tree; ConfigError if there is no such root, or no spanning tree."""
        if not 0 <= self.root < num_workers:
            raise ConfigError(
                f"topology.root={self.root} is not a worker: with num_workers={num_workers} use 0 to {num_workers - 1}."
            )
        return [(shortest_path_tree(self._base(num_workers), self.root),)]

    def _base(self, num_workers: int) -> Graph:
        """The graph to span, checked to have spanning trees."""
        rounds = graphs_of(self.graph, {"path": self.path}, num_workers)
        wrong = None
        if len(rounds) > 1:
            wrong = "changes with the round"
        elif len(rounds[0]) > 1:
            wrong = f"is {len(rounds[0])} graphs"
        elif not is_undirected(rounds[0][0]):
            wrong = "is directed"
        elif not is_connected(rounds[0][0]):
            wrong = "is not connected"
        if wrong:
            raise ConfigError(
                f"topology=spanning_tree needs one connected undirected graph, but topology.graph={self.graph} {wrong} "
                f"for num_workers={num_workers}: choose another topology.graph, for example social, grid or ring."
            )
        return rounds[0][0]


def shortest_path_tree(A: Graph, root: int) -> Graph:
    """The union of the lexicographically smallest shortest paths from `root` in a connected undirected graph A.

    A breadth-first search that visits neighbours in increasing order leaves its queue sorted by smallest path: paths of
    equal length compare first by the parent's path, then by their last worker. So the first to discover a worker is the
    parent on its smallest path.
    """
    _, parent = breadth_first(A, root)
    return undirected(A.num_workers, np.arange(A.num_workers), parent)
