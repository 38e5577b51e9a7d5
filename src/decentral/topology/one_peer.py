"""One peer at a time, over any static graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.another import check_choice, graphs_of
from decentral.topology.graph import directed
from decentral.topology.topology import GraphTopology, Repeating
from decentral.topology.weights import Weights


@dataclass
class OnePeer(GraphTopology):
    """Changing: in round t a worker sends to one of those that it sends to in another topology, to each in turn.

    The other topology is `graph`, with its own defaults; `path` is for graph=file. Worker i takes its out-neighbours j
    in clockwise order, by (j - i) mod n, and in round t sends to number t mod outdeg_i. The rounds repeat after the
    least common multiple of the outdegrees. With graph=exponential this is one_peer_exponential.

    Where everybody has equally many neighbours at equal distances (ring, exponential), each worker receives one
    message a round, and push and pull weights are the same doubly stochastic matrix. Elsewhere (star, grid) a worker
    may receive none or many. Push weights (the default) then need push-sum, algo=sgp; pull weights would make the
    workers agree on a wrong mean. With weights=metropolis every edge of a round goes both ways, which is symmetric and
    doubly stochastic whatever the graph.

    Source: Ying et al., "BlueFog", 2021 (its dynamic one-peer schedule).
    """

    name: str = "one_peer"
    graph: str = "exponential"
    path: str | None = field(default=None, metadata={"content": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, self.graph, self.path)

    def graphs(self, num_workers: int) -> Repeating:
        """Round t: i -> its (t mod outdeg_i)-th out-neighbour; ConfigError if `graph` changes with the round."""
        given = graphs_of(self.graph, self.path, num_workers)
        if len(given) > 1:
            raise ConfigError(
                f"topology=one_peer takes the edges of a static graph in turn, but topology.graph={self.graph} changes "
                f"with the round for num_workers={num_workers}: choose a static one, or use topology={self.graph}."
            )
        pieces = [clockwise_targets(A) for A in given[0]]
        period = math.lcm(*(len(targets) for piece in pieces for targets in piece if len(targets)))
        return self.repeating(num_workers, period, lambda t: tuple(self._round(piece, t) for piece in pieces))

    def _round(self, targets: list[np.ndarray], t: int) -> np.ndarray:
        """The graph of round t, given everybody's out-neighbours in order."""
        source = [i for i, of_i in enumerate(targets) if len(of_i)]
        target = [targets[i][t % len(targets[i])] for i in source]
        A = directed(len(targets), np.array(source, dtype=np.int64), np.array(target, dtype=np.int64))
        return A | A.T if self.weights is Weights.metropolis else A


def clockwise_targets(A: np.ndarray) -> list[np.ndarray]:
    """[n] arrays: the workers j that i sends to, by increasing (j - i) mod n."""
    n = len(A)
    return [(i + np.flatnonzero(np.roll(A[:, i], -i))) % n for i in range(n)]
