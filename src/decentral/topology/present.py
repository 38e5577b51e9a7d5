"""Mixing matrices among the workers that are present: the others keep what they have. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from decentral.topology.graph import Graph, is_undirected
from decentral.topology.mixing_matrix import MixingMatrix, row_sums
from decentral.topology.rounds import Phase, Rounds

_NUMBERS_KEPT = 128
_TOLERANCE = 1e-9


class Absent(Enum):
    """What becomes of the graph while workers are absent."""

    rerouted = "rerouted"
    induced = "induced"


class Weights(Enum):
    """How those weigh each other who are left of an induced graph."""

    auto = "auto"
    metropolis = "metropolis"
    keep = "keep"


@dataclass(frozen=True)
class PresentRule:
    """How rounds become those of the workers that are present."""

    absent: Absent
    weights: Weights
    schedule: Callable[[int], Rounds]
    """m -> the rounds of the topology for m workers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", lru_cache(_NUMBERS_KEPT)(self.schedule))

    def among(self, rounds: Rounds, present: np.ndarray) -> Rounds:
        """The rounds that those of the present are made of."""
        if self.absent is Absent.induced:
            return rounds
        if (m := int(present.sum())) > 1:
            return self.schedule(m)
        d = rounds.num_pieces  # a worker that is alone has no topology
        return Rounds(m, lambda round: (MixingMatrix.identity(m),) * d, num_pieces=d)

    def phases(self, rounds: Rounds, present: np.ndarray, round: int, lazy: bool) -> list[Phase]:
        """The exchanges of a round among `present` [n]; lazy: with (W + I) / 2 where it is a single one."""
        phases = self.among(rounds, present).phases(round)
        halve = lazy and len(phases) == 1
        found = []
        for phase in phases:
            matrices = [self.matrix(W, present) for W in phase.matrices]
            found.append(Phase(tuple(W.lazy if halve else W for W in matrices), phase.split))
        return found

    def mixing(self, rounds: Rounds, present: np.ndarray, round: int) -> tuple[MixingMatrix, ...]:
        """The matrices of a round, one for each piece."""
        return tuple(self.matrix(W, present) for W in self.among(rounds, present).mixing(round))

    def matrix(self, W: MixingMatrix, present: np.ndarray) -> MixingMatrix:
        """W of the present alone, or of all, as one of all workers [n, n] in which the absent keep what they have."""
        if self.absent is Absent.rerouted:
            return embedded(W, present)
        return restricted(W, present, self.weights)


def embedded(W: MixingMatrix, present: np.ndarray) -> MixingMatrix:
    """A matrix [m, m] as that of the m workers that are present, in the order of their numbers, among all [n]."""
    who, away = np.flatnonzero(present), np.flatnonzero(~present)
    src, dst = np.concatenate([who[W.src], away]), np.concatenate([who[W.dst], away])
    return MixingMatrix.of_entries(len(present), src, dst, np.concatenate([W.weight, np.ones(len(away))]))


def restricted(W: MixingMatrix, present: np.ndarray, weights: Weights) -> MixingMatrix:
    """W with the edges among `present` [n] alone; the absent keep what they have.

    - metropolis: W_ij = 1 / (1 + max(deg_i, deg_j)), degrees among those that are present.
    - keep: W_ij stays, and a worker keeps for itself what it took from the absent.
    - auto: metropolis where W is the metropolis matrix of its graph, keep where it is another symmetric one. Where it
      is none: W_ij = 1 / (1 + outdeg_j) within strongly connected components, so that nobody gives all its mass away;
      pull weights, whose rows alone sum to one, stay pull weights.

    Doubly stochastic where W is symmetric, column-stochastic where it is, and row-stochastic where it is no more.
    """
    edges = W.src != W.dst
    left = edges & present[W.src] & present[W.dst]
    graph = Graph(W.num_workers, W.src[left], W.dst[left])
    symmetric = W.is_symmetric(_TOLERANCE)
    if weights is Weights.auto and symmetric:
        usual = _metropolis(W.graph) if is_undirected(W.graph) else np.empty(0)
        same = np.allclose(usual, W.weight[edges], rtol=0, atol=_TOLERANCE)
        weights = Weights.metropolis if same else Weights.keep
    if weights is Weights.keep:
        return _with_the_rest(graph, W.weight[left])
    if weights is Weights.metropolis:
        return _with_the_rest(graph, _metropolis(graph))
    if W.averages and not np.allclose(W.column_sums(), 1):
        share = 1 / (1.0 + graph.indegree)
        return MixingMatrix.on(graph, share[graph.dst], share)
    of = components(graph)
    within = of[graph.src] == of[graph.dst]
    graph = Graph(W.num_workers, graph.src[within], graph.dst[within])
    share = 1 / (1.0 + graph.outdegree)
    return MixingMatrix.on(graph, share[graph.src], share)


def _metropolis(graph: Graph) -> np.ndarray:
    return 1 / (1.0 + np.maximum(graph.outdegree[graph.src], graph.outdegree[graph.dst]))


def _with_the_rest(graph: Graph, weight: np.ndarray) -> MixingMatrix:
    return MixingMatrix.on(graph, weight, 1.0 - row_sums(graph.num_workers, graph.src, graph.dst, weight))


def components(graph: Graph) -> np.ndarray:
    """Of each worker the number of its strongly connected component: int [n]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = graph.num_workers
    edges = coo_array((np.ones(len(graph)), (graph.src, graph.dst)), shape=(n, n))
    found: np.ndarray = connected_components(edges, directed=True, connection="strong")[1]
    return found
