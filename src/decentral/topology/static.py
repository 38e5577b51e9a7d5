"""Static undirected graphs: ring, complete graph, cliques, grid, torus, hypercube, and a social network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.graph import Graph, complete, directed, undirected
from decentral.topology.topology import GraphTopology


class Direction(Enum):
    """Direction of messages: both, only from i to i-1, or only from i to i+1."""

    both = "both"
    left = "left"
    right = "right"


@dataclass
class Ring(GraphTopology):
    """A cycle: worker i exchanges with workers i-1 and i+1 modulo n. For two workers this is a single edge.

    With `direction` both, all weights are 1/3 (1/2 for two workers). left: worker i sends to i-1 only; right: to i+1
    only. Then both weights are one half, which is doubly stochastic but not symmetric.
    """

    name: str = "ring"
    direction: Direction = field(default=Direction.both, metadata={"older": Direction.both})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return 0 -- 1 -- ... -- n-1 -- 0, or one direction of it."""
        i = np.arange(num_workers)
        right = (i + 1) % num_workers
        if self.direction is Direction.both:
            return [(undirected(num_workers, i, right),)]
        source, target = (i, right) if self.direction is Direction.right else (right, i)
        return [(directed(num_workers, source, target),)]


@dataclass
class Complete(GraphTopology):
    """Complete graph: one round of mixing is the exact average."""

    name: str = "complete"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return i -- j for all i != j."""
        return [(complete(num_workers),)]


@dataclass
class Cliques(GraphTopology):
    """Complete graphs of consecutive workers, whose first workers form a ring; two cliques share one bridge.

    count  number of cliques, whose sizes differ by at most one; at most the number of workers
    """

    name: str = "cliques"
    count: int = setting(2, at_least=1)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return i -- j within a clique, and first -- first of the next."""
        cliques = np.array_split(np.arange(num_workers), min(self.count, num_workers))
        inside = [tuple(clique[end] for end in np.triu_indices(len(clique), 1)) for clique in cliques]
        one, other = (np.concatenate(ends) for ends in zip(*inside, strict=True))
        first = np.array([clique[0] for clique in cliques])
        return [(undirected(num_workers, one, other) | undirected(num_workers, first, np.roll(first, -1)),)]


@dataclass
class Grid(GraphTopology):
    """A two-dimensional mesh without wrap-around, as square as the number of workers allows.

    Worker r * columns + c is in row r and column c. Without `rows`, the shape is the closest pair of factors of n
    with rows <= columns; a prime n gives a path.
    """

    name: str = "grid"
    rows: int | None = setting(None, at_least=1)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the edges within rows and columns. Raise ConfigError if `rows` does not divide n."""
        place = np.arange(num_workers).reshape(self._rows(num_workers), -1)
        right, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        return [(undirected(num_workers, *right) | undirected(num_workers, *down),)]

    def _rows(self, num_workers: int) -> int:
        """Return the number of rows: as configured, else the largest factor of n up to its square root."""
        factors = [f for f in range(1, num_workers + 1) if num_workers % f == 0]
        if self.rows is None:
            return max(f for f in factors if f * f <= num_workers)
        if self.rows not in factors:
            raise ConfigError(
                f"topology.rows={self.rows} does not divide num_workers={num_workers}: "
                f"choose one of {', '.join(map(str, factors))}, or leave it out."
            )
        return self.rows


@dataclass
class Torus(Grid):
    """A two-dimensional mesh with wrap-around, as square as the number of workers allows.

    The layout of `grid`, plus an edge from the end of every row and column to its beginning. It is a simple graph,
    without loops or double edges for sides of length 1 or 2, so a prime n gives a ring.
    """

    name: str = "torus"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the edges within rows and columns, with wrap-around."""
        place = np.arange(num_workers).reshape(self._rows(num_workers), -1)
        right, down = np.roll(place, -1, axis=1), np.roll(place, -1, axis=0)
        return [(undirected(num_workers, place, right) | undirected(num_workers, place, down),)]


@dataclass
class Hypercube(GraphTopology):
    """A hypercube: worker i exchanges with the workers whose numbers differ from i in one bit; n is a power of two."""

    name: str = "hypercube"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return i -- i xor 2^k. Raise ConfigError unless n is a power of two."""
        below = 1 << (num_workers.bit_length() - 1)
        if num_workers != below:
            raise ConfigError(
                f"topology=hypercube needs a power of two, not num_workers={num_workers}: "
                f"use num_workers={below} or {2 * below}."
            )
        i, bit = np.arange(num_workers)[:, None], 1 << np.arange(num_workers.bit_length() - 1)
        return [(undirected(num_workers, i, i ^ bit),)]


_NUM_WORKERS = 32


@dataclass
class Social(GraphTopology):
    """The Davis southern women network: 18 women and the 14 events they met at, 89 edges; num_workers=32 only.

    The vertices are numbered as networkx lists them, women first. Vogels et al., NeurIPS 2021, section 5.2 and
    Figure 3.
    """

    name: str = "social"

    def implied_num_workers(self) -> int:
        """Return 32."""
        return _NUM_WORKERS

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the 89 edges of the network. Raise ConfigError unless n = 32."""
        if num_workers != _NUM_WORKERS:
            raise ConfigError(
                f"topology=social is a fixed network of {_NUM_WORKERS} workers, not {num_workers}: use "
                f"num_workers={_NUM_WORKERS}."
            )
        import networkx as nx  # type: ignore[import-untyped]

        network = nx.davis_southern_women_graph()
        number = {vertex: i for i, vertex in enumerate(network)}
        one, other = np.array([(number[u], number[v]) for u, v in network.edges]).T
        return [(undirected(num_workers, one, other),)]
