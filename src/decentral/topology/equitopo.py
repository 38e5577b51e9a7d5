"""EquiTopo: a few fixed random hops (EquiStatic), or one random hop per round (EquiDyn)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decentral.settings import setting
from decentral.topology.drawn import DRAWN_ROUNDS, generator_of, usual_degree
from decentral.topology.graph import undirected
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MAX_ROUNDS, MatrixTopology


@dataclass
class EquiStatic(MatrixTopology):
    """Mean of `num_hops` random circular shifts: a consensus rate independent of the number of workers.

        W = 1/M sum_u A_u        A_u: worker i gives (n-1)/n to i + u modulo n and keeps 1/n
                                 u drawn M times from 1 .. n-1, with replacement
        directed=false           (A_u + A_u^T) / 2 instead of A_u

    Song, Li, Jin, Shi, Yan, Yin & Yuan, NeurIPS 2022 (D- and U-EquiStatic). M = int(8 ln(2n / p) / (3 e^2)) draws make
    ||W - 1 1^T / n|| < e with probability 1 - p; every u once is the exact average. Departure: hops that disconnect the
    workers, all with a common divisor with n, are drawn again.

    num_hops  number of hops M; null: ceil(log2 n), as in the exponential graph
    seed      seed of the draws: all workers know them
    """

    name: str = "equistatic"
    directed: bool = False
    num_hops: int | None = setting(None, at_least=1)
    seed: int = 0

    def rounds(self, num_workers: int) -> Rounds:
        """Return the single matrix of all rounds."""
        W = self.matrix(num_workers)
        return Rounds(num_workers, lambda round: (W,))

    def matrix(self, n: int) -> MixingMatrix:
        """Return W, doubly stochastic, and symmetric unless directed=true."""
        hops = self.hops(n)
        weight = (n - 1) / (n * max(1, len(hops)))
        if not self.directed:
            hops, weight = np.concatenate([hops, n - hops]), weight / 2
        return shifts(n, hops, np.full(len(hops), weight))

    def hops(self, n: int) -> np.ndarray:
        """Return the drawn u: int64 [M]; empty for one worker."""
        count, attempt = usual_degree(n) if self.num_hops is None else self.num_hops, 0
        if n == 1:
            return np.empty(0, dtype=np.int64)
        while True:
            found = generator_of(self.seed, self.name, n, 0, attempt).integers(1, n, size=count)
            if math.gcd(n, *found.tolist()) == 1:
                return found
            attempt += 1


def shifts(n: int, hops: np.ndarray, weights: np.ndarray) -> MixingMatrix:
    """Return W in which every worker gives weights[e] to the worker hops[e] ahead, modulo n, and keeps the rest."""
    given = np.bincount(hops % n, weights=weights, minlength=n)
    hop = np.flatnonzero(given[1:]) + 1
    hop = np.concatenate([[0], hop])
    given[0] = 1 - given[1:].sum()
    src = (np.arange(n)[:, None] - hop) % n
    order = np.argsort(src, axis=1)
    dst = np.repeat(np.arange(n), len(hop))
    return MixingMatrix(n, np.take_along_axis(src, order, 1).ravel(), dst, given[hop][order].ravel())


@dataclass
class EquiDyn(MatrixTopology):
    """A new random graph in every round: one message per worker, and an average rate independent of their number.

        directed=true     W = (1 - eta) I + eta A_u: i gives (n-1)/n of its share to i + u modulo n, u from 1 .. n-1
        directed=false    W = (1 - eta) I + eta B: in the order s, s+1, ..., n-1, 0, ..., s-1 of a random s, i and i + u
                          form a pair if both are free; B_ij = (n-1)/n and B_ii = 1/n for pairs, 1 for unpaired workers

    Song et al., NeurIPS 2022 (OD- and OU-EquiDyn). eta = 1/2 is the paper's, from memory, its text was not checked; the
    authors' scripts have 0.53, their code 1, for which the directed W is nearly a permutation.

    seed          seed of the draws, with the round: all workers know them
    drawn_rounds  number of rounds after which the same draws repeat, in the same order
    """

    name: str = "equidyn"
    directed: bool = False
    eta: float = setting(0.5, above=0, at_most=1)
    seed: int = 0
    drawn_rounds: int = setting(DRAWN_ROUNDS, at_least=1, at_most=MAX_ROUNDS)

    def rounds(self, num_workers: int) -> Rounds:
        """Return rounds with one hop each."""
        n = num_workers
        if n == 1:
            return Rounds(n, lambda round: (MixingMatrix.identity(1),))
        return Rounds(n, lambda round: (self.matrix(n, round),), period=self.drawn_rounds)

    def matrix(self, n: int, round: int) -> MixingMatrix:
        """Return W of a round, doubly stochastic, and symmetric unless directed=true."""
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
    """Return each worker's partner, -1 if unpaired: i with i + hop while both are free: int64 [n]."""
    partner = [-1] * n
    for place in range(start, start + n):
        i, j = place % n, (place + hop) % n
        if partner[i] < 0 and partner[j] < 0:
            partner[i], partner[j] = j, i
    return np.array(partner)
