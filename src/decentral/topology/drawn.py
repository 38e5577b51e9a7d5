"""Random graphs, drawn by (`topology.seed`, round): Epidemic Learning, and regular graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.settings import setting
from decentral.topology.graph import Graph, directed, is_connected, undirected
from decentral.topology.topology import MAX_ROUNDS, GraphTopology, Repeating, Weights

DRAWN_ROUNDS = 256
"""Default number of rounds after which the draws repeat; all are checked before a run."""


def usual_degree(num_workers: int) -> int:
    """Return ceil(log2 n), at most n - 1: random graphs of about this degree mix well."""
    return min(num_workers - 1, max(0, num_workers - 1).bit_length())


def targets(num_workers: int, sends: int, generator: np.random.Generator) -> np.ndarray:
    """Draw `sends` distinct others for each worker, uniformly: int64 [n, sends]."""
    n = num_workers
    if not sends:
        return np.empty((n, 0), dtype=np.int64)
    if 4 * sends * sends > n:  # rejection sampling would rarely succeed
        hops = generator.permuted(np.tile(np.arange(1, n), (n, 1)), axis=1)[:, :sends]
        return np.asarray((np.arange(n)[:, None] + hops) % n)
    hops = np.empty((n, sends), dtype=np.int64)
    again = np.arange(n)
    while len(again):
        drawn = generator.integers(1, n, size=(len(again), sends))
        hops[again] = drawn
        drawn = np.sort(drawn, axis=1)
        again = again[(drawn[:, 1:] == drawn[:, :-1]).any(axis=1)]
    return (np.arange(n)[:, None] + hops) % n


def generator_of(seed: int, topology: str, num_workers: int, round: int, attempt: int = 0) -> np.random.Generator:
    """Return the generator for the draws of a round."""
    return numpy_generator(seed, f"topology {topology}", num_workers, round, attempt)


@dataclass
class Epidemic(GraphTopology):
    """A new directed graph in every round: each worker sends to `sends` distinct others, drawn uniformly (EL-Local).

    A worker averages its model and all received ones equally, W_ij = 1 / (1 + in-degree), the pull weights. They
    preserve consensus, but not the mean: algo=epidemic_learning accepts them, algorithms that need a doubly stochastic
    W do not (with topology.weights=uniform it is for push-sum, algo=sgp). The in-degree is
    Binomial(n - 1, s / (n - 1)) for s = `sends`, and may be 0. EL-Oracle is topology=random_regular
    topology.changing=true.

    sends         number of receivers s; null: ceil(log2 n)
    seed          seed of the draws, with the round: all workers know them, and none is sent
    drawn_rounds  number of rounds after which the same draws repeat, in the same order

    de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires & Sharma, NeurIPS 2023 (paper's text not checked; from the
    authors' code, whose default sharing class weighs by the degrees of the full graph, 1/n each: not copied).
    """

    name: str = "epidemic"
    weights: Weights = Weights.pull
    sends: int | None = None
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS)

    def graphs(self, num_workers: int) -> Repeating:
        """Return the graphs of round t: i -> s others. Raise ConfigError if there are fewer than s."""
        n, sends = num_workers, usual_degree(num_workers) if self.sends is None else self.sends
        if not min(1, n - 1) <= sends <= n - 1:
            raise ConfigError(
                f"topology.sends={sends} is out of range for num_workers={n}: use 1 to {max(1, n - 1)} other workers."
            )

        def graph(round: int) -> tuple[Graph, ...]:
            drawn = targets(n, sends, generator_of(self.seed, self.name, n, round))
            return (directed(n, np.arange(n)[:, None], drawn),)

        return self.repeating(n, self.drawn_rounds, graph)


_ATTEMPTS = 1000


@dataclass
class RandomRegular(GraphTopology):
    """A random graph in which every worker has `degree` neighbors; with changing=true a new one in every round.

    Metropolis weights are 1 / (degree + 1) on every edge and on the diagonal. changing=true is Epidemic Learning's
    oracle (EL-Oracle); topology=epidemic is EL-Local.

    degree        degree s; null: ceil(log2 n), plus one if n times that is odd, for which no such graph exists
    changing      draw a new graph in every round. A graph for all rounds is redrawn until it is connected; graphs of
                  single rounds need not be connected
    seed          seed of the draws, with the round: all workers know them, and none is sent
    drawn_rounds  with changing=true: number of rounds after which the same graphs repeat, in the same order

    The graph comes from a random pairing of the s ends of each worker. Ends of loops and of repeated edges are swapped
    with those of random edges until none remain: approximately, not exactly, uniform. de Vos et al., NeurIPS 2023
    (paper's text not checked); their code takes networkx's graphs and adds edges to disconnected ones, which are then
    not regular.
    """

    name: str = "random_regular"
    degree: int | None = None
    changing: bool = False
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS, when="changing")

    def graphs(self, num_workers: int) -> Repeating:
        """Return the graph of every round. Raise ConfigError if no regular (for all rounds: connected) one exists."""
        n, degree = num_workers, self._degree(num_workers)
        if self.changing:
            return self.repeating(n, self.drawn_rounds, lambda round: (self._drawn(n, degree, round, 0),))
        if n > 2 and degree < 2:
            raise ConfigError(
                f"topology.degree={degree} leaves num_workers={n} in disconnected pairs: use a degree >= 2, or "
                "topology.changing=true."
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
                f"topology.degree={self.degree} is out of range for num_workers={n}: use 1 to {max(1, n - 1)} other "
                "workers."
            )
        if n * self.degree % 2:
            raise ConfigError(
                f"topology.degree={self.degree} and num_workers={n} are both odd, and no such graph exists: use "
                f"topology.degree={self.degree + 1}, or an even num_workers."
            )
        return self.degree

    def _drawn(self, n: int, degree: int, round: int, attempt: int) -> Graph:
        if degree > (n - 1) / 2:  # for dense graphs it is faster to draw the complement
            missing = _regular(n, n - 1 - degree, generator_of(self.seed, self.name, n, round, attempt))
            there = ~np.eye(n, dtype=bool)
            there[missing[:, 0], missing[:, 1]] = there[missing[:, 1], missing[:, 0]] = False
            return Graph.of(there)
        edges = _regular(n, degree, generator_of(self.seed, self.name, n, round, attempt))
        return undirected(n, edges[:, 0], edges[:, 1])


def _regular(n: int, degree: int, generator: np.random.Generator) -> np.ndarray:
    """Return the edges of a random graph with this degree, each once: int64 [n degree / 2, 2]."""
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
