"""Mixing weights on a graph."""

from __future__ import annotations

from enum import Enum

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.mixing_matrix import MixingMatrix, row_sums


class Weights(Enum):
    """How much a worker takes from each neighbour.

    - metropolis: W_ij = 1 / (1 + max(deg_i, deg_j)), symmetric and doubly stochastic; undirected graphs only.
    - uniform: j splits what it has equally among itself and those it sends to, W_ij = W_jj = 1 / (1 + outdeg_j):
      column-stochastic on every graph (push), doubly stochastic where all degrees are equal.
    - pull: i takes equally from itself and those that send to it, W_ij = W_ii = 1 / (1 + indeg_i): row-stochastic on
      every graph, and the same matrix as uniform where all degrees are equal. Elsewhere the workers agree on a wrong
      mean, which weighs those more that are heard by more: only algorithms that ask for no more than rows take it.
    - constant: W_ij = edge_weight on every edge, W_ii = 1 - the rest of the row.
    - auto: metropolis where every edge goes both ways, uniform otherwise.

    What an algorithm needs of its matrices is checked before the run (`requirements`): gossip averages need doubly
    stochastic ones, push-sum column-stochastic ones.
    """

    auto = "auto"
    metropolis = "metropolis"
    uniform = "uniform"
    pull = "pull"
    constant = "constant"


def mixing_matrix(A: Graph, weights: Weights, edge_weight: float | None, topology: str) -> MixingMatrix:
    """The mixing matrix W of a graph; `topology` is its name in messages.

    Raises:
        ConfigError: metropolis on a directed graph, or an edge weight that leaves a worker a negative weight.
    """
    if weights is Weights.uniform or (weights is Weights.auto and not is_undirected(A)):
        share = 1 / (1.0 + A.outdegree)
        return MixingMatrix.on(A, share[A.src], share)
    if weights is Weights.pull:
        share = 1 / (1.0 + A.indegree)
        return MixingMatrix.on(A, share[A.dst], share)
    if weights is Weights.constant:
        assert edge_weight is not None
        return _with_the_rest(A, np.full(len(A), _checked(edge_weight, A, topology)))
    if not is_undirected(A):
        raise ConfigError(
            f"topology.weights=metropolis needs edges that go both ways, but topology={topology} is directed: "
            "use topology.weights=uniform."
        )
    return _with_the_rest(A, 1 / (1.0 + np.maximum(A.outdegree[A.src], A.outdegree[A.dst])))


def _with_the_rest(A: Graph, weight: np.ndarray) -> MixingMatrix:
    """W with these weights of the edges, and on the diagonal 1 - the rest of the row."""
    return MixingMatrix.on(A, weight, 1.0 - row_sums(A.num_workers, A.src, A.dst, weight))


def _checked(edge_weight: float, A: Graph, topology: str) -> float:
    degree = int(A.indegree.max())
    if edge_weight * degree > 1 + 1e-12:
        raise ConfigError(
            f"topology.edge_weight={edge_weight:g} leaves a worker of topology={topology} with {degree} neighbours "
            f"a negative weight of its own: the largest possible edge weight is 1/{degree} = {1 / degree:.6g}."
        )
    return edge_weight
