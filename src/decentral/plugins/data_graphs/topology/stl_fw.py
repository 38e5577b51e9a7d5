"""STL-FW."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.plugins.data_graphs.shares import SeesClasses
from decentral.settings import setting
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MatrixTopology

_TIE = 1e-9


@dataclass
class STLFW(SeesClasses, MatrixTopology):
    """STL-FW: a sparse matrix whose neighborhoods have the classes of all workers, by the Frank-Wolfe method.

        f(W)   = (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n     J = 1 1^T / n, Pi [n, C] the workers' class shares
        W^0    = I, and repeatedly
        G      = 2/n ((W Pi - J Pi) Pi^T + lam (W - J))
        S      = the permutation matrix with the smallest <G, S>
        gamma  = (<J Pi - W Pi, (S - W) Pi> - lam <W - J, S - W>) / (||(S - W) Pi||^2 + lam ||S - W||^2), in [0, 1]
        W     <- W + gamma (S - W)

    Le Bars, Bellet, Tommasi, Lavoie & Kermarrec, AISTATS 2023 (arXiv:2204.04452; formula as in the authors' code). Each
    step adds at most one neighbor in each direction. Of all permutations within 1e-9 of the smallest <G, S>, the
    lexicographically smallest is taken: row 0's column first. The last W with at most `budget` neighbors is used, of
    100 steps. W is doubly stochastic but not symmetric, and the graph directed: for dpsgd, gradient_tracking and sgp.

    budget  largest number of neighbors in each direction; null: the number of classes, so a worker may send that many
            messages in a step, against two on a ring: budget=2 compares them at equal bytes
    lam     weight of the distance from exact averaging, sigma^2 / (C B) in the paper: gradient variance over
            heterogeneity
    """

    name: str = "stl_fw"
    budget: int | None = setting(None, at_least=1)
    lam: float = setting(0.1, above=0)

    def rounds(self, num_workers: int) -> Rounds:
        """Return the single matrix of all rounds."""
        Pi = self.given(num_workers)
        W = MixingMatrix.of(stl_fw(Pi, self.lam, Pi.shape[1] if self.budget is None else self.budget)[-1])
        return Rounds(num_workers, lambda round: (W,))


def stl_fw(Pi: np.ndarray, lam: float, budget: int, steps: int = 100) -> list[np.ndarray]:
    """Return the iterates W^0, W^1, ... [n, n] with at most `budget` neighbors."""
    n, iterates = len(Pi), [np.eye(len(Pi))]
    for _ in range(steps):
        W = iterates[-1]
        E = W @ Pi - Pi.mean(0)
        D = permutation(2 / n * (E @ Pi.T + lam * (W - 1 / n))) - W
        length = np.square(D @ Pi).sum() + lam * np.square(D).sum()
        gamma = -((E * (D @ Pi)).sum() + lam * ((W - 1 / n) * D).sum()) / length if length else 0.0
        after = W + min(max(gamma, 0.0), 1.0) * D
        others = (after != 0) & ~np.eye(n, dtype=bool)
        if gamma <= 0 or max(others.sum(0).max(), others.sum(1).max()) > budget:
            break
        iterates.append(after)
    return iterates


def permutation(G: np.ndarray) -> np.ndarray:
    """Return the lexicographically smallest permutation matrix S with <G, S> within 1e-9 of the smallest.

    Entries with reduced cost G_ij - u_i - v_j = 0 are those of optimal permutations, for dual variables u and v.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    n = len(G)
    columns = linear_sum_assignment(G)[1]
    more = G[:, columns] - G[np.arange(n), columns]  # [i, k]: what row i costs more in the column of row k
    v = np.zeros(n)
    for _ in range(n):  # Bellman and Ford
        v = np.minimum(v, (v[:, None] + more).min(0))
    tight = np.zeros((n, n), dtype=bool)
    tight[:, columns] = more + v[:, None] - v <= _TIE
    for i in range(n):
        for j in np.flatnonzero(tight[i]):
            kept = tight.copy()
            kept[i], kept[:, j], kept[i, j] = False, False, True
            if (maximum_bipartite_matching(csr_array(kept)) >= 0).all():
                tight = kept
                break
    return tight.astype(float)
