"""What one round of communication does, on paper: who takes what from whom, and which messages are lost. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.randomness import uniform
from decentral.topology.schedule import Links, Schedule


@dataclass(frozen=True)
class Losses:
    """Seeded message loss: each directed message (round, piece, source, destination) is lost with `probability`."""

    probability: float
    seed: int

    def lost(self, round: int, piece: np.ndarray | int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Whether each of these messages is lost, bool, in the shape of the arguments."""
        return uniform(self.seed, "message loss", round, piece, src, dst) < self.probability


class Rounds:
    """The mixing matrices that are really applied, and the links that really deliver.

    Where rows sum to one, a worker that misses messages divides its remaining weights by their sum, so that they still
    do; a worker that hears nothing and has no weight of its own keeps its own value. Where they do not (push-sum on an
    irregular graph), the sender keeps what it could not deliver, so that columns still sum to one and no mass is lost.
    """

    def __init__(self, schedule: Schedule, losses: Losses) -> None:
        self.schedule, self.losses = schedule, losses
        self._rows: dict[tuple[int, bool], list[list[list[tuple[int, float]]]]] = {}
        self._sent: dict[int, list[int]] = {}

    def matrix(self, round: int, piece: int, lazy: bool) -> np.ndarray:
        """W [n, n] of this round and piece, after losses; lazy: (W + I) / 2 before them."""
        W = self.schedule.matrices(round)[piece]
        if lazy:
            W = (W + np.eye(len(W))) / 2
        if self.losses.probability == 0:
            return W
        dst, src = np.nonzero(W)
        gone = self.losses.lost(round, piece, src, dst) & (src != dst)
        kept = W.copy()
        kept[dst[gone], src[gone]] = 0.0
        if not np.allclose(W.sum(1), 1):
            np.add.at(kept, (src[gone], src[gone]), W[dst[gone], src[gone]])
            return kept
        left = kept.sum(1)
        alone = left == 0
        kept[alone, alone] = left[alone] = 1.0
        return kept / left[:, None]

    def rows(self, round: int, lazy: bool) -> list[list[list[tuple[int, float]]]]:
        """[piece][worker] -> the (j, W_ij) that are not zero, j ascending. Kept over rounds unless messages get
        lost."""
        key = (round % self.schedule.period, lazy)
        if key not in self._rows or self.losses.probability:
            self._rows[key] = [
                [[(int(j), float(row[j])) for j in np.flatnonzero(row)] for row in self.matrix(round, h, lazy)]
                for h in range(self.schedule.num_pieces)
            ]
        return self._rows[key]

    def num_messages(self, round: int) -> list[int]:
        """How many messages all workers send in this round, for each piece; a lost message was sent."""
        key = round % self.schedule.period
        if key not in self._sent:
            self._sent[key] = [
                int(np.count_nonzero(W) - np.count_nonzero(np.diagonal(W))) for W in self.schedule.matrices(round)
            ]
        return self._sent[key]

    def undelivered(self, links: Links, round: int) -> np.ndarray:
        """Indices of the links whose message of this round is lost."""
        if self.losses.probability == 0:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.losses.lost(round, links.piece, links.src, links.dst))
