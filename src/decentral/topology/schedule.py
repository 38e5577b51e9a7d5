"""A topology for n workers: mixing matrices by round, links to relay over, and the pieces a model is cut into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from decentral.topology import graph

_ROUNDS_KEPT = 32


class Split(Enum):
    """How the coordinates of a model are dealt to d pieces: every d-th one, or in consecutive blocks."""

    interleaved = "interleaved"
    contiguous = "contiguous"


def slices(num_coordinates: int, num_pieces: int, split: Split) -> list[slice]:
    """The slices of range(num_coordinates), one for each piece; sizes differ by at most 1, larger ones first."""
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
    """One exchange of a round: a matrix for each piece of the rows, or (no matrices) the exact mean of all workers."""

    matrices: tuple[np.ndarray, ...]
    split: Split = Split.contiguous


@dataclass(frozen=True)
class Links:
    """Directed edges src -> dst of all piece graphs, sorted by (dst, piece, src); int64 arrays [E].

    The edges into a range of workers are consecutive. `reverse[e]` is the index of dst -> src in the same piece.
    """

    src: np.ndarray
    dst: np.ndarray
    piece: np.ndarray
    reverse: np.ndarray

    def __len__(self) -> int:
        return len(self.src)


class Schedule:
    """What a topology yields for `num_workers` workers: a pure function from the round to one matrix W for each piece.

    `matrices` computes the d matrices of a round, 0 <= round < period; it is called once for a round that is asked
    again soon, and must be pure. A schedule that never repeats passes the number of rounds it will be asked for as
    its period.

    A round is carried out in one exchange with these matrices, unless `phases` says how else to arrive at them.
    """

    def __init__(
        self,
        num_workers: int,
        matrices: Callable[[int], tuple[np.ndarray, ...]],
        *,
        num_pieces: int = 1,
        period: int = 1,
        split: Split = Split.contiguous,
        phases: Callable[[int], list[Phase]] | None = None,
    ) -> None:
        assert num_workers >= 1 and num_pieces >= 1 and period >= 1
        self.num_workers = num_workers
        self.num_pieces = num_pieces
        self.period = period
        self.split = split
        self._compute = matrices
        self._phases = phases
        self._kept: dict[int, tuple[np.ndarray, ...]] = {}

    def matrices(self, round: int) -> tuple[np.ndarray, ...]:
        """The d mixing matrices of a round, read-only float64 [n, n]: W[i, j] is what worker i takes from worker j."""
        assert round >= 0
        key = round % self.period
        if key not in self._kept:
            if len(self._kept) >= _ROUNDS_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._checked(self._compute(key))
        return self._kept[key]

    def phases(self, round: int) -> list[Phase]:
        """The exchanges that a round consists of, one after the other; none where W is the identity.

        Applied in turn they are the matrices of the round. Their pieces may be others than those of the schedule.
        """
        if self._phases is not None:
            return self._phases(round % self.period)
        return [Phase(self.matrices(round), self.split)]

    def _checked(self, matrices: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        assert len(matrices) == self.num_pieces
        for W in matrices:
            assert W.shape == (self.num_workers, self.num_workers) and W.dtype == np.float64
            W.setflags(write=False)
        return tuple(matrices)

    def slices(self, num_coordinates: int) -> list[slice]:
        """The d slices of range(num_coordinates), one for each piece; see the function `slices`."""
        return slices(num_coordinates, self.num_pieces, self.split)

    def graphs(self) -> tuple[np.ndarray, ...]:
        """The graph of each piece of a static schedule, bool [n, n]: entry [i, j] says whether j sends to i."""
        assert self.period == 1, "the graphs of a time-varying schedule change with the round"
        return tuple(graph.support(W) for W in self.matrices(0))

    def links(self) -> Links:
        """The directed edges to relay over. The schedule must be static and its graphs undirected."""
        n, d = self.num_workers, self.num_pieces
        graphs = self.graphs()
        assert all(graph.is_undirected(A) for A in graphs), "relaying needs links in both directions"
        dst, piece, src = np.nonzero(np.stack(graphs, axis=1))  # row-major: sorted by (dst, piece, src)
        key, opposite = (dst * d + piece) * n + src, (src * d + piece) * n + dst
        return Links(src=src, dst=dst, piece=piece, reverse=np.searchsorted(key, opposite))

    def hops(self) -> np.ndarray:
        """tau_ij [d, n, n]: over how many links a message of j reaches i in the graph of each piece; -1 for never."""
        return np.stack([graph.hops(A) for A in self.graphs()])
