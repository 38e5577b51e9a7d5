"""Random regular graphs, one for the whole run or another one in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.drawn import DRAWN_ROUNDS, generator_of, usual_degree
from decentral.topology.graph import Graph, is_connected, undirected
from decentral.topology.topology import MAX_ROUNDS, GraphTopology, Repeating

_ATTEMPTS = 1000


@dataclass
class RandomRegular(GraphTopology):
    """A random graph in which every worker has `degree` neighbours; with changing=true another one in every round.

    Metropolis weights are 1 / (degree + 1) on every edge and on the diagonal. changing=true is Epidemic Learning's
    oracle (EL-Oracle); topology=epidemic is EL-Local.

    degree        s; null: ceil(log2 n), and one more where n times that is odd, for which there is no such graph
    changing      whether every round has a graph of its own. A graph for all rounds is drawn until it is connected;
                  those of single rounds need not be
    seed          with the round, the only thing that draws depend on: all workers know them, none is sent
    drawn_rounds  with changing=true: after so many rounds the same graphs come again, in the same order

    Drawn by pairing the s ends of each worker at random, and exchanging the ends of loops and of edges that are there
    twice with those of edges drawn at random until there are none: about, not exactly, uniform. de Vos et al., NeurIPS
    2023 (paper's text not checked); their code takes networkx's graphs, and adds edges where one is not connected,
    which is then not regular.
    """

    name: str = "random_regular"
    degree: int | None = None
    changing: bool = False
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS, when="changing")

    def graphs(self, num_workers: int) -> Repeating:
        """The graph of every round; ConfigError where there is no regular (for all rounds: connected) one."""
        n, degree = num_workers, self._degree(num_workers)
        if self.changing:
            return self.repeating(n, self.drawn_rounds, lambda round: (self._drawn(n, degree, round, 0),))
        if n > 2 and degree < 2:
            raise ConfigError(
                f"topology.degree={degree} leaves num_workers={n} in pairs that never hear of each other: use 2 or "
                "more, or topology.changing=true."
            )
        found = (self._drawn(n, degree, 0, attempt) for attempt in range(_ATTEMPTS))
        connected = next((graph for graph in found if n == 1 or is_connected(graph)), None)
        if connected is None:
            raise ConfigError(
                f"topology={self.name} found no connected graph with topology.degree={degree} for num_workers={n} in "
                f"{_ATTEMPTS} draws: use a larger topology.degree."
            )
        return self.repeating(n, 1, lambda round: (connected,))

    def _degree(self, n: int) -> int:
        if self.degree is None:
            usual = usual_degree(n)
            return usual + n * usual % 2
        if not min(1, n - 1) <= self.degree <= n - 1:
            raise ConfigError(
                f"topology.degree={self.degree} is how many of the {n - 1} others of num_workers={n} a worker talks "
                f"to: use 1 to {max(1, n - 1)}."
            )
        if n * self.degree % 2:
            raise ConfigError(
                f"topology.degree={self.degree} and num_workers={n} are both odd, and there is no such graph: use "
                f"topology.degree={self.degree + 1}, or an even num_workers."
            )
        return self.degree

    def _drawn(self, n: int, degree: int, round: int, attempt: int) -> Graph:
        if degree > (n - 1) / 2:  # of dense graphs it is quicker to draw what is not there
            missing = _regular(n, n - 1 - degree, generator_of(self.seed, self.name, n, round, attempt))
            there = ~np.eye(n, dtype=bool)
            there[missing[:, 0], missing[:, 1]] = there[missing[:, 1], missing[:, 0]] = False
            return Graph.of(there)
        edges = _regular(n, degree, generator_of(self.seed, self.name, n, round, attempt))
        return undirected(n, edges[:, 0], edges[:, 1])


def _regular(n: int, degree: int, generator: np.random.Generator) -> np.ndarray:
    """The edges of a random graph with this degree, each once: int64 [n degree / 2, 2]."""
    edges = generator.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    while True:
        low, high = edges.min(axis=1), edges.max(axis=1)
        key = low * n + high
        order = np.argsort(key, kind="stable")
        repeated = np.zeros(len(edges), dtype=bool)
        repeated[order[1:]] = key[order][1:] == key[order][:-1]
        bad = np.flatnonzero(repeated | (low == high))
        if not len(bad):
            return edges
        for edge, other in zip(bad, generator.integers(len(edges), size=len(bad)), strict=True):
            edges[edge, 1], edges[other, 1] = edges[other, 1], edges[edge, 1]
