"""What one round of communication does, on paper: who takes what from whom, and which messages are lost. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decentral.randomness import uniform
from decentral.topology.schedule import Links, Phase, Schedule, Split

_ROUNDS_KEPT = 128

Terms = list[list[tuple[int, float]]]
"""For each worker i the (j, W_ij) that are not zero, j ascending."""


@dataclass(frozen=True)
class Losses:
    """Seeded message loss: each directed message (round, piece, source, destination) is lost with `probability`."""

    probability: float
    seed: int

    def lost(self, round: int, piece: np.ndarray | int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Whether each of these messages is lost, bool, in the shape of the arguments."""
        return uniform(self.seed, "message loss", round, piece, src, dst) < self.probability


@dataclass
class Exchange:
    """One exchange of a round: what every worker takes of each piece; no pieces stand for the mean of all workers."""

    pieces: list[Terms]
    num_messages: list[int]  # that all workers send, for each piece; a lost message was sent
    split: Split
    memo: dict[str, Any] = field(default_factory=dict)  # what a network works out from this once


def exchange(matrices: tuple[np.ndarray, ...], split: Split, sent: tuple[np.ndarray, ...] = ()) -> Exchange:
    """With these matrices; `sent` are those before messages got lost."""
    pieces = [[[(int(j), float(row[j])) for j in np.flatnonzero(row)] for row in W] for W in matrices]
    counts = [int(np.count_nonzero(W) - np.count_nonzero(np.diagonal(W))) for W in sent or matrices]
    return Exchange(pieces, counts, split)


class Rounds:
    """The mixing matrices that are really applied, and the links that really deliver.

    Where rows sum to one, a worker that misses messages divides its remaining weights by their sum, so that they still
    do; a worker that hears nothing and has no weight of its own keeps its own value. Where they do not (push-sum on an
    irregular graph), the sender keeps what it could not deliver, so that columns still sum to one and no mass is lost.
    """

    def __init__(self, schedule: Schedule, losses: Losses) -> None:
        self.schedule, self.losses = schedule, losses
        self._planned: dict[tuple[int, bool], list[Exchange]] = {}
        self._shares: dict[int, Exchange] = {}

    def matrix(self, round: int, piece: int, lazy: bool, push: bool = False) -> np.ndarray:
        """W [n, n] of this round and piece, after losses; lazy: (W + I) / 2 before them.

        With `push`, senders keep what they could not deliver wherever rows sum to one, too.
        """
        W = self.schedule.matrices(round)[piece]
        if lazy:
            W = (W + np.eye(len(W))) / 2
        if self.losses.probability == 0:
            return W
        dst, src = np.nonzero(W)
        gone = self.losses.lost(round, piece, src, dst) & (src != dst)
        kept = W.copy()
        kept[dst[gone], src[gone]] = 0.0
        if push or not np.allclose(W.sum(1), 1):
            np.add.at(kept, (src[gone], src[gone]), W[dst[gone], src[gone]])
            return kept
        left = kept.sum(1)
        alone = left == 0
        kept[alone, alone] = left[alone] = 1.0
        return kept / left[:, None]

    def planned(self, round: int, lazy: bool) -> list[Exchange]:
        """The exchanges of a round, one after the other. Kept over rounds unless messages get lost.

        `lazy` makes a difference to rounds of a single exchange only; see `in_one`.
        """
        if self.losses.probability:
            return [self._exchange(round, phase, lazy) for phase in self.schedule.phases(round)]
        key = (round % self.schedule.period, lazy)
        if key not in self._planned:
            if len(self._planned) >= _ROUNDS_KEPT:
                del self._planned[next(iter(self._planned))]
            phases = self.schedule.phases(round)
            self._planned[key] = [self._exchange(round, phase, lazy and in_one(phases)) for phase in phases]
        return self._planned[key]

    def shares(self, round: int) -> Exchange:
        """What workers give each other in a round of push-sum, in one exchange: W, after losses that senders keep.

        Kept over rounds unless messages get lost.
        """
        key, sent, split = round % self.schedule.period, self.schedule.matrices(round), self.schedule.split
        if self.losses.probability:
            return exchange(tuple(self.matrix(round, h, False, push=True) for h in range(len(sent))), split, sent)
        if key not in self._shares:
            if len(self._shares) >= _ROUNDS_KEPT:
                del self._shares[next(iter(self._shares))]
            self._shares[key] = exchange(sent, split)
        return self._shares[key]

    def in_several(self, round: int) -> bool:
        """Whether a round is anything but a single exchange with the matrices of the schedule, or nothing."""
        phases = self.schedule.phases(round)
        return bool(phases) and not in_one(phases)

    def _exchange(self, round: int, phase: Phase, lazy: bool) -> Exchange:
        if not lazy and not self.losses.probability:
            return exchange(phase.matrices, phase.split)
        matrices = tuple(self.matrix(round, h, lazy) for h in range(len(phase.matrices)))
        return exchange(matrices, phase.split, sent=phase.matrices)

    def undelivered(self, links: Links, round: int) -> np.ndarray:
        """Indices of the links whose message of this round is lost."""
        if self.losses.probability == 0:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.losses.lost(round, links.piece, links.src, links.dst))


def in_one(phases: list[Phase]) -> bool:
    """Whether a round is a single exchange with the matrices of the schedule."""
    return len(phases) == 1 and len(phases[0].matrices) > 0
