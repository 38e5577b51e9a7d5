"""One peer per round, over any static graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, directed, undirected
from decentral.topology.static import Direction
from decentral.topology.topology import GraphTopology, Repeating, Weights, check_choice, graphs_of, topology_of


@dataclass
class OnePeer(GraphTopology):
    """A time-varying graph: in round t a worker sends to one of its out-neighbors in another topology, each in turn.

    The other topology is `graph`, with its settings: `direction` of a ring, `base` of exponential graphs, `center` of a
    star, `rows` of a grid, `path` and `directed` of a file; null is its default. Worker i sorts its out-neighbors j
    clockwise, by (j - i) mod n, and in round t sends to number t mod outdeg_i. The rounds repeat after the least common
    multiple of the outdegrees. With graph=exponential this is one_peer_exponential.

    If all workers have neighbors at equal distances (ring, exponential), each worker receives one message per round,
    and push and pull weights are the same doubly stochastic matrix. Otherwise (star, grid) a worker may receive none or
    many. Push weights (the default) then need push-sum, algo=sgp; with pull weights the workers would reach consensus
    on a wrong mean. With weights=metropolis every edge of a round goes both ways, which is symmetric and doubly
    stochastic on any graph.

    Source: Ying et al., "BlueFog", 2021 (its dynamic one-peer schedule).
    """

    name: str = "one_peer"
    graph: str = "exponential"
    path: str | None = field(default=None, metadata={"content": True})
    directed: bool | None = field(default=None, metadata={"older": None})
    direction: Direction | None = field(default=None, metadata={"older": None})
    base: int | None = field(default=None, metadata={"older": None})
    center: int | None = field(default=None, metadata={"older": None})
    rows: int | None = field(default=None, metadata={"older": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, self.graph, self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        """Return the settings of the other topology; None if not given."""
        return {key: getattr(self, key) for key in ("path", "directed", "direction", "base", "center", "rows")}

    def notes(self) -> tuple[str, ...]:
        """Return the notes of the other topology."""
        return topology_of(self.graph, self._settings).notes()

    def graphs(self, num_workers: int) -> Repeating:
        """Return round t: i -> its (t mod outdeg_i)-th out-neighbor. Raise ConfigError if `graph` is time-varying."""
        given = graphs_of(self.graph, self._settings, num_workers)
        if len(given) > 1:
            raise ConfigError(
                f"topology=one_peer takes the edges of a static graph in turn, but topology.graph={self.graph} changes "
                f"with the round for num_workers={num_workers}: choose a static one, or use topology={self.graph}."
            )
        pieces = [ClockwiseTargets(A) for A in given[0]]
        period = math.lcm(*(int(degree) for piece in pieces for degree in np.unique(piece.degree)))
        join = undirected if self.weights is Weights.metropolis else directed

        def graphs(t: int) -> tuple[Graph, ...]:
            return tuple(join(piece.num_workers, piece.source, piece.of_round(t)) for piece in pieces)

        return self.repeating(num_workers, period, graphs)


class ClockwiseTargets:
    """The out-neighbors j of each worker i, by increasing (j - i) mod n."""

    def __init__(self, graph: Graph) -> None:
        n = self.num_workers = graph.num_workers
        order = np.argsort(graph.src * n + (graph.dst - graph.src) % n)
        self._targets = graph.dst[order]
        self.source = np.flatnonzero(graph.outdegree)
        """The workers with out-neighbors, ascending: int64 [m]."""
        self.degree = graph.outdegree[self.source]
        """Their outdegrees: int64 [m]."""
        self._first = np.cumsum(self.degree) - self.degree

    def of_round(self, t: int) -> np.ndarray:
        """Return target number t mod degree of each sender: int64 [m]."""
        return self._targets[self._first + t % self.degree]
