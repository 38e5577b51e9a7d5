"""Properties of topologies that papers and tables report."""

from __future__ import annotations

from typing import Any

import numpy as np

from decentral.topology.graph import Graph
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds


def second_largest_eigenvalue_modulus(W: np.ndarray) -> float:
    """Return |lambda_2|, the asymptotic factor by which W shrinks disagreement per round; 0 for one worker."""
    moduli = np.sort(np.abs(_eigenvalues(W)))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


def smallest_eigenvalue(W: MixingMatrix | np.ndarray) -> float:
    """Return the smallest eigenvalue of W (its real part if W is not symmetric).

    For symmetric matrices of more than 1024 workers, by Lanczos' method without a dense matrix.
    """
    if isinstance(W, MixingMatrix):
        if W.num_workers > _DENSE_EIGENVALUES and W.is_symmetric(0.0):
            return float(_extreme_eigenvalue(W, "SA"))
        W = W.dense()
    return float(_eigenvalues(W).real.min())


def largest_laplacian_eigenvalue(graph: Graph) -> float:
    """Return the largest eigenvalue of D - A for an undirected graph, D the degrees."""
    degree = graph.indegree.astype(np.float64)
    laplacian = MixingMatrix.on(graph, np.full(len(graph), -1.0), degree)
    if graph.num_workers > _DENSE_EIGENVALUES:
        return float(_extreme_eigenvalue(laplacian, "LA"))
    return float(np.linalg.eigvalsh(laplacian.dense())[-1])


_DENSE_EIGENVALUES = 1024


def _extreme_eigenvalue(W: MixingMatrix, which: str) -> float:
    """Return the smallest (SA) or largest (LA) eigenvalue of a symmetric matrix."""
    return float(_lanczos(W, k=1, which=which, tol=1e-10, ncv=64)[0])


def _lanczos(W: MixingMatrix, **how: Any) -> np.ndarray:
    """Return eigenvalues of a symmetric matrix, by Lanczos' method from a fixed start vector."""
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import eigsh

    n = W.num_workers
    start = np.cos(np.arange(n) ** 2 + 1.0)  # the same in every run, and in no small invariant subspace
    matrix = csc_array((W.weight, W.src, W.starts), shape=(n, n))
    eigenvalues: np.ndarray = eigsh(matrix, v0=start, return_eigenvectors=False, maxiter=100 * n, **how)
    return eigenvalues


def _eigenvalues(W: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(W) if np.array_equal(W, W.T) else np.linalg.eigvals(W)


def relay_matrix(rounds: Rounds) -> np.ndarray:
    """Return one step of RelaySum with overlapped messages as a matrix on the recent models of all workers.

    The rows and columns are the n workers' models now, one step ago, ..., tau_max steps ago: n (tau_max + 1) of them.
    The first n rows take 1/n of every worker's model of tau_ij steps ago, the others only shift in time (Vogels et
    al., NeurIPS 2021, definition E). Uses the first piece of static rounds.
    """
    tau = rounds.hops()[0]
    n, oldest = len(tau), int(tau.max())
    M = np.zeros((oldest + 1, n, oldest + 1, n))
    i, j = np.indices(tau.shape)
    M[0, i, tau, j] = 1 / n
    for age in range(oldest):
        M[age + 1, :, age, :] = np.eye(n)
    return M.reshape(n * (oldest + 1), n * (oldest + 1))


def effective_spectral_gap(M: np.ndarray, patience: int = 11) -> tuple[int, float]:
    """Return the (m, p) with the smallest m / p found for the key lemma of Vogels et al. (NeurIPS 2021, appendix A).

    With the limit Pi of M^k, p satisfies ||M^m - Pi||^2 = (1 - p)^(2 m) ||M - Pi||^2 in the spectral norm. As in the
    authors' code, m increases from 1 until m / p has not improved `patience` times, and p must be below |lambda_2| of
    M: the result is a local minimum.
    """
    limit = np.linalg.matrix_power(M, 1 << 20)
    second = second_largest_eigenvalue_modulus(M)
    start = np.linalg.norm(M - limit, 2) ** 2
    best, best_ratio, power, worse = (0, 0.0), np.inf, np.eye(len(M)), 0
    for m in range(1, 100):
        power = power @ M
        shrunk = np.linalg.norm(power - limit, 2) ** 2 / start
        p = 1 - shrunk ** (1 / (2 * m))
        if shrunk >= 1 or p >= second:
            continue
        if m / p < best_ratio:
            best, best_ratio = (m, float(p)), float(m / p)
        else:
            worse += 1
            if worse >= patience:
                break
    return best


def rounds_to_consensus(rounds: Rounds, tolerance: float = 1e-12) -> int | None:
    """Return the number of rounds, from round 0, to exact consensus; None: more than one period.

    Tested on four random vectors: |x_i - mean| <= tolerance must hold after a last round that reduced it by at least
    10^6, which excludes mere shrinking. Sparse, so n = 4,096 takes milliseconds. Uses the first piece.
    """
    x = np.random.default_rng(0).standard_normal((4, rounds.num_workers))
    mean = x.mean(axis=1, keepdims=True)
    before = np.inf
    for count in range(rounds.period + 1):
        left = np.abs(x - mean).max()
        if left <= tolerance:
            return count if left <= before / 1e6 else None
        if count < rounds.period:
            W, before = rounds.mixing(count)[0], left
            x = np.stack([W.apply(one) for one in x])
    return None


def spectral_gap(rounds: Rounds, iterations: int = 300) -> float:
    """Return 1 - p, where p is the asymptotic factor of disagreement per round; 1 for exact consensus.

    p is the period-th root of |lambda_2| of the product of a period's matrices, for up to 256 workers (one symmetric
    matrix: 1,024) and 64 rounds. Larger cases avoid dense matrices: Lanczos' method finds the eigenvalues next to 1 and
    -1 of a single symmetric matrix; otherwise p is estimated from how much the disagreement of random numbers shrinks
    in the second half of at least `iterations` rounds. Uses the first piece.
    """
    n, period = rounds.num_workers, rounds.period
    if n == 1 or rounds_to_consensus(rounds) is not None:
        return 1.0
    W = rounds.mixing(0)[0]
    symmetric = period == 1 and W.is_symmetric(0.0)
    if n <= (_DENSE_EIGENVALUES if symmetric else _DENSE_PRODUCTS) and period <= _DENSE_PERIOD:
        product = np.eye(n)
        for round in range(period):
            product = rounds.matrices(round)[0] @ product
        return 1 - second_largest_eigenvalue_modulus(product) ** (1 / period)
    if symmetric:
        return 1 - max(_second_next_to_one(W), -float(_extreme_eigenvalue(W, "SA")))
    x = np.random.default_rng(0).standard_normal(n)
    half = -(-iterations // (2 * period)) * period
    logarithm = 0.0
    for round in range(2 * half):
        x = rounds.mixing(round)[0].apply(x)
        x -= x.mean()
        size = float(np.linalg.norm(x))
        if size == 0:
            return 1.0
        logarithm += np.log(size) if round >= half else 0.0
        x /= size
    return 1 - float(np.exp(logarithm / half))


_DENSE_PERIOD = 64
_DENSE_PRODUCTS = 256


def _second_next_to_one(W: MixingMatrix) -> float:
    """Return the second largest eigenvalue of a symmetric matrix, by Lanczos' method.

    Uses (W - s I)^-1 with s just above 1 for rows with few entries, as in rings and grids, whose eigenvalues lie close
    together there; otherwise W itself.
    """
    if len(W) <= 5 * W.num_workers:
        return float(_lanczos(W, k=2, sigma=1 + 1e-9).min())
    return float(_lanczos(W, k=2, which="LA", ncv=64, tol=1e-8).min())


def messages_per_round(rounds: Rounds) -> float:
    """Return the total number of messages per round, averaged over a period, in all pieces."""
    counts = (W.num_messages for round in range(rounds.period) for W in rounds.mixing(round))
    return sum(counts) / rounds.period


def told(rounds: Rounds) -> str:
    """Return rounds to exact consensus, spectral gap and messages per round, as text for `--help`."""
    exact = rounds_to_consensus(rounds)
    agree = "never exact" if exact is None else f"exact after {exact} {'round' if exact == 1 else 'rounds'}"
    return f"{agree}, spectral gap {spectral_gap(rounds):.3g}, {messages_per_round(rounds):.4g} messages a round"


def class_error(W: np.ndarray, Pi: np.ndarray, lam: float) -> float:
    """Return f(W) = (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n, J = 1 1^T / n."""
    n = len(W)
    return float((np.square(W @ Pi - Pi.mean(0)).sum() + lam * np.square(W - 1 / n).sum()) / n)
