"""The worst error of a method after K steps over all mu-strongly convex, L-smooth functions, by performance estimation.

    maximize    1/n sum_i ||x_i^K - x*||^2
    subject to  ||x^0 - x*||^2 <= R^2,  1/n sum_i ||grad f_i(x*)||^2 <= zeta^2,  and for all workers i, nodes a != b:
                f_b - f_a + <g_b, p_a - p_b> + L / (2 (L - mu)) (||dg||^2 / L + mu ||dp||^2 - 2 mu / L <dg, dp>) <= 0

with the points p and gradients g of worker i at its nodes (the optimum, and steps 0 .. K - 1), dp = p_a - p_b and
dg = g_a - g_b: necessary and sufficient for such functions to exist (Taylor, Hendrickx & Glineur, 2017). The variable
is the Gram matrix of x^0 - x* and all gradients; the dual is solved here:

    E_K <= tau_R R^2 + tau_z zeta^2   for all R and zeta,   if  S = tau_R A_R + tau_z A_z + sum lambda A - A_K >= 0

and lambda, tau >= 0, where lambda is balanced at each node. The solution is rounded so that this holds in spite of the
solver's tolerance. If worker numbers may be shifted, S is block diagonal in the characters of the group of shifts.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from decentral.errors import ConfigError
from decentral.host.machine import require
from decentral.plugins.certificates.quadratics import hardest
from decentral.plugins.certificates.trace import TOLERANCE, Method, NotLinear, coefficients

_MARGINS = 1e-7, 1e-6, 1e-5, 1e-4
_EQUAL = 1e-12
_ITERATIONS = 50
_LARGEST = 60
"""The largest n * K without symmetry."""


class Block(NamedTuple):
    """A diagonal block of the Gram matrix: one for each piece of the model, or for each character."""

    points: np.ndarray  # [I, K + 1, D], the first node is the optimum
    gradients: np.ndarray  # [I, K + 1, D]
    final: np.ndarray  # [J, D]
    start: np.ndarray  # [D], the diagonal of A_R
    optimum: np.ndarray  # [D], the diagonal of A_z


class Forms(NamedTuple):
    """The matrices of a block: of the inequalities, one for each worker i and nodes a != b, and of the error."""

    inequalities: np.ndarray  # [m, D, D]
    error: np.ndarray  # [D, D]
    start: np.ndarray  # [D, D]
    optimum: np.ndarray  # [D, D]


class Bound(NamedTuple):
    """A bound on E_K = 1/n sum_i ||x_i^K - x*||^2."""

    lower: float
    """The error of functions that exist."""
    upper: float
    """tau_R R^2 + tau_z zeta^2; not a number if rounding left no certificate."""
    tau_R: float
    tau_z: float
    multipliers: np.ndarray
    """lambda [workers, K + 1, K + 1] at nodes (a, b)."""


def worst_case(
    method: Method, lr: float, steps: int, mu: float, L: float, R2: float = 1.0, zeta2: float = 0.0, reduce: bool = True
) -> Bound:
    """Return bounds on the error after some steps, for R^2 = R2 and zeta^2 = zeta2.

    Raises NotLinear for a method that moves away from a common optimum, and ConfigError for too large a problem.
    """
    points, final, group = traced(method, lr, steps, reduce)
    blocks = by_piece(points, final, zeta2 > 0) if group is None else by_character(points, final, zeta2 > 0, group)
    forms = [forms_of(block, mu, L) for block in blocks]
    upper = certified(forms, steps + 1, R2, zeta2)
    lower = max(attained(forms, steps + 1, R2, zeta2), worst_quadratic(points, final, mu, L, R2, zeta2)[0])
    return upper._replace(lower=lower)


def traced(
    method: Method, lr: float, steps: int, reduce: bool = True
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...] | None]:
    """Return the coefficients and the symmetry of a worst case, or raise the errors of `worst_case`."""
    require("clarabel", "the worst case (certify.steps)", "pip install 'decentral[certificates]'")
    points, final = coefficients(method, steps, lr)
    name = method.algorithm.name
    if not max(np.abs(points[..., 0] - 1).max(initial=0.0), np.abs(final[..., 0] - 1).max()) <= TOLERANCE:
        raise NotLinear(f"algo={name} moves away from a common optimum and has no worst case: leave out weight decay.")
    _check_trace(method, lr, points, final)
    group = symmetry(points, final) if reduce else None
    if group is None and method.n * steps > _LARGEST:
        raise ConfigError(
            f"num_workers * certify.steps = {method.n * steps} is too large for algo={name} on this graph, which has "
            f"no symmetry: use at most {_LARGEST}."
        )
    return points, final, group


# -- the blocks of the Gram matrix -------------------------------------------------------------------------------------


def by_piece(points: np.ndarray, final: np.ndarray, heterogeneous: bool) -> list[Block]:
    """Return a block for each piece: x^0, n - 1 columns for the gradients at the optimum, and all gradients."""
    d, K, n, _ = points.shape
    basis = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : (n - 1) * heterogeneous]
    extra = basis.shape[1]
    D = 1 + extra + n * K
    widened = lambda rows: np.insert(rows, [1] * extra, 0.0, axis=-1)  # noqa: E731
    gradients = np.zeros((n, K + 1, D))
    gradients[:, 0, 1 : 1 + extra] = basis
    worker, node = np.indices((n, K))
    gradients[worker, 1 + node, 1 + extra + node * n + worker] = 1
    start, optimum = np.zeros(D), np.zeros(D)
    start[0], optimum[1 : 1 + extra] = 1, 1 / n
    origin = np.zeros((n, 1, D))
    nodes = [np.concatenate([origin, widened(p).transpose(1, 0, 2)], axis=1) for p in points]
    return [Block(nodes[h], gradients, widened(final[h]) / math.sqrt(n), start, optimum) for h in range(d)]


def symmetry(points: np.ndarray, final: np.ndarray) -> tuple[int, ...] | None:
    """Return the shape of an abelian group of workers, Z_a x Z_b x ..., whose shifts keep all coefficients; or None."""
    d, K, n, _ = points.shape
    if d > 1 or n == 1:
        return None
    rows = np.concatenate([points[0], final])[..., 1:].reshape(K + 1, n, K, n)
    shapes = [(n,), *((a, n // a) for a in range(2, n) if n % a == 0)]
    shapes += [(2,) * int(math.log2(n))] if n & (n - 1) == 0 and n > 4 else []
    for shape in shapes:
        axes = rows.reshape(K + 1, *shape, K, *shape)
        r = len(shape)
        shifts = [np.roll(axes, 1, (1 + axis, 2 + r + axis)) for axis in range(r)]
        if all(np.abs(shifted - axes).max() <= _EQUAL * np.abs(axes).max(initial=1.0) for shifted in shifts):
            return shape
    return None


def by_character(points: np.ndarray, final: np.ndarray, heterogeneous: bool, group: tuple[int, ...]) -> list[Block]:
    """Return a block for each character of the group, one of each pair of conjugates: x^0 (trivial character) or the
    gradient at the optimum (others), and the K gradients of a worker."""
    K = points.shape[1]
    rows = np.concatenate([points[0, :, 0], final[0, :1]])  # of worker 0: points and model
    values = rows[:, 1:].reshape(K + 1, K, *group)
    transformed = np.fft.fftn(values, axes=range(2, 2 + len(group))).reshape(K + 1, K, -1)
    blocks = []
    for number, k in enumerate(itertools.product(*map(range, group))):
        if tuple(-i % size for i, size in zip(k, group, strict=True)) < k:
            continue
        trivial = not any(k)
        first = int(trivial or heterogeneous)
        vectors = np.zeros((K + 2, first + K), dtype=complex)  # the optimum, points, and the model
        vectors[1:, first:] = transformed[:, :, number]
        gradients = np.zeros((K + 1, first + K))
        gradients[1:, first:] = np.eye(K)
        marks = np.zeros(first + K)
        if trivial:
            vectors[1:, 0] = rows[:, 0]
        elif heterogeneous:
            gradients[0, 0] = 1
        marks[:first] = 1
        if np.abs(vectors.imag).max() <= _EQUAL * np.abs(vectors).max():
            vectors = vectors.real
        start, optimum = (marks, 0 * marks) if trivial else (0 * marks, marks)
        blocks.append(Block(vectors[None, :-1], gradients[None], vectors[-1:], start, optimum))
    return blocks


def forms_of(block: Block, mu: float, L: float) -> Forms:
    """Return the matrices of a block, real symmetric; a Hermitian H becomes [[Re H, -Im H], [Im H, Re H]]."""
    a, b = pairs(block.points.shape[1])
    p, g = block.points, block.gradients
    flat = lambda rows: rows.reshape(-1, rows.shape[-1])  # noqa: E731
    dp, dg, gb = flat(p[:, a] - p[:, b]), flat(g[:, a] - g[:, b]), flat(g[:, b])
    scale = L / (2 * (L - mu))
    inequalities = _product(gb - 2 * scale * mu / L * dg, dp) + scale * (_product(dg, dg) / L + mu * _product(dp, dp))
    error = _product(block.final, block.final).sum(0)
    ends = (np.diag(each).astype(p.dtype) for each in (block.start, block.optimum))
    return Forms(*map(_embedded, (inequalities, error, *ends)))


def pairs(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (a, b) of a worker's inequalities, a != b."""
    a, b = np.nonzero(~np.eye(nodes, dtype=bool))
    return a, b


def _product(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the Hermitian forms of Re <u, v>, for vectors [m, D]: [m, D, D]."""
    outer = u[:, :, None] * v[:, None].conj()
    form: np.ndarray = (outer + outer.swapaxes(1, 2).conj()) / 2
    return form


def _embedded(form: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(form):
        return form
    rows = [np.concatenate(part, axis=-1) for part in ((form.real, -form.imag), (form.imag, form.real))]
    return np.concatenate(rows, axis=-2)


# -- the dual ----------------------------------------------------------------------------------------------------------


class Solution(NamedTuple):
    """The solver's solution, with its tolerance."""

    tau: np.ndarray  # [2], or [1] without heterogeneity
    multipliers: np.ndarray  # [m]
    gram: list[np.ndarray]
    values: np.ndarray  # [workers, nodes], f at the nodes


def solve(forms: list[Forms], nodes: int, R2: float, zeta2: float, margin: float, tighten: float) -> Solution:
    """Minimize (1 - tighten) tau . (R^2, zeta^2) - tighten sum lambda subject to S >= margin I."""
    import clarabel

    m, sources = len(forms[0].inequalities), [R2, zeta2][: 1 + (zeta2 > 0)]
    a, b = pairs(nodes)
    workers, k, others = m // len(a), len(sources), np.arange(1, nodes)[:, None]
    balance = (b == others).astype(float) - (a == others)  # flow at the optimum follows from the other nodes'
    flow = sparse.csc_matrix(sparse.kron(sparse.identity(workers), balance))
    flow = sparse.hstack([sparse.csc_matrix((flow.shape[0], k)), flow])
    matrices, constants = [flow, -sparse.identity(k + m)], [np.zeros(flow.shape[0] + k + m)]
    cones = [clarabel.ZeroConeT(flow.shape[0]), clarabel.NonnegativeConeT(k + m)]
    for form in forms:
        D = len(form.error)
        given = np.concatenate([np.stack([form.start, form.optimum][:k]), form.inequalities])
        matrices.append(sparse.csc_matrix(-_vectors(given).T))
        constants.append(_vectors(-form.error[None] - margin * np.eye(D)[None])[0])
        cones.append(clarabel.PSDTriangleConeT(D))
    cost = np.concatenate([(1 - tighten) * np.array(sources), np.full(m, -tighten)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    A = sparse.csc_matrix(sparse.vstack(matrices))
    nothing = sparse.csc_matrix((k + m, k + m))
    solved = clarabel.DefaultSolver(nothing, cost, A, np.concatenate(constants), cones, settings).solve()
    x, z = np.array(solved.x), np.array(solved.z)
    first, gram = flow.shape[0] + k + m, []
    for form in forms:
        D = len(form.error)
        gram.append(_matrix(z[first : first + D * (D + 1) // 2], D))
        first += D * (D + 1) // 2
    values = np.insert(-z[: flow.shape[0]].reshape(workers, nodes - 1), 0, 0.0, axis=1)
    return Solution(x[:k], x[k:], gram, values)


def _vectors(matrices: np.ndarray) -> np.ndarray:
    """Return the upper triangles by columns, off-diagonal entries times sqrt(2): [m, D, D] -> [m, D (D + 1) / 2]."""
    j, i = np.tril_indices(matrices.shape[-1])  # by columns of the upper triangle
    return matrices[:, i, j] * np.where(i == j, 1.0, math.sqrt(2))


def _matrix(vector: np.ndarray, D: int) -> np.ndarray:
    j, i = np.tril_indices(D)
    half = np.zeros((D, D))
    half[i, j] = vector / np.where(i == j, 1.0, math.sqrt(2))
    return half + np.triu(half, 1).T


def certified(forms: list[Forms], nodes: int, R2: float, zeta2: float) -> Bound:
    """Return a bound that holds in spite of rounding; not a number if none is found.

    Multipliers become multiples of a power of two with exactly balanced flows, and the smallest eigenvalue of S has to
    exceed the error of computing S.
    """
    for margin in _MARGINS:
        solution = solve(forms, nodes, R2, zeta2, margin, 0.0)
        if not np.isfinite([*solution.tau, *solution.multipliers]).all():
            continue
        tau, multipliers = np.maximum(solution.tau, 0), balanced(solution.multipliers, nodes)
        if all(_is_positive(form, tau, multipliers[:, *pairs(nodes)].ravel()) for form in forms):
            tau_R, tau_z = (*map(float, tau), 0.0)[:2]
            upper = math.nextafter(tau_R * R2 + tau_z * zeta2, math.inf) * (1 + 4 * np.finfo(float).eps)
            return Bound(math.nan, upper, tau_R, tau_z, multipliers)
    return Bound(math.nan, math.nan, math.nan, math.nan, np.zeros((0, nodes, nodes)))


def balanced(multipliers: np.ndarray, nodes: int) -> np.ndarray:
    """Return the multipliers rounded down to multiples of a power of two, plus what balances the flow at each node:
    [workers, nodes, nodes]. Their sum is below 2^51 of these, so that they are exact in float64."""
    a, b = pairs(nodes)
    positive = np.maximum(multipliers, 0.0).reshape(-1, len(a))
    scale = 50 - math.ceil(math.log2(positive.sum() or 1.0))
    flows = np.zeros((len(positive), nodes, nodes), dtype=np.int64)
    flows[:, a, b] = np.floor(np.ldexp(positive, scale))
    for flow in flows:
        while (excess := flow.sum(0) - flow.sum(1)).any():
            full, empty = excess.argmax(), excess.argmin()
            flow[full, empty] += min(excess[full], -excess[empty])
    return np.ldexp(flows.astype(float), -scale)


def _is_positive(form: Forms, tau: np.ndarray, multipliers: np.ndarray) -> bool:
    """Return whether S >= 0, with certainty: its smallest eigenvalue exceeds all errors of computing it."""
    parts = [form.start, form.optimum][: len(tau)]
    weigh = lambda of: np.tensordot(multipliers, of(form.inequalities), 1) + np.tensordot(tau, of(np.stack(parts)), 1)  # noqa: E731
    S, size = weigh(np.asarray) - form.error, weigh(np.abs) + np.abs(form.error)
    terms = len(multipliers) + len(tau) + len(S) + 20
    error = 4 * np.finfo(float).eps * terms * float(np.linalg.norm(size))
    return bool(np.linalg.eigvalsh(S)[0] >= error)


# -- functions that attain an error ------------------------------------------------------------------------------------


def attained(forms: list[Forms], nodes: int, R2: float, zeta2: float) -> float:
    """Return the error of functions that exist, by the Gram matrix of a slightly tightened problem; 0 if rounding left
    none."""
    a, b = pairs(nodes)
    for margin in _MARGINS:
        solution = solve(forms, nodes, R2, zeta2, 0.0, margin)
        gram = []
        for matrix in solution.gram:
            values, vectors = np.linalg.eigh(matrix)
            gram.append(vectors * np.maximum(values, 0) @ vectors.T)
        total = [
            sum(np.tensordot(part, G, 2) for part, G in zip(parts, gram, strict=True))
            for parts in zip(*forms, strict=True)
        ]
        change, error, start, optimum = total
        change += (solution.values[:, b] - solution.values[:, a]).ravel()
        if change.max() <= 0 and start <= R2 and optimum <= zeta2:
            return float(error)
    return 0.0


def worst_quadratic(
    points: np.ndarray, final: np.ndarray, mu: float, L: float, R2: float, zeta2: float
) -> tuple[float, np.ndarray]:
    """Return the largest error found for f_i(x) = h_i / 2 ||x - x*||^2 + <g*_i, x> with h in {mu, L}^n, and h."""
    error = lambda h: max(_error(p, x, h, R2, zeta2) for p, x in zip(points, final, strict=True))  # noqa: E731
    worst = hardest(error, points.shape[2], mu, L)
    return error(worst), worst


def _error(points: np.ndarray, final: np.ndarray, h: np.ndarray, R2: float, zeta2: float) -> float:
    """Return the error of these quadratics for the worst gradients at the optimum."""
    n = len(h)
    gradients = np.linalg.svd(np.eye(n) - 1 / n)[0] * (np.arange(n) < n - 1)  # a basis, and none for x^0
    ends = ends_of(points, final, h[:, None], gradients, np.eye(n)[-1])
    ends *= np.array([*[math.sqrt(n * zeta2)] * (n - 1), math.sqrt(R2)]) / math.sqrt(n)
    fixed, driven = ends[:, -1], ends[:, :-1]
    w = np.linalg.svd(driven)[2][0] if driven.any() else np.zeros(n - 1)
    for _ in range(_ITERATIONS):  # the maximum of |fixed + driven w|^2 over unit vectors w, which each step increases
        w = driven.T @ (fixed + driven @ w)
        w /= np.linalg.norm(w) or 1.0
    return float(np.square(fixed + driven @ w).sum())


def ends_of(points: np.ndarray, final: np.ndarray, h: np.ndarray, g: np.ndarray, x0: np.ndarray) -> np.ndarray:
    """Return the last models [n, k] of k problems f_i(x) = h_i / 2 x^2 + g_i x, one for each column of g [n, k], by the
    coefficients."""
    K, n, D = points.shape
    known = np.zeros((D, len(x0)))  # x^0 and the gradients
    known[0] = x0
    for t in range(K):
        known[1 + t * n : 1 + (t + 1) * n] = h * (points[t] @ known) + g
    ends: np.ndarray = final @ known
    return ends


def run(method: Method, lr: float, steps: int, h: Tensor, g: Tensor, x0: Tensor) -> Tensor:
    """Run the method itself on many problems f_i(x) = h_i / 2 x^2 + g_i x, one for each column of h and g [n, columns],
    from x^0 [columns]: return the models [steps, n, columns] after each step."""

    def oracle(x: Tensor, workers: Any = None) -> Tensor:
        rows = slice(None) if workers is None else list(workers)
        return h[rows] * x + g[rows]

    stepper = method.begin(x0.expand(method.n, -1).clone(), lr)
    stepper.oracle, models = oracle, []
    for _ in range(steps):
        stepper.step()
        models.append(stepper.models.clone())
    return torch.stack(models)


def _check_trace(method: Method, lr: float, points: np.ndarray, final: np.ndarray) -> None:
    """Raise NotLinear unless the coefficients predict a run on random quadratics."""
    d, K, n, _ = points.shape
    generator, width = torch.Generator().manual_seed(2), 16
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    h, g, x0 = draw(n, d * width).abs(), draw(n, d * width), draw(d * width)
    models = run(method, lr, K, h, g, x0)[-1].numpy()
    for piece, columns in enumerate(method.columns(width)):
        problem = (part.numpy()[..., columns] for part in (h, g, x0))
        expected = ends_of(points[piece], final[piece], *problem)
        if not np.abs(models[:, columns] - expected).max() <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
            raise NotLinear(f"the coefficients of algo={method.algorithm.name} do not predict a run: no certificate.")
