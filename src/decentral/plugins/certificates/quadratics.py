"""Facts of a traced method, and its exact rate, bias and noise on quadratics f_i(x) = h_i / 2 (x - b_i)^2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from decentral.plugins.certificates.trace import Phase

_RANK = 1e-9
_ON_CIRCLE = 1e-7
_ALL_UP_TO, _CLIMBS = 8, 4
STABLE = 1 - 1e-9


@dataclass(frozen=True)
class Piece:
    """One piece's system, without the modes that no run reaches and that neither points nor models show.

    phases    the matrices of one period
    start     the state of a common start x = 1 without gradients: [S]
    impulses  states [S, k] after single gradients of the first steps
    """

    phases: list[Phase]
    start: np.ndarray
    impulses: np.ndarray
    lr: float

    @classmethod
    def of(cls, phases: list[Phase], start: np.ndarray, lr: float, impulses: np.ndarray | None = None) -> Piece:
        """Return the system in minimal coordinates; start [S, 1]."""
        V, O = minimal(phases, start)  # noqa: E741
        T, p = [v @ o for v, o in zip(V, O, strict=True)], len(V)
        small = [
            Phase(T[(t + 1) % p].T @ A @ T[t], T[(t + 1) % p].T @ B, C @ T[t], M @ T[t])
            for t, (A, B, C, M) in enumerate(phases)
        ]
        first = start[:, :0] if impulses is None else impulses
        return cls(small, (T[0].T @ start)[:, 0], T[0].T @ first, lr)

    @property
    def n(self) -> int:
        """Return the number of workers."""
        return len(self.phases[0].C)

    # -- facts, true for all functions ---------------------------------------------------------------------------------

    @cached_property
    def mean_error(self) -> float:
        """The largest coefficient by which a step moves the mean of the models otherwise than -lr times the mean
        gradient."""
        worst, p = 0.0, len(self.phases)
        for t, (A, B, _, M) in enumerate(self.phases):
            after = self.phases[(t + 1) % p].M.sum(0)
            moved = np.abs(after @ A - M.sum(0)).max(initial=0.0), np.abs(after @ B / self.lr + 1).max(initial=0.0)
            worst = max(worst, *map(float, moved))
        return worst

    @cached_property
    def common_error(self) -> float:
        """The largest distance from x = 1 of points and models that start there, without gradients."""
        s, worst = self.start, 0.0
        for A, _, C, M in self.phases:
            worst = max(worst, float(np.abs(C @ s - 1).max()), float(np.abs(M @ s - 1).max()))
            s = A @ s
        return max(worst, float(np.abs(s - self.start).max()))

    @cached_property
    def settles(self) -> bool:
        """Whether models settle after the last gradient: no mode but constant ones neither grows nor decays."""
        eigenvalues = np.linalg.eigvals(self._open)
        constant = np.abs(eigenvalues - 1) <= _ON_CIRCLE
        return (
            bool((np.abs(eigenvalues[~constant]) <= 1 - _ON_CIRCLE).all()) and self._constant.shape[1] == constant.sum()
        )

    @cached_property
    def counts(self) -> np.ndarray:
        """c [n, k + period * n]: n times the final effect of a gradient on each model, divided by -lr; first of
        `impulses`, then of gradients after the warm-up."""
        q, ends = np.eye(len(self.start)), []
        for A, B, _, _ in reversed(self.phases):
            ends.append(q @ B)
            q = q @ A
        right, left = self._constant, _kernel(self._open.T - np.eye(len(q)))
        if right.shape != left.shape:
            return np.full((self.n, 1), np.nan)
        limits = right @ np.linalg.solve(left.T @ right, left.T @ np.hstack([self.impulses, *ends]))
        counted: np.ndarray = -self.n / self.lr * (self.phases[0].M @ limits)
        return counted

    @cached_property
    def count(self) -> float:
        """The effective rate factor c: the number of times that each gradient after the warm-up finally counts; not a
        number if they differ."""
        steady = self.counts[:, self.impulses.shape[1] :]
        return float(steady.mean()) if np.ptp(steady) <= _ON_CIRCLE * np.abs(steady).max(initial=0.0) else math.nan

    @cached_property
    def _open(self) -> np.ndarray:
        """The map of the state over a period without gradients."""
        return self._period(np.zeros(self.n))[0]

    @cached_property
    def _constant(self) -> np.ndarray:
        """The states that it keeps."""
        return _kernel(self._open - np.eye(len(self.start)))

    @cached_property
    def heterogeneous_error(self) -> float:
        """The residual, relative to the gradients, of the equations by which the optimum of heterogeneous workers is a
        fixed point."""
        n, S = self.n, len(self.start)
        basis = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]
        left, right, state, q = [], [], np.eye(S), np.zeros((S, n - 1))
        for A, B, C, M in self.phases:
            for read in (C, M):
                left.append(read @ state)
                right.append(-read @ q)
            state, q = A @ state, A @ q + B @ basis
        left.append(state - np.eye(S))
        right.append(-q)
        equations, values = np.concatenate(left), np.concatenate(right)
        if n == 1:
            return 0.0
        residual = equations @ np.linalg.lstsq(equations, values, rcond=1e-12)[0] - values
        return float(np.abs(residual).max()) / self.lr

    # -- quadratics ----------------------------------------------------------------------------------------------------

    def rate(self, h: np.ndarray) -> float:
        """Return rho, the spectral radius per step, for curvatures h [n]. Squared errors contract by rho^2."""
        radius = np.abs(np.linalg.eigvals(self._period(h)[0])).max(initial=0.0)
        return float(radius ** (1 / len(self.phases)))

    def fixed_point(self, h: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return the models [n] (or [n, k] for q [n, k]) at the fixed point with gradients H p - q, at the end of a
        period."""
        period, driven, _ = self._period(h)
        ends: np.ndarray = self.phases[0].M @ np.linalg.solve(np.eye(len(period)) - period, -driven @ q)
        return ends

    def bias(self, h: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return x_i - sum(h b) / sum(h) [n] at the fixed point, at the end of a period."""
        return self.fixed_point(h, h * b) - (h @ b) / h.sum()

    def worst_bias(self, h: np.ndarray) -> float:
        """Return the largest sqrt(1/n sum_i bias_i^2) over all optima b with zeta^2 = 1."""
        basis = np.linalg.svd(np.eye(self.n) - 1 / self.n)[0][:, : self.n - 1]  # of gradients at the optimum
        return float(np.linalg.norm(self.fixed_point(h, -basis), 2)) if self.n > 1 else 0.0

    def noise(self, h: np.ndarray) -> np.ndarray:
        """Return the stationary covariance [n, n] of the models for gradient noise of variance 1, independent over
        workers and steps, at the end of a period."""
        period, _, driven = self._period(h)
        covariance: np.ndarray = self.phases[0].M @ solve_discrete_lyapunov(period, driven) @ self.phases[0].M.T
        return covariance

    def _period(self, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the map of the state over a period, that of constant gradients, and the noise it adds; for curvatures
        h [n], or a Hessian h [n, n]."""
        S, H = len(self.start), np.diag(h) if h.ndim == 1 else h
        period, driven, noise = np.eye(S), np.zeros((S, self.n)), np.zeros((S, S))
        for A, B, C, _ in self.phases:
            F = A + B @ (H @ C)
            period, driven, noise = F @ period, F @ driven + B, F @ noise @ F.T + B @ B.T
        return period, driven, noise


def minimal(phases: list[Phase], start: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return, for each phase, orthonormal bases V of the states that runs reach and, in these coordinates, O of the
    directions that points and models ever show."""
    p = len(phases)
    V = [np.zeros((len(phase.A), 0)) for phase in phases]
    V[0] = _wider(V[0], start)
    unit = max(float(np.abs(phase.B).max(initial=0.0)) for phase in phases) or 1.0
    t = unchanged = 0
    while unchanged < p:
        phase, after = phases[t], (t + 1) % p
        wider = _wider(V[after], np.hstack([phase.A @ V[t], phase.B / unit]))
        unchanged = unchanged + 1 if wider.shape == V[after].shape else 0
        V[after], t = wider, after
    O = [np.zeros((v.shape[1], 0)) for v in V]  # noqa: E741
    t, unchanged = p - 1, 0
    while unchanged < p:
        phase, after = phases[t], (t + 1) % p
        seen = np.vstack([phase.C @ V[t], phase.M @ V[t], O[after].T @ V[after].T @ phase.A @ V[t]])
        wider = _wider(O[t], seen.T)
        unchanged = unchanged + 1 if wider.shape == O[t].shape else 0
        O[t], t = wider, (t - 1) % p
    return V, O


def _wider(basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the orthonormal basis with further directions of the columns, which are not scaled: scaling would turn
    rounding errors into directions."""
    for _ in range(2):
        columns = columns - basis @ (basis.T @ columns)
    directions, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.hstack([basis, directions[:, sizes > _RANK]])


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the kernel."""
    _, sizes, rows = np.linalg.svd(matrix)
    kernel: np.ndarray = rows[sizes <= _ON_CIRCLE * max(1.0, sizes.max(initial=0.0))].T
    return kernel


def noise_ratio(piece: Piece, h: np.ndarray, count: float) -> tuple[float, float]:
    """Return the stationary variances of a worker's model, on average, and of the mean of the models, divided by that
    of all-reduce SGD: a / (n h (2 - a h)), a = count * lr and h the mean curvature; not a number if that is unstable
    at a."""
    a, mean = count * piece.lr, float(h.mean())
    if not 0 < a * mean < 2:
        return math.nan, math.nan
    covariance, reference = piece.noise(h), a / (piece.n * mean * (2 - a * mean))
    return float(np.trace(covariance)) / piece.n / reference, float(covariance.mean()) / reference


def hardest(value: Callable[[np.ndarray], float], n: int, mu: float, L: float) -> np.ndarray:
    """Return the h in {mu, L}^n with the largest value: all are tried for few workers; otherwise single flips climb
    from the best of many starts."""
    ends, generator = np.array([mu, L]), np.random.default_rng(0)
    if n <= _ALL_UP_TO:
        return max((ends[list(bits)] for bits in itertools.product((0, 1), repeat=n)), key=value)
    half = np.arange(n) < n // 2
    bits = [np.zeros(n, bool), np.ones(n, bool), half, np.arange(n) % 2 == 0, *np.eye(n, dtype=bool)]
    bits += list(generator.random((n, n)) < generator.random((n, 1)))
    starts = sorted((ends[each.astype(int)] for each in bits), key=value)[-_CLIMBS:]
    return max((_climbed(h, value, mu + L) for h in starts), key=value)


def _climbed(h: np.ndarray, value: Callable[[np.ndarray], float], ends: float) -> np.ndarray:
    """Return the local maximum that single flips, from h_i to `ends` - h_i, reach from h."""
    highest, improved = value(h), True
    while improved:
        improved = False
        for i in range(len(h)):
            flipped = h.copy()
            flipped[i] = ends - h[i]
            if (other := value(flipped)) > highest * (1 + _RANK):
                h, highest, improved = flipped, other, True
    return h


def curvatures(pieces: list[Piece], mu: float, L: float) -> np.ndarray:
    """Return the h in {mu, L}^n with the largest rate found."""
    return hardest(lambda h: max(piece.rate(h) for piece in pieces), pieces[0].n, mu, L)
