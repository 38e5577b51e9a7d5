"""Mixing matrices among the present workers; absent ones keep their models. Pure numpy."""

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
    """The graph while workers are absent."""

    rerouted = "rerouted"
    induced = "induced"


class Weights(Enum):
    """The mixing weights on an induced graph."""

    auto = "auto"
    metropolis = "metropolis"
    keep = "keep"


@dataclass(frozen=True)
class PresentRule:
    """The rule that restricts rounds to the present workers."""

    absent: Absent
    weights: Weights
    schedule: Callable[[int], Rounds]
    """m -> the rounds of the topology for m workers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", lru_cache(_NUMBERS_KEPT)(self.schedule))

    def among(self, rounds: Rounds, present: np.ndarray) -> Rounds:
        """Return the rounds from which the rounds of the present workers are built."""
        if self.absent is Absent.induced:
            return rounds
        if (m := int(present.sum())) > 1:
            return self.schedule(m)
        d = rounds.num_pieces  # a single worker has no topology
        return Rounds(m, lambda round: (MixingMatrix.identity(m),) * d, num_pieces=d)

    def phases(self, rounds: Rounds, present: np.ndarray, round: int, lazy: bool) -> list[Phase]:
        """Return the exchanges of a round among `present` [n]; lazy: with (W + I) / 2 if it is a single one."""
        phases = self.among(rounds, present).phases(round)
        halve = lazy and len(phases) == 1
        found = []
        for phase in phases:
            matrices = [self.matrix(W, present) for W in phase.matrices]
            found.append(Phase(tuple(W.lazy if halve else W for W in matrices), phase.split))
        return found

    def mixing(self, rounds: Rounds, present: np.ndarray, round: int) -> tuple[MixingMatrix, ...]:
        """Return the matrices of a round, one for each piece."""
        return tuple(self.matrix(W, present) for W in self.among(rounds, present).mixing(round))

    def matrix(self, W: MixingMatrix, present: np.ndarray) -> MixingMatrix:
        """Extend W of the present workers, or of all, to all workers [n, n]; absent ones keep their models."""
        if self.absent is Absent.rerouted:
            return embedded(W, present)
        return restricted(W, present, self.weights)


def embedded(W: MixingMatrix, present: np.ndarray) -> MixingMatrix:
    """Embed a matrix [m, m] of the m present workers, in order of their numbers, in one of all [n]."""
    who, away = np.flatnonzero(present), np.flatnonzero(~present)
    src, dst = np.concatenate([who[W.src], away]), np.concatenate([who[W.dst], away])
    return MixingMatrix.of_entries(len(present), src, dst, np.concatenate([W.weight, np.ones(len(away))]))


def restricted(W: MixingMatrix, present: np.ndarray, weights: Weights) -> MixingMatrix:
    """Restrict W to the edges among `present` [n]; absent workers keep their models.

    - metropolis: W_ij = 1 / (1 + max(deg_i, deg_j)), degrees among the present workers.
    - keep: W_ij stays, and a worker adds the weights of absent workers to its own.
    - auto: metropolis if W is the metropolis matrix of its graph, keep if it is another symmetric one. Otherwise
      W_ij = 1 / (1 + outdeg_j) within strongly connected components, so that no worker gives all its mass away;
      pull weights, of which only rows sum to one, stay pull weights.

    The result is doubly stochastic if W is symmetric, else column-stochastic if W is, else row-stochastic.
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
    """Return the index of each worker's strongly connected component: int [n]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = graph.num_workers
    edges = coo_array((np.ones(len(graph)), (graph.src, graph.dst)), shape=(n, n))
    indices: np.ndarray = connected_components(edges, directed=True, connection="strong")[1]
    return indices
