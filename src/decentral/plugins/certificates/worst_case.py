"""The worst error of a method after K steps over all mu-strongly convex, L-smooth functions, by performance estimation.

    maximize    1/n sum_i ||x_i^K - x*||^2
    subject to  ||x^0 - x*||^2 <= R^2,  1/n sum_i ||grad f_i(x*)||^2 <= zeta^2,  and for all workers i, nodes a != b:
                f_b - f_a + <g_b, p_a - p_b> + L / (2 (L - mu)) (||dg||^2 / L + mu ||dp||^2 - 2 mu / L <dg, dp>) <= 0

with the points p and gradients g of worker i at its nodes (the optimum, and steps 0 .. K - 1), dp = p_a - p_b and
dg = g_a - g_b: necessary and sufficient for such functions to exist (Taylor, Hendrickx & Glineur, 2017). The variable
is the Gram matrix of x^0 - x* and all gradients; the dual is solved here:

    E_K <= tau_R R^2 + tau_z zeta^2   for all R and zeta,   if  S = tau_R A_R + tau_z A_z + sum lambda A - A_K >= 0

and lambda, tau >= 0, where lambda is balanced at each node. The solution is rounded so that this holds in spite of the
solver's tolerance. If worker numbers may be shifted, S is block diagonal in the subspaces that shifts keep.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.plugins.certificates.trace import TOLERANCE, Method, coefficients

_MARGINS = 1e-7, 1e-6, 1e-5, 1e-4
_LARGEST = 60
"""The largest n * K without symmetry."""


def worst_case(
    method: Method, lr: float, steps: int, mu: float, L: float, R2: float = 1.0, zeta2: float = 0.0, reduce: bool = True
) -> dict[str, float]:
    """Return bounds on the error E_K = 1/n sum_i ||x_i^K - x*||^2 after some steps, for R^2 = R2 and zeta^2 = zeta2:
    the error of functions that exist (`lower`) and tau_R R^2 + tau_z zeta^2 (`upper`), not a number if rounding left no
    certificate.

    Raises NotLinear for a method that moves away from a common optimum, and ConfigError for too large a problem.
    """
    points, final, bases = traced(method, lr, steps, reduce)
    forms = [
        forms_of(p, x, V, mu, L, zeta2 > 0, len(bases) > 1) for p, x in zip(points, final, strict=True) for V in bases
    ]
    upper, tau_R, tau_z, _ = certified(forms, steps + 1, R2, zeta2)
    return {"lower": attained(forms, steps + 1, R2, zeta2), "upper": upper, "tau_R": tau_R, "tau_z": tau_z}


def traced(
    method: Method, lr: float, steps: int, reduce: bool = True
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the coefficients, and bases of the subspaces of workers that are separate by symmetry; or raise the errors
    of `worst_case`."""
    require("clarabel", "the worst case (certify.steps)", "pip install '.[certificates]'")
    points, final = coefficients(method, steps, lr)
    moved = max(np.abs(rows[..., 0] - 1).max() for rows in (points, final))
    method.refuse(moved > TOLERANCE, "moves away from a common optimum: leave out weight decay or certify.steps")
    bases, n = symmetric(points, final) if reduce else [], method.n
    if not bases and n * steps > _LARGEST:
        raise ConfigError(
            f"num_workers * certify.steps = {n * steps} is too large for algo={method.algorithm.name} on this graph, "
            f"which has no symmetry: use at most {_LARGEST}."
        )
    return points, final, bases or [np.linalg.svd(np.eye(n) - 1 / n)[0]]


def symmetric(points: np.ndarray, final: np.ndarray) -> list[np.ndarray]:
    """Return bases [n, w], with columns of length sqrt(n), of the subspaces that all shifts of worker numbers keep, for
    an abelian group Z_a x Z_b x ... of shifts that change no coefficient; none if there is no such group."""
    d, K, n, _ = points.shape
    rows = np.concatenate([points, final[:, None]], axis=1)[..., 1:].reshape(d, K + 1, n, K, n)
    rounding = 1e-12 * np.abs(rows).max(initial=1.0)
    shapes = [(n,), *((a, n // a) for a in range(2, n) if n % a == 0), (2,) * (n.bit_length() - 1)]
    for shape in (shape for shape in shapes if math.prod(shape) == n > 1):
        shifts = [np.roll(np.arange(n).reshape(shape), 1, axis).ravel() for axis in range(len(shape))]
        if all(np.abs(rows[:, :, s][..., s] - rows).max() <= rounding for s in shifts):
            places = np.indices(shape).reshape(len(shape), n)
            invariant = np.random.default_rng(0).random(shape)[tuple(places[:, :, None] - places[:, None])]
            values, vectors = np.linalg.eigh(invariant + invariant.T)  # different, except for conjugate characters
            bases = np.split(math.sqrt(n) * vectors, np.flatnonzero(np.diff(values) > 1e-9) + 1, axis=1)
            is_scalar = np.abs(rows - rows.swapaxes(2, 4)).max() <= rounding  # on both columns of a basis alike
            return [V[:, :1] for V in bases] if is_scalar else bases
    return []


def forms_of(
    points: np.ndarray, final: np.ndarray, V: np.ndarray, mu: float, L: float, is_heterogeneous: bool, mean: bool
) -> np.ndarray:
    """Return matrices [3 + m, D, D] on a block of the Gram matrix: of the error, A_R, A_z, and the inequalities of all
    workers, or their mean.

    The block has w columns for x^0 and the gradients at the optimum, and w for the gradients of each step, as
    coordinates in a subspace V [n, w] of the workers. x^0 is common, so it takes the column of the constant vector;
    gradients at the optimum sum to zero, so they take the others.
    """
    K, n, _ = points.shape
    constant = np.abs(V.sum(0)) > 0.5
    nodes = np.stack([0 * final, *points, final], axis=1)
    later = (nodes[..., 1:].reshape(n, K + 2, K, n) @ V).reshape(n, K + 2, -1)
    nodes = np.concatenate([nodes[..., :1] * constant, later], axis=2)
    g = np.kron(np.eye(K + 1), V).reshape(K + 1, n, -1).swapaxes(0, 1)
    g[:, 0, : len(constant)] *= ~constant
    a, b = pairs(K + 1)
    dp, dg, scale = nodes[:, a] - nodes[:, b], g[:, a] - g[:, b], L / (2 * (L - mu))
    product = lambda u, v: np.einsum("iad,iae->ade" if mean else "iad,iae->iade", u, v)  # noqa: E731
    all_ = product(g[:, b] - 2 * scale * mu / L * dg, dp) + scale * (product(dg, dg) / L + mu * product(dp, dp))
    inequalities = (all_ + all_.swapaxes(-1, -2)) / (2 * n if mean else 2)
    error, optimum = (rows.T @ rows / n for rows in (nodes[:, -1], g[:, 0]))
    start = np.diag(np.append(constant, np.zeros(K * len(constant))))
    kept = np.append(constant | is_heterogeneous, np.ones(K * len(constant), dtype=bool))
    return np.concatenate([[error, start, optimum], inequalities.reshape(-1, *error.shape)])[:, kept][:, :, kept]


def pairs(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (a, b) of a worker's inequalities, a != b."""
    a, b = np.nonzero(~np.eye(nodes, dtype=bool))
    return a, b


# -- the dual ----------------------------------------------------------------------------------------------------------


def solve(
    forms: list[np.ndarray], nodes: int, R2: float, zeta2: float, margin: float, tighten: float
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Minimize (1 - tighten) tau . (R^2, zeta^2) - tighten sum lambda subject to S >= margin I; return (tau, lambda),
    the Gram matrices, and f [workers, nodes], with the tolerance of the solver."""
    import clarabel

    (a, b), others, m = pairs(nodes), np.arange(1, nodes)[:, None], len(forms[0]) - 1
    balance = (b == others).astype(float) - (a == others)  # flow at the optimum follows from the other nodes'
    flow = sparse.kron(sparse.identity((m - 2) // len(a)), balance)
    flow = sparse.hstack([sparse.csc_matrix((flow.shape[0], 2)), flow])
    triangles = [_triangles(np.concatenate([form, margin * np.eye(len(form[0]))[None]])) for form in forms]
    A = sparse.vstack([flow, -sparse.identity(m), *(-part[1:-1].T for part in triangles)])
    offsets = [np.zeros(flow.shape[0]), np.zeros(m), *(-part[0] - part[-1] for part in triangles)]
    cones = [clarabel.ZeroConeT(flow.shape[0]), clarabel.NonnegativeConeT(m)]
    cones += [clarabel.PSDTriangleConeT(len(form[0])) for form in forms]
    cost = np.concatenate([(1 - tighten) * np.array([R2, zeta2 or 1.0]), np.full(m - 2, -tighten)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    none, matrix = sparse.csc_matrix((m, m)), sparse.csc_matrix(A)
    solved = clarabel.DefaultSolver(none, cost, matrix, np.concatenate(offsets), cones, settings).solve()
    flows, _, *grams = np.split(np.array(solved.z), np.cumsum([len(part) for part in offsets])[:-1])
    values = np.insert(-flows.reshape(-1, nodes - 1), 0, 0.0, axis=1)
    return np.array(solved.x), [_matrix(gram, len(form[0])) for gram, form in zip(grams, forms, strict=True)], values


def _triangles(matrices: np.ndarray) -> np.ndarray:
    """Return the upper triangles by columns, off-diagonal entries times sqrt(2): [m, D, D] -> [m, D (D + 1) / 2]."""
    j, i = np.tril_indices(matrices.shape[-1])
    return matrices[:, i, j] * np.where(i == j, 1.0, math.sqrt(2))


def _matrix(triangle: np.ndarray, D: int) -> np.ndarray:
    j, i = np.tril_indices(D)
    matrix = np.zeros((D, D))
    matrix[i, j] = matrix[j, i] = triangle / np.where(i == j, 1.0, math.sqrt(2))
    return matrix


def certified(forms: list[np.ndarray], nodes: int, R2: float, zeta2: float) -> tuple[float, float, float, np.ndarray]:
    """Return a bound tau_R R^2 + tau_z zeta^2 that holds in spite of rounding, tau_R, tau_z, and the multipliers
    lambda [workers, nodes, nodes] at (a, b), n times a worker's with symmetry; not a number if no bound is found.

    Multipliers become multiples of a power of two with exactly balanced flows, and the smallest eigenvalue of S has to
    exceed the error of computing S.
    """
    for margin in _MARGINS:
        weights, _, _ = solve(forms, nodes, R2, zeta2, margin, 0.0)
        if np.isfinite(weights).all():
            (tau_R, tau_z), multipliers = np.maximum(weights[:2], 0).tolist(), balanced(weights[2:], nodes)
            weights = np.concatenate([[tau_R, tau_z], multipliers[:, *pairs(nodes)].ravel()])
            if all(_is_positive(form, weights) for form in forms):
                upper = math.nextafter(tau_R * R2 + tau_z * zeta2, math.inf)
                return upper * (1 + 2**-50), tau_R, tau_z if zeta2 else math.nan, multipliers
    return math.nan, math.nan, math.nan, np.zeros((0, nodes, nodes))


def balanced(multipliers: np.ndarray, nodes: int) -> np.ndarray:
    """Return the multipliers rounded down to multiples of a power of two, plus what balances the flow at each node:
    [workers, nodes, nodes]. Their sum is below 2^52 of these, so that they are exact in float64."""
    a, b = pairs(nodes)
    positive = np.maximum(multipliers, 0.0).reshape(-1, len(a))
    scale = 50 - math.ceil(math.log2(positive.sum() or 1.0))
    flows = np.zeros((len(positive), nodes, nodes), dtype=np.int64)
    flows[:, a, b] = np.floor(np.ldexp(positive, scale))
    excess = flows.sum(1) - flows.sum(2)
    flows[:, 1:, 0] += np.maximum(excess, 0)[:, 1:]
    flows[:, 0, 1:] += np.maximum(-excess, 0)[:, 1:]
    return np.ldexp(flows.astype(float), -scale)


def _is_positive(form: np.ndarray, weights: np.ndarray) -> bool:
    """Return whether S >= 0, with certainty: its smallest eigenvalue exceeds all errors of computing it."""
    S, size = (np.tensordot(np.append(sign, weights), part, 1) for sign, part in ((-1, form), (1, np.abs(form))))
    error = 4 * np.finfo(float).eps * (len(weights) + len(S) + 20) * float(np.linalg.norm(size))
    return bool(np.linalg.eigvalsh(S)[0] >= error)


# -- functions that attain an error ------------------------------------------------------------------------------------


def attained(forms: list[np.ndarray], nodes: int, R2: float, zeta2: float) -> float:
    """Return the error of functions that exist; 0 if rounding left none.

    The Gram matrix of the solution violates constraints by the solver's tolerance. A convex combination with that of a
    tightened problem, which satisfies them strictly, satisfies all.
    """
    error, excess = _excess(forms, nodes, R2, zeta2, 0.0)
    best = 0.0
    for margin in _MARGINS:
        inner, slack = _excess(forms, nodes, R2, zeta2, margin)
        if slack.max() < 0:
            share = min(1.0, 2 * float(np.max(excess / (excess - slack))))
            best = max(best, (1 - share) * error + share * inner)
            if share <= 0.5:
                break
    return best


def _excess(forms: list[np.ndarray], nodes: int, R2: float, zeta2: float, tighten: float) -> tuple[float, np.ndarray]:
    """Return the error of a solution, and by how much it violates each constraint: 0 or more without tightening."""
    (a, b), total = pairs(nodes), np.zeros(len(forms[0]))
    _, grams, values = solve(forms, nodes, R2, zeta2, 0.0, tighten)
    for form, gram in zip(forms, grams, strict=True):
        sizes, vectors = np.linalg.eigh(gram)
        total += np.tensordot(form, vectors * np.maximum(sizes, 0) @ vectors.T, 2)
    excess = total[1:] - np.concatenate([[R2, zeta2 or 1.0], (values[:, a] - values[:, b]).ravel()])
    return float(total[0]), excess if tighten else np.maximum(excess, 0.0)
