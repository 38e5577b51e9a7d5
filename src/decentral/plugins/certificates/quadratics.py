"""Facts of a traced method, and its asymptotic rate, bias and noise on quadratics f_i(x) = h_i / 2 (x - b_i)^2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from decentral.plugins.certificates.trace import Phase

_RANK = 1e-9
_ON_CIRCLE = 1e-7
_ALL_UP_TO, _CLIMBS = 8, 4
STABLE = 1 - 1e-9


def heterogeneous(n: int) -> np.ndarray:
    """Return an orthonormal basis [n, n - 1] of the gradients at the optimum, which sum to zero."""
    return np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]


@dataclass(frozen=True)
class Piece:
    """One piece's system, without the modes that no run reaches and that neither points nor models show.

    phases  the matrices of one period
    states  the states of phase 0 that runs begin with [S, k]: of a common start x = 1 without gradients, and after
            single gradients
    """

    phases: list[Phase]
    states: np.ndarray
    lr: float

    @classmethod
    def of(cls, phases: list[Phase], states: np.ndarray, lr: float) -> Piece:
        """Return the system in minimal coordinates."""
        A, B, C, M = zip(*reversed(phases), strict=True)
        # points and models show the directions that the transposed system reaches, backwards
        shown = [np.vstack([c, m]).T for c, m in zip(C, M, strict=True)]
        W = _spanned([a.T for a in A], shown)
        phases, states = _projected(phases, [W[-t] for t in range(len(W))]), W[0].T @ states
        A, B, C, M = zip(*phases, strict=True)
        unit = max(float(np.abs(b).max()) for b in B) or 1.0
        V = _spanned(A, [*(b / unit for b in B[:-1]), np.hstack([B[-1] / unit, states[:, :1]])])
        return cls(_projected(phases, V), V[0].T @ states, lr)

    @property
    def n(self) -> int:
        """Return the number of workers."""
        return len(self.phases[0][2])

    @property
    def models(self) -> np.ndarray:
        """Return the map [n, S] from the state at the end of a period to the models."""
        return self.phases[0][3]

    # -- facts, true for all functions ---------------------------------------------------------------------------------

    def errors(self) -> tuple[float, float, float]:
        """Return three numbers that are zero if a fact holds.

        - The largest norm of the coefficients by which a step moves the mean of the models otherwise than by -lr times
          the mean gradient.
        - The largest distance from x = 1 of points and models that start there, without gradients.
        - The norm of the residual, relative to the gradients, of the equations by which the optimum of heterogeneous
          workers is a fixed point.
        """
        S, n = len(self.states), self.n
        forced = np.hstack([np.zeros((n, S)), heterogeneous(n)])
        mean, shown, state = [], [], np.eye(S, S + n - 1)
        for (A, B, C, M), (*_, after) in zip(self.phases, [*self.phases[1:], self.phases[0]], strict=True):
            moved = after.sum(0)
            mean.append(np.append(moved @ A - M.sum(0), moved @ B / self.lr + 1))
            shown += [C @ state, M @ state]
            state = A @ state + B @ forced
        period, start = state - np.eye(S, S + n - 1), self.states[:, 0]
        common = np.append(np.concatenate(shown)[:, :S] @ start - 1, period[:, :S] @ start)
        equations, values = np.split(np.concatenate([*shown, period]), [S], axis=1)
        residual = values - equations @ np.linalg.pinv(equations, rcond=1e-12) @ values
        farthest = max(float(np.linalg.norm(each)) for each in mean)
        return farthest, float(np.abs(common).max()), float(np.linalg.norm(residual)) / self.lr

    def counts(self) -> tuple[np.ndarray, bool]:
        """Return c [n, k], n times the final effect of each single gradient of `states` on each model, divided by -lr;
        and whether models settle after the last gradient: all modes but constant ones decay."""
        period = self._period(np.zeros(self.n))[0]
        right, left = (_kernel(each - np.eye(len(each))) for each in (period, period.T))
        limits = right @ np.linalg.pinv(left.T @ right) @ left.T @ self.states[:, 1:]
        eigenvalues = np.linalg.eigvals(period)
        others = np.abs(eigenvalues[np.abs(eigenvalues - 1) > _ON_CIRCLE])
        settles = len(others) == len(period) - right.shape[1] and bool((others <= 1 - _ON_CIRCLE).all())
        return -self.n / self.lr * (self.models @ limits), settles

    # -- quadratics ----------------------------------------------------------------------------------------------------

    def rate(self, h: np.ndarray) -> float:
        """Return rho, the spectral radius per step, for curvatures h [n]. Squared errors contract by rho^2."""
        return float(np.abs(np.linalg.eigvals(self._period(h)[0])).max(initial=0.0) ** (1 / len(self.phases)))

    def fixed_point(self, h: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return the models [n] (or [n, k] for q [n, k]) at the fixed point with gradients H p - q, at the end of a
        period."""
        period, driven, _ = self._period(h)
        return self.models @ np.linalg.solve(np.eye(len(period)) - period, -driven @ q)

    def worst_bias(self, h: np.ndarray) -> float:
        """Return the largest sqrt(1/n sum_i bias_i^2) over all optima b with zeta^2 = 1."""
        return float(np.linalg.norm(self.fixed_point(h, -heterogeneous(self.n)), 2)) if self.n > 1 else 0.0

    def noise(self, h: np.ndarray) -> np.ndarray:
        """Return the stationary covariance [n, n] of the models for gradient noise of variance 1, independent over
        workers and steps, at the end of a period."""
        period, _, driven = self._period(h)
        return self.models @ np.asarray(solve_discrete_lyapunov(period, driven)) @ self.models.T

    def _period(self, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the map of the state over a period, that of constant gradients, and the noise it adds; for curvatures
        h [n], or a Hessian h [n, n]."""
        S, H = len(self.states), np.diag(h) if h.ndim == 1 else h
        period, driven, noise = np.eye(S), np.zeros((S, self.n)), np.zeros((S, S))
        for A, B, C, _ in self.phases:
            F = A + B @ (H @ C)
            period, driven, noise = F @ period, F @ driven + B, F @ noise @ F.T + B @ B.T
        return period, driven, noise


def _spanned(maps: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return orthonormal bases V_t of all states that s_{t+1} = A_t s_t + B_t g_t reaches from zero; for a period of
    maps A_t and inputs B_t."""
    V = [np.zeros((A.shape[1], 0)) for A in maps]
    t = unchanged = 0
    while unchanged < len(V):
        after = (t + 1) % len(V)
        wider = _wider(V[after], np.hstack([maps[t] @ V[t], inputs[t]]))
        unchanged = unchanged + 1 if wider.shape == V[after].shape else 0
        V[after], t = wider, after
    return V


def _wider(basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the orthonormal basis with further directions of the columns, which are not scaled: scaling would turn
    rounding errors into directions."""
    for _ in range(2):
        columns = columns - basis @ (basis.T @ columns)
    directions, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.hstack([basis, directions[:, sizes > _RANK]])


def _projected(phases: list[Phase], V: list[np.ndarray]) -> list[Phase]:
    """Return the system in coordinates of these subspaces, one for the state before each phase."""
    ends = [v.T for v in (*V[1:], V[0])]
    return [(W @ A @ v, W @ B, C @ v, M @ v) for (A, B, C, M), v, W in zip(phases, V, ends, strict=True)]


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the kernel."""
    _, sizes, rows = np.linalg.svd(matrix)
    return np.transpose(rows[sizes <= _ON_CIRCLE * max(1.0, sizes.max(initial=0.0))])


def noise_ratio(piece: Piece, h: np.ndarray, count: float) -> tuple[float, float]:
    """Return the stationary variances of a worker's model, on average, and of the mean of the models, divided by that
    of all-reduce SGD: a / (n h (2 - a h)), a = count * lr and h the mean curvature; not a number if that is unstable
    at a."""
    a, mean = count * piece.lr, float(h.mean())
    reference = a / (piece.n * mean * (2 - a * mean)) if 0 < a * mean < 2 else math.nan
    covariance = piece.noise(h)
    return float(np.trace(covariance)) / piece.n / reference, float(covariance.mean()) / reference


def hardest(pieces: Sequence[Piece], mu: float, L: float) -> tuple[np.ndarray, float]:
    """Return the h in {mu, L}^n with the largest rate, and that rate: all are tried for few workers; otherwise single
    flips climb from the best of many starts. Equal rates are ties."""
    n, chosen = pieces[0].n, lambda bits: np.where(bits, L, mu)
    rate = lambda h: round(max(piece.rate(h) for piece in pieces), 12)  # noqa: E731
    if n <= _ALL_UP_TO:
        worst = max(map(chosen, itertools.product((0, 1), repeat=n)), key=rate)
    else:
        generator = np.random.default_rng(0)
        random = generator.random((n, n)) < generator.random((n, 1))
        bits = [np.zeros(n), np.ones(n), np.arange(n) < n // 2, np.arange(n) % 2 == 0, *np.eye(n), *random]
        starts = sorted(map(chosen, bits), key=rate)[-_CLIMBS:]
        worst = max((_climbed(h, rate, mu + L) for h in starts), key=rate)
    return worst, rate(worst)


def _climbed(h: np.ndarray, value: Callable[[np.ndarray], float], ends: float) -> np.ndarray:
    """Return the local maximum that single flips, from h_i to `ends` - h_i, reach from h."""
    highest, improved = value(h), True
    while improved:
        improved = False
        for i in range(len(h)):
            flipped = np.where(np.arange(len(h)) == i, ends - h, h)
            if (other := value(flipped)) > highest * (1 + _RANK):
                h, highest, improved = flipped, other, True
    return h
