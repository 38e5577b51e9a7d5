"""Graphs as boolean matrices: A[i, j] is true where j sends to i. No loops, so the diagonal is false."""

from __future__ import annotations

import numpy as np


def directed(num_workers: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The graph with the edges source[e] -> target[e], bool [n, n]; loops and repetitions are dropped."""
    A = np.zeros((num_workers, num_workers), dtype=bool)
    A[target, source] = True
    np.fill_diagonal(A, False)
    return A


def undirected(num_workers: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The graph with the edges one[e] -- other[e], bool [n, n]; loops and repetitions are dropped."""
    A = directed(num_workers, one, other)
    return A | A.T


def support(W: np.ndarray) -> np.ndarray:
    """The graph of a mixing matrix: where it is not zero, off the diagonal."""
    A = W != 0
    np.fill_diagonal(A, False)
    return A


def is_undirected(A: np.ndarray) -> bool:
    """Whether every edge has its opposite."""
    return bool((A == A.T).all())


def is_connected(A: np.ndarray) -> bool:
    """Whether every worker's messages can reach every other worker (directed graphs: strong connectivity)."""
    return _reaches_all(A) and (is_undirected(A) or _reaches_all(A.T))


def _reaches_all(A: np.ndarray) -> bool:
    reached = np.zeros(len(A), dtype=bool)
    frontier = reached.copy()
    frontier[0] = True
    while frontier.any():
        reached |= frontier
        frontier = A[:, frontier].any(axis=1) & ~reached
    return bool(reached.all())


def hops(A: np.ndarray) -> np.ndarray:
    """tau [n, n]: tau[i, j] edges lead from j to i at least, -1 where none do. O(n E), all j at once."""
    n = len(A)
    tau = np.full((n, n), -1, dtype=np.int64)
    receiver, sender = np.nonzero(A.T)[::-1]  # sorted by sender
    degree = np.bincount(sender, minlength=n)
    first = np.concatenate([[0], np.cumsum(degree)])
    at = origin = np.arange(n)  # the frontier: pairs of a worker and whose message has just come there
    tau[at, origin] = level = 0
    while len(at):
        level += 1
        fanout = degree[at]
        if fanout.sum() > n * n:  # many ways to few pairs: the same step as a product of matrices
            frontier = np.zeros((n, n), dtype=np.float32)
            frontier[at, origin] = 1
            at, origin = np.nonzero((A.astype(np.float32) @ frontier > 0) & (tau < 0))
        else:
            # edge number for every (pair of the frontier, outgoing edge): first[at], first[at] + 1, ...
            edge = np.arange(fanout.sum()) + np.repeat(first[at] - np.cumsum(fanout) + fanout, fanout)
            at, origin = receiver[edge], np.repeat(origin, fanout)
            new = tau[at, origin] < 0
            pairs = np.unique(at[new] * n + origin[new])
            at, origin = pairs // n, pairs % n
        tau[at, origin] = level
        if (tau >= 0).all():
            break
    return tau
