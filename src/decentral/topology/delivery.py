"""One round of communication as matrices and edges: the weights applied and the messages lost. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from decentral.randomness import uniform
from decentral.topology.graph import Graph
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.present import PresentRule, Weights, restricted
from decentral.topology.rounds import MEAN, Phase, RelayEdges, Rounds, Split

_ROUNDS_KEPT = 256
Found = TypeVar("Found")


@dataclass(frozen=True)
class Losses:
    """Seeded message loss: each directed message (round, piece, source, destination) is lost with `probability`."""

    probability: float
    seed: int

    def lost(self, round: int, piece: np.ndarray | int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Return whether each of these messages is lost: bool, in the shape of the arguments."""
        return uniform(self.seed, "message loss", round, piece, src, dst) < self.probability


@dataclass
class Exchange:
    """One exchange of a round: a mixing matrix for each piece; no pieces mean the average of all workers."""

    pieces: tuple[MixingMatrix, ...]
    sent: tuple[MixingMatrix, ...]  # the same before losses: lost messages were sent, too
    split: Split
    memo: dict[Any, Any] = field(default_factory=dict)  # what a network works out from this once
    combine: Callable[..., None] | None = None
    """A function that mixes rows x [k, P] in place instead of W. Its arguments: x, the others' rows by worker, W, and
    the number of the first local worker."""

    @property
    def num_messages(self) -> list[int]:
        """Return the total number of messages for each piece."""
        return [W.num_messages for W in self.sent]


@dataclass
class Neighbors:
    """The edges of a round in any piece: worker dst[e] receives from worker src[e], int64 [E], sorted by (dst, src);
    and the edges over which messages were sent, including lost ones."""

    src: np.ndarray
    dst: np.ndarray
    sent: tuple[np.ndarray, np.ndarray]
    """Source and destination of every message, int64 [E']."""
    num_sent: np.ndarray
    """Number of messages that each worker has sent: int64 [n]."""
    memo: dict[Any, Any] = field(default_factory=dict)  # what a network works out from this once


def exchange(
    matrices: tuple[MixingMatrix, ...], split: Split, sent: tuple[MixingMatrix, ...] | None = None
) -> Exchange:
    """Return the exchange with these matrices; `sent` are the matrices before losses."""
    return Exchange(matrices, sent or matrices, split)


class Delivery:
    """The effective mixing matrices and delivering edges, after losses and absences.

    If rows sum to one, a worker that misses messages divides its remaining weights by their sum, so its row still sums
    to one; a worker that receives nothing and has no weight of its own keeps its value. Otherwise (push-sum on an
    irregular graph), the sender keeps undelivered mass, so that columns still sum to one and no mass is lost.

    Absent workers (`attend`) keep their values: their rows and columns are those of the identity.
    """

    def __init__(self, rounds: Rounds, losses: Losses) -> None:
        self.rounds, self.losses = rounds, losses
        self.present: np.ndarray | None = None
        """[n], bool: the present workers; None: all."""
        self.rule: PresentRule | None = None
        """The rule for rounds with absent workers; None: all workers are always present."""
        self._kept: dict[object, Any] = {}
        self._lost: tuple[RelayEdges, int, np.ndarray] | None = None  # the last result of `undelivered`

    def matrix(self, round: int, piece: int, lazy: bool, push: bool = False) -> MixingMatrix:
        """Return W of this round and piece, after losses; lazy: (W + I) / 2 before them.

        With `push`, senders keep undelivered mass even if rows sum to one.
        """
        W = self._mixing(round)[piece]
        if lazy:
            W = W.lazy
        if self.losses.probability == 0:
            return W
        edges = W.src != W.dst
        gone = self.losses.lost(round, piece, W.src, W.dst) & edges
        delivered, own = edges & ~gone, W.diagonal.copy()
        graph, weight = Graph(W.num_workers, W.src[delivered], W.dst[delivered]), W.weight[delivered]
        if push or not W.averages:
            np.add.at(own, W.src[gone], W.weight[gone])
            return MixingMatrix.on(graph, weight, own)
        left = MixingMatrix.on(graph, weight, own).row_sums()
        alone = left == 0
        own[alone] = left[alone] = 1.0
        return MixingMatrix.on(graph, weight / left[graph.dst], own / left)

    def _mixing(self, round: int) -> tuple[MixingMatrix, ...]:
        if self.present is None or self.rule is None:
            return self.rounds.mixing(round)
        made = partial(self.rule.mixing, self.rounds, self.present, round)
        return self._known("mixing", round, made)

    def among(self, W: MixingMatrix) -> MixingMatrix:
        """Restrict a symmetric matrix of all workers to the present ones."""
        return W if self.present is None else restricted(W, self.present, Weights.keep)

    def carried(self, edges: RelayEdges) -> RelayEdges:
        """Return the edges that carry messages: those between present workers."""
        if self.present is None:
            return edges

        def made() -> RelayEdges:
            kept = np.delete(np.arange(len(edges)), self.undelivered(edges, 0))
            number = np.full(len(edges), -1)
            number[kept] = np.arange(len(kept))
            return RelayEdges(edges.src[kept], edges.dst[kept], edges.piece[kept], number[edges.reverse[kept]])

        return self._known("carried", 0, made)

    def planned(self, round: int, lazy: bool) -> list[Exchange]:
        """Return the exchanges of a round, in order. Cached over rounds unless messages get lost.

        `lazy` affects only rounds with a single exchange; see `in_one`.
        """

        def made() -> list[Exchange]:
            if self.present is not None and self.rule is not None:
                phases = self.rule.phases(self.rounds, self.present, round, lazy)
                return [exchange(phase.matrices, phase.split) for phase in phases]
            phases = self.rounds.phases(round)
            return [self._exchange(round, phase, lazy and in_one(phases)) for phase in phases]

        return self._known(("planned", lazy), round, made)

    def shares(self, round: int) -> Exchange:
        """Return a round of push-sum as one exchange: W, after losses that senders keep.

        Cached over rounds unless messages get lost.
        """

        def made() -> Exchange:
            sent = self._mixing(round)
            matrices = tuple(self.matrix(round, h, False, push=True) for h in range(len(sent)))
            return exchange(matrices, self.rounds.split, sent)

        return self._known("shares", round, made)

    def neighbors(self, round: int) -> Neighbors:
        """Return the distinct edges of all pieces of a round. Cached over rounds unless messages get lost."""

        def made() -> Neighbors:
            n, planned = self.rounds.num_workers, self._mixing(round)
            came = _edges([self.matrix(round, h, lazy=False) for h in range(len(planned))])
            sent = _edges(planned) if self.losses.probability else came
            return Neighbors(came % n, came // n, (sent % n, sent // n), np.bincount(sent % n, minlength=n))

        return self._known("neighbors", round, made)

    def _known(self, what: object, round: int, made: Callable[[], Found]) -> Found:
        if self.losses.probability:
            return made()
        key: tuple[object, ...] = what, round % self.rounds.period
        if self.present is not None and self.rule is not None:
            period = self.rule.among(self.rounds, self.present).period
            key = what, round % period, self.present.tobytes()
        if key not in self._kept:
            if len(self._kept) >= _ROUNDS_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = made()
        found: Found = self._kept[key]
        return found

    def apply(self, w: np.ndarray, round: int) -> np.ndarray:
        """Return W w for each piece, with the losses of this round: float64 [n, d] -> the same."""
        phases = self.rounds.phases(round)
        if not phases:
            return w
        if phases == [MEAN]:
            present = np.ones(len(w), dtype=bool) if self.present is None else self.present
            return np.where(present[:, None], w[present].mean(axis=0), w)
        columns = [self.matrix(round, h, lazy=False).apply(w[:, h]) for h in range(w.shape[1])]
        return np.stack(columns, axis=1)

    def in_several(self, round: int) -> bool:
        """Return whether a round needs more than a single exchange with the matrices of the rounds."""
        phases = self.rounds.phases(round)  # fewer workers have the same kind of phases
        return bool(phases) and not in_one(phases)

    def _exchange(self, round: int, phase: Phase, lazy: bool) -> Exchange:
        if not lazy and not self.losses.probability:
            return exchange(phase.matrices, phase.split)
        matrices = tuple(self.matrix(round, h, lazy) for h in range(len(phase.matrices)))
        return exchange(matrices, phase.split, sent=phase.matrices)

    def undelivered(self, edges: RelayEdges, round: int) -> np.ndarray:
        """Return the indices of edges whose message of this round is lost or that have an absent end."""
        if self.present is not None:
            return np.flatnonzero(~(self.present[edges.src] & self.present[edges.dst]))
        if self.losses.probability == 0:
            return np.empty(0, dtype=np.int64)
        if self._lost is None or self._lost[0] is not edges or self._lost[1] != round:
            lost = np.flatnonzero(self.losses.lost(round, edges.piece, edges.src, edges.dst))
            self._lost = edges, round, lost
        return self._lost[2]


def _edges(matrices: Sequence[MixingMatrix]) -> np.ndarray:
    """Return the distinct dst * n + src of the edges of all matrices, ascending."""
    return np.unique(np.concatenate([W.graph.dst * W.num_workers + W.graph.src for W in matrices]))


def in_one(phases: list[Phase]) -> bool:
    """Return whether a round is a single exchange with the matrices of the rounds."""
    return len(phases) == 1 and len(phases[0].matrices) > 0
