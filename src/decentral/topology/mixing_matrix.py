"""The sparse mixing matrix of one round and piece."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decentral.topology.graph import Graph

_AS_DENSE_ROWS = 256


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """W [n, n] by its nonzero entries: worker dst[e] weighs worker src[e] with weight[e].

    int64, int64 and float64 [E], sorted by (dst, src), each pair at most once; the diagonal is among them.
    """

    num_workers: int
    src: np.ndarray
    dst: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, W: MixingMatrix | np.ndarray) -> MixingMatrix:
        """Convert a dense matrix [n, n]; a MixingMatrix is returned as is."""
        if isinstance(W, MixingMatrix):
            return W
        assert W.ndim == 2 and W.shape[0] == W.shape[1] and W.dtype == np.float64
        dst, src = np.nonzero(W)
        return cls(len(W), src, dst, W[dst, src])

    @classmethod
    def on(cls, graph: Graph, weight: np.ndarray, own: np.ndarray) -> MixingMatrix:
        """Create W from a weight for each edge of a graph and each worker's own weight: float64 [E], [n]."""
        n, diagonal = graph.num_workers, np.arange(graph.num_workers)
        place = np.searchsorted(graph.keys, diagonal * (n + 1))
        src, dst = np.insert(graph.src, place, diagonal), np.insert(graph.dst, place, diagonal)
        weights = np.insert(weight, place, own)
        kept = weights != 0
        if kept.all():
            return cls(n, src, dst, weights)
        return cls(n, src[kept], dst[kept], weights[kept])

    @classmethod
    def of_entries(cls, num_workers: int, src: np.ndarray, dst: np.ndarray, weight: np.ndarray) -> MixingMatrix:
        """Create W from distinct entries in any order."""
        order = np.argsort(dst * num_workers + src)
        return cls(num_workers, src[order], dst[order], weight[order])

    @classmethod
    def identity(cls, num_workers: int) -> MixingMatrix:
        """Return the identity."""
        diagonal = np.arange(num_workers)
        return cls(num_workers, diagonal, diagonal, np.ones(num_workers))

    @classmethod
    def average(cls, num_workers: int) -> MixingMatrix:
        """Return 1/n in all n^2 entries; a run does not need it (`Rounds.phases` has the mean of all workers)."""
        dst, src = np.divmod(np.arange(num_workers**2), num_workers)
        return cls(num_workers, src, dst, np.full(num_workers**2, 1 / num_workers))

    def __len__(self) -> int:
        """Return the number of nonzero entries, including the diagonal."""
        return len(self.weight)

    @cached_property
    def graph(self) -> Graph:
        """Return its edges: the off-diagonal entries."""
        edges = self.src != self.dst
        return Graph(self.num_workers, self.src[edges], self.dst[edges])

    @cached_property
    def diagonal(self) -> np.ndarray:
        """Return W_ii: float64 [n]."""
        on_diagonal, diagonal = self.src == self.dst, np.zeros(self.num_workers)
        diagonal[self.src[on_diagonal]] = self.weight[on_diagonal]
        return diagonal

    @property
    def num_messages(self) -> int:
        """Return the number of off-diagonal entries: the messages of an exchange."""
        return len(self) - int(np.count_nonzero(self.src == self.dst))

    @cached_property
    def starts(self) -> np.ndarray:
        """Return the index of each row's first entry; row i has the entries from starts[i] to starts[i + 1] - 1: int64
        [n + 1]."""
        counts = np.bincount(self.dst, minlength=self.num_workers)
        return np.concatenate([[0], np.cumsum(counts)])

    def row_sums(self) -> np.ndarray:
        """Return sum_j W_ij: float64 [n]."""
        return row_sums(self.num_workers, self.src, self.dst, self.weight)

    def column_sums(self) -> np.ndarray:
        """Return sum_i W_ij: float64 [n]."""
        return np.bincount(self.src, weights=self.weight, minlength=self.num_workers)

    def is_symmetric(self, tolerance: float) -> bool:
        """Return whether |W_ij - W_ji| <= tolerance for all i and j."""
        n = self.num_workers
        keys, opposite = self.dst * n + self.src, self.src * n + self.dst
        order = np.argsort(opposite)
        if np.array_equal(opposite[order], keys):
            return bool((np.abs(self.weight[order] - self.weight) <= tolerance).all())
        _, place = np.unique(np.concatenate([keys, opposite]), return_inverse=True)
        difference = np.bincount(place, weights=np.concatenate([self.weight, -self.weight]))
        return bool((np.abs(difference) <= tolerance).all())

    @cached_property
    def averages(self) -> bool:
        """Return whether all rows sum to one."""
        return bool(np.allclose(self.row_sums(), 1))

    @cached_property
    def lazy(self) -> MixingMatrix:
        """Return (W + I) / 2."""
        edges = self.src != self.dst
        return MixingMatrix.on(self.graph, self.weight[edges] / 2, (self.diagonal + 1) / 2)

    def apply(self, w: np.ndarray) -> np.ndarray:
        """Return W w for numbers w [n]: float64 [n]."""
        return np.bincount(self.dst, weights=self.weight * w[self.src], minlength=self.num_workers)

    def row(self, worker: int) -> list[tuple[int, float]]:
        """Return (j, W_ij) of the entries of row i, j ascending."""
        entries = slice(self.starts[worker], self.starts[worker + 1])
        return list(zip(self.src[entries].tolist(), self.weight[entries].tolist(), strict=True))

    @cached_property
    def transposed(self) -> MixingMatrix:
        """Return W^T."""
        by_column = np.lexsort((self.dst, self.src))
        return MixingMatrix(self.num_workers, self.dst[by_column], self.src[by_column], self.weight[by_column])

    def dense(self) -> np.ndarray:
        """Return W [n, n], float64, for reading."""
        W = np.zeros((self.num_workers, self.num_workers))
        W[self.dst, self.src] = self.weight
        return W


def row_sums(num_workers: int, src: np.ndarray, dst: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sum weight [E] over the entries of each row; dst is ascending. Returns float64 [n].

    For up to 256 workers the order is numpy's for dense rows, as for the weights of stored runs.
    """
    n = num_workers
    if n <= _AS_DENSE_ROWS:
        W = np.zeros((n, n))
        W[dst, src] = weight
        return np.asarray(W.sum(axis=1))
    sums, count = np.zeros(n), np.bincount(dst, minlength=n)
    some = count > 0
    if some.any():
        sums[some] = np.add.reduceat(weight, (np.cumsum(count) - count)[some])
    return sums
