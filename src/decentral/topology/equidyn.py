"""EquiDyn: one random hop in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.settings import setting
from decentral.topology.drawn import DRAWN_ROUNDS, generator_of
from decentral.topology.equistatic import shifts
from decentral.topology.graph import undirected
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MAX_ROUNDS, MatrixTopology


@dataclass
class EquiDyn(MatrixTopology):
    """Drawn in every round: one message per worker, and on average a rate that does not depend on their number.

        directed=true     W = (1 - eta) I + eta A_u: i gives (n-1)/n of its share to i + u modulo n, u from 1 .. n-1
        directed=false    W = (1 - eta) I + eta B: in the order s, s+1, ..., n-1, 0, ..., s-1 of a drawn s, i and i + u
                          become a pair if both are free; B_ij = (n-1)/n and B_ii = 1/n for pairs, 1 for those alone

    Song et al., NeurIPS 2022 (OD- and OU-EquiDyn). eta = 1/2 is the paper's, from memory, its text was not checked; the
    authors' scripts have 0.53, their code 1, with which the directed one is nearly a permutation.

    seed          with the round, what draws depend on: all workers know them
    drawn_rounds  after so many rounds the same draws come again, in the same order
    """

    name: str = "equidyn"
    directed: bool = False
    eta: float = setting(0.5, above=0, at_most=1)
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS)

    def rounds(self, num_workers: int) -> Rounds:
        """One hop a round."""
        n = num_workers
        if n == 1:
            return Rounds(n, lambda round: (MixingMatrix.identity(1),))
        return Rounds(n, lambda round: (self.matrix(n, round),), period=self.drawn_rounds)

    def matrix(self, n: int, round: int) -> MixingMatrix:
        """W of a round, doubly stochastic, without directed=true symmetric."""
        generator = generator_of(self.seed, self.name, n, round)
        hop, start = int(generator.integers(1, n)), int(generator.integers(n))
        weight = self.eta * (n - 1) / n
        if self.directed:
            return shifts(n, np.array([hop]), np.array([weight]))
        partner = pairs(n, hop, start)
        one = np.flatnonzero(partner >= 0)
        graph = undirected(n, one, partner[one])
        return MixingMatrix.on(graph, np.full(len(graph), weight), np.where(partner >= 0, 1 - weight, 1.0))


def pairs(n: int, hop: int, start: int) -> np.ndarray:
    """The partner of each worker, -1 for those alone: i with i + hop, as far as both are free: int64 [n]."""
    partner = [-1] * n
    for place in range(start, start + n):
        i, j = place % n, (place + hop) % n
        if partner[i] < 0 and partner[j] < 0:
            partner[i], partner[j] = j, i
    return np.array(partner)
