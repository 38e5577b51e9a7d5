"""The rounds of a topology for n workers: mixing matrices, edges to relay over, and the pieces of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from decentral.topology import graph
from decentral.topology.graph import Graph, union
from decentral.topology.mixing_matrix import MixingMatrix

_ROUNDS_KEPT = 32
_ENTRIES_KEPT = 1 << 20


class Need(Enum):
    """Properties of the rounds of a topology, checked in this order.

    - whole: models are sent in one piece.
    - static: the same matrices in every round.
    - undirected: every edge has its opposite.
    - connected: over one period, every worker's messages can reach every other one, in every piece.
    - tree: static, undirected, connected and without cycles, in every piece (RelaySum).
    - row_stochastic: W 1 = 1, which preserves consensus. Pull weights are only this: they converge to a weighted mean.
    - column_stochastic: 1^T W = 1^T, which preserves the sum over workers (push-sum).
    - doubly_stochastic: both, which preserves the mean and consensus (gossip).
    - symmetric: W = W^T.
    - bipartite: the workers split into two sides, and all edges of all rounds connect the sides.
    - d2_spectrum: symmetric with smallest eigenvalue >= -1/3, up to 1e-9. D2's analysis requires more than -1/3; even
      rings with metropolis weights, on which the RelaySGD paper runs D2, are exactly there: equality passes.
    """

    whole = "whole"
    static = "static"
    undirected = "undirected"
    connected = "connected"
    tree = "tree"
    row_stochastic = "row_stochastic"
    column_stochastic = "column_stochastic"
    doubly_stochastic = "doubly_stochastic"
    symmetric = "symmetric"
    bipartite = "bipartite"
    d2_spectrum = "d2_spectrum"


class Split(Enum):
    """The way to split the coordinates of a model into d pieces: every d-th one, or consecutive blocks."""

    interleaved = "interleaved"
    contiguous = "contiguous"


@lru_cache(maxsize=1024)  # several times a step
def slices(num_coordinates: int, num_pieces: int, split: Split) -> list[slice]:
    """Return the slices of range(num_coordinates), one per piece; sizes differ by at most 1, larger ones first."""
    d = num_pieces
    if d == 1:
        return [slice(0, num_coordinates, 1)]
    if d == 0:
        return []
    if split is Split.interleaved:
        return [slice(h, None, d) for h in range(d)]
    size, larger = divmod(num_coordinates, d)
    starts = [h * size + min(h, larger) for h in range(d + 1)]
    return [slice(start, stop) for start, stop in pairwise(starts)]


class Phase(NamedTuple):
    """One exchange of a round: a matrix for each piece of the rows, or (no matrices) the mean of all workers."""

    matrices: tuple[MixingMatrix, ...]
    split: Split = Split.contiguous


MEAN = Phase(())
"""The mean of all workers."""


@dataclass(frozen=True)
class RelayEdges:
    """Directed edges src -> dst of the graphs of all pieces, sorted by (dst, piece, src); int64 [E].

    The edges into a range of workers are consecutive. `reverse[e]` is the index of dst -> src in the same piece.
    """

    src: np.ndarray
    dst: np.ndarray
    piece: np.ndarray
    reverse: np.ndarray
    memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # cache of derived values

    def __len__(self) -> int:
        return len(self.src)


class Rounds:
    """The rounds of a topology for `num_workers` workers: a pure function from the round to one matrix W per piece.

    `mixing` returns the sparse matrices of a round, which a run uses; `matrices` returns them as dense arrays, for
    reading.

    A round is one exchange with these matrices, unless `phases` factors them into several.
    """

    def __init__(
        self,
        num_workers: int,
        matrices: Callable[[int], tuple[np.ndarray | MixingMatrix, ...]],
        *,
        num_pieces: int = 1,
        period: int = 1,
        split: Split = Split.contiguous,
        phases: Callable[[int], list[Phase]] | None = None,
        every: int = 1,
    ) -> None:
        """Store `matrices`, which returns the d = num_pieces matrices of a round, 0 <= round < period, dense [n, n] or
        sparse.

        It must be pure; recent results are cached. Rounds that never repeat pass the number of rounds needed as their
        period. Of `every` rounds all but the last are silent, W = I.
        """
        assert num_workers >= 1 and num_pieces >= 1 and period >= 1
        self.num_workers = num_workers
        self.num_pieces = num_pieces
        self.period = period if num_workers > 1 else 1  # a single worker does the same in every round
        self.every = every if num_workers > 1 else 1
        self.split = split
        self._compute = matrices
        self._phases = phases
        self._kept: dict[int, tuple[MixingMatrix, ...]] = {}
        self._entries_kept = 0

    def mixing(self, round: int) -> tuple[MixingMatrix, ...]:
        """Return the d sparse mixing matrices of a round: worker i weighs worker j with W[i, j]."""
        assert round >= 0
        key = round % self.period
        if key not in self._kept:
            matrices = tuple(MixingMatrix.of(W) for W in self._compute(key))
            assert len(matrices) == self.num_pieces and all(W.num_workers == self.num_workers for W in matrices)
            self._entries_kept += sum(map(len, matrices))
            while len(self._kept) >= _ROUNDS_KEPT and self._entries_kept > _ENTRIES_KEPT:
                self._entries_kept -= sum(map(len, self._kept.pop(next(iter(self._kept)))))
            self._kept[key] = matrices
        return self._kept[key]

    def matrices(self, round: int) -> tuple[np.ndarray, ...]:
        """Return the d mixing matrices of a round, for reading: float64 [n, n], W[i, j] is the weight of j at i.

        They take n^2 numbers each; no run needs them.
        """
        return tuple(W.dense() for W in self.mixing(round))

    def phases(self, round: int) -> list[Phase]:
        """Return the exchanges of a round, in order; none if W is the identity.

        Their product is the matrices of the round. Their pieces may differ from those of the rounds.
        """
        if self._phases is not None:
            return self._phases(round % self.period)
        return [Phase(self.mixing(round), self.split)]

    def slices(self, num_coordinates: int) -> list[slice]:
        """Return the d slices of range(num_coordinates), one per piece; see the function `slices`."""
        return slices(num_coordinates, self.num_pieces, self.split)

    @property
    def are_equal(self) -> bool:
        """Return whether all rounds are the same, except silent ones."""
        return self.period == self.every

    def is_silent(self, round: int) -> bool:
        """Return whether this round sends nothing, so that workers only take local steps (`communication.every`)."""
        return (round + 1) % self.every > 0

    def graphs(self) -> tuple[Graph, ...]:
        """Return the graph of each piece, the same in all rounds that are not silent."""
        assert self.are_equal, "the graphs of rounds that change are those of their matrices"
        return tuple(W.graph for W in self.mixing(self.every - 1))

    def edges(self) -> RelayEdges:
        """Return the directed edges to relay over. Requires static rounds with undirected graphs."""
        n, d = self.num_workers, self.num_pieces
        graphs = self.graphs()
        assert all(graph.is_undirected(one) for one in graphs), "relaying needs edges in both directions"
        src, dst = (np.concatenate([getattr(one, end) for one in graphs]) for end in ("src", "dst"))
        piece = np.repeat(np.arange(d), [len(one) for one in graphs])
        key = (dst * d + piece) * n + src
        order = np.argsort(key)
        key, src, dst, piece = key[order], src[order], dst[order], piece[order]
        return RelayEdges(src, dst, piece, reverse=np.searchsorted(key, (src * d + piece) * n + dst))

    def hops(self) -> np.ndarray:
        """Return tau_ij [d, n, n], for reading: the hops from j to i in each piece; -1 if unreachable."""
        return np.stack([graph.hops(one) for one in self.graphs()])


def mean_delay(rounds: Rounds, overlap: bool = False) -> float:
    """Return the mean staleness, in steps, of the models that RelaySum sums: (1/n^2) sum_ij max(tau_ij - 1, 0).

    A neighbor's message is used in the step in which it is sent; with `overlap` in the next one, so the delay is
    tau_ij. Averaged over the pieces. 1 + mean_delay is the factor by which RelaySGD shrinks the effect of a single
    update (Vogels et al., NeurIPS 2021, appendix D.1). Requires static rounds with connected pieces.
    """
    n, total = rounds.num_workers, 0
    for one in rounds.graphs():
        assert graph.is_connected(one), "some workers never communicate, even indirectly"
        is_tree = len(one) == 2 * (n - 1) and graph.is_undirected(one)
        total += graph.sum_of_tree_hops(one) if is_tree else int(graph.hops(one).sum())
    if not overlap:
        total -= rounds.num_pieces * n * (n - 1)  # one for each pair of distinct workers
    return total / (rounds.num_pieces * n * n)


def all_edges(rounds: Rounds) -> Graph:
    """Return the edges of all rounds of a period, in all pieces."""
    matrices = {id(W): W for r in range(rounds.period) for W in rounds.mixing(r)}
    return union(rounds.num_workers, [W.graph for W in matrices.values()])


def two_sides(graph: Graph) -> list[int] | None:
    """Return a 2-coloring (side 0 or 1) of the vertices, worker 0 on side 0; None if the graph is not bipartite."""
    neighbors: list[list[int]] = [[] for _ in range(graph.num_workers)]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        neighbors[dst].append(src)
        neighbors[src].append(dst)
    side = [-1] * graph.num_workers
    for root in range(graph.num_workers):
        if side[root] >= 0:
            continue
        side[root], waiting = 0, deque([root])
        while waiting:
            i = waiting.popleft()
            for j in neighbors[i]:
                if side[j] < 0:
                    side[j] = 1 - side[i]
                    waiting.append(j)
                elif side[j] == side[i]:
                    return None
    return side


@lru_cache(maxsize=8)
def sides(rounds: Rounds) -> list[int]:
    """Return `two_sides` of all edges of the rounds, which are bipartite (`Need.bipartite`)."""
    coloring = two_sides(all_edges(rounds))
    assert coloring is not None
    return coloring


def neighbors_of(rounds: Rounds, worker: int, round: int) -> list[int]:
    """Return the in-neighbors of a worker in a round, in any piece, ascending."""
    return sorted({j for W in rounds.mixing(round) for j, _ in W.row(worker) if j != worker})
