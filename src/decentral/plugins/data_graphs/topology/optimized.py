"""Mixing weights of a graph that minimize a stated objective."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.plugins.data_graphs.shares import SeesClasses
from decentral.registry import components
from decentral.settings import setting
from decentral.topology.facts import class_error, second_largest_eigenvalue_modulus
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MatrixTopology, Weights, mixing_matrix

_DRAWS = 20
_MOST_WORKERS = 128


class Objective(Enum):
    """Objective of the weights."""

    spectral = "spectral"
    classes = "classes"


@dataclass
class Optimized(SeesClasses, MatrixTopology):
    """The symmetric weights of a graph that minimize an objective.

        spectral    ||W - J||_2, the factor by which a round shrinks disagreement, J = 1 1^T / n
        classes     (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n, as STL-FW, Pi [n, C] the workers' class shares
        over all    W = I - sum_e w_e L_e, L_e the Laplacian of edge e: symmetric, with rows that sum to 1

    Xiao & Boyd, Systems & Control Letters 2004 (spectral, a semidefinite program, by Clarabel); classes is a least
    squares problem. Weights may be negative, as in the paper. The notes of a run have the objective with Metropolis
    weights and with these.

    objective  spectral or classes
    graph      an undirected topology with its default settings
    budget     instead of `graph`: number of neighbors of each worker, in the random regular graph that is best with
               Metropolis weights, of 20
    lam        as for stl_fw; with objective=classes only
    """

    name: str = "optimized"
    objective: Objective = Objective.spectral
    graph: str = "ring"
    budget: int | None = setting(None, at_least=1)
    lam: float = setting(0.1, above=0)

    def rounds(self, num_workers: int) -> Rounds:
        """Return the single matrix of all rounds."""
        W, _ = self.weights(num_workers)
        return Rounds(num_workers, lambda round: (W,))

    def notes(self) -> tuple[str, ...]:
        """Say what the optimization has changed."""
        return () if self.run is None else (self.weights(self.run.num_workers)[1],)

    def weights(self, n: int) -> tuple[MixingMatrix, str]:
        """Return the optimized matrix, and the objective before and after in words."""
        if self.objective is Objective.spectral:
            require("clarabel", "topology.objective=spectral", "pip install '.[certificates]'")
        if n > _MOST_WORKERS:
            raise ConfigError(f"num_workers={n} is too many for topology=optimized: use at most {_MOST_WORKERS}.")
        Pi = self.given(n) if self.objective is Objective.classes else np.zeros((n, 0))
        value = lambda W: objective(W.dense(), self.objective, Pi, self.lam)  # noqa: E731
        equal = [mixing_matrix(A, Weights.metropolis, None, self.graph) for A in self._candidates(n)]
        before = min(equal, key=value)
        W = MixingMatrix.of(optimized(before.graph, self.objective, Pi, self.lam))
        words = f"{self.objective.name} objective {value(before):.4g} with Metropolis weights"
        return W, f"{words}, {value(W):.4g} with the weights used"

    def _candidates(self, n: int) -> list[Graph]:
        """Return the graphs whose weights may be optimized."""
        kinds = components("topology")
        if self.budget is not None:
            drawn = [kinds["random_regular"](degree=self.budget, seed=seed) for seed in range(_DRAWS)]
            return [topology.schedule(n).mixing(0)[0].graph for topology in drawn]
        if self.graph not in kinds:
            raise ConfigError(f"topology.graph={self.graph} is not a topology.")
        rounds = kinds[self.graph]().schedule(n)
        A = rounds.mixing(0)[0].graph
        if rounds.period > 1 or rounds.num_pieces > 1 or not is_undirected(A):
            raise ConfigError(
                f"topology.graph={self.graph} is directed, changes, or has several pieces: use an undirected graph, "
                "such as ring, or topology.budget."
            )
        return [A]


def objective(W: np.ndarray, kind: Objective, Pi: np.ndarray, lam: float) -> float:
    """Return the objective of a symmetric W."""
    return second_largest_eigenvalue_modulus(W) if kind is Objective.spectral else class_error(W, Pi, lam)


def optimized(A: Graph, kind: Objective, Pi: np.ndarray, lam: float) -> np.ndarray:
    """Return the W [n, n] on an undirected graph with the smallest objective."""
    n, src, dst = A.num_workers, A.src[A.src < A.dst], A.dst[A.src < A.dst]
    E, e = len(src), np.arange(len(src))
    L = np.zeros((E, n, n))
    L[e, src, src] = L[e, dst, dst] = 1.0
    L[e, src, dst] = L[e, dst, src] = -1.0
    if kind is Objective.classes:
        root = np.hstack([Pi, np.sqrt(lam) * np.eye(n)])
        w = np.linalg.lstsq((L @ root).reshape(E, -1).T, (root - root.mean(0)).ravel())[0]
    else:
        w = _smallest_norm(L)
    return np.eye(n) - np.tensordot(w, L, 1)


def _smallest_norm(L: np.ndarray) -> np.ndarray:
    """Return the w [E] that minimize the t with -t I <= I - J - sum_e w_e L_e <= t I."""
    import clarabel
    from scipy import sparse

    E, n, _ = L.shape
    i, j = np.nonzero(np.tri(n, dtype=bool))  # the upper triangle by columns, off the diagonal times sqrt(2)
    triangle = lambda M: M[..., i, j] * np.where(i == j, 1.0, np.sqrt(2))  # noqa: E731
    t, rest = -triangle(np.eye(n))[:, None], triangle(np.eye(n) - 1 / n)
    signs = np.vstack([np.hstack([sign * triangle(L).T, t]) for sign in (1, -1)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    problem = sparse.csc_matrix((E + 1, E + 1)), np.eye(E + 1)[E], sparse.csc_matrix(signs)
    cones = [clarabel.PSDTriangleConeT(n)] * 2
    return np.array(clarabel.DefaultSolver(*problem, np.append(rest, -rest), cones, settings).solve().x)[:E]
