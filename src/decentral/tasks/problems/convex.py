"""Problems with a known optimum: least squares, logistic and linear regression, and the mean of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import normal, uniform
from decentral.store.metrics import Metric
from decentral.tasks.task import WHOLE, Problem, Scope

_TOLERANCE = 1e-5


class LeastSquares(NamedTuple):
    """Least squares f(x) = 1/n sum_i ||A_i x - b_i||^2, all float64."""

    A: Tensor  # [n, d, d]
    b: Tensor  # [n, d]
    x0: Tensor  # [d], or [n, d]

    def optimum(self) -> Tensor:
        """Return the x* [d] with the smallest f (and the smallest norm, if there are several)."""
        d = self.A.shape[-1]
        return torch.linalg.lstsq(self.A.reshape(-1, d), self.b.reshape(-1, 1), driver="gelsd").solution[:, 0]

    def gradients(self, x: Tensor) -> Tensor:
        """Return A_i^T (A_i x - b_i) for one x [d]: [n, d]. (Half the gradient of ||A_i x - b_i||^2, as in the
        paper.)"""
        return torch.einsum("nij,ni->nj", self.A, torch.einsum("nij,j->ni", self.A, x) - self.b)

    def heterogeneity(self) -> float:
        """Return zeta^2 = 1/n sum_i ||A_i^T (A_i x* - b_i)||^2."""
        return self.gradients(self.optimum()).square().sum(1).mean().item()


def random_problem(
    n: int, d: int, singular_min: float | None, singular_max: float, zeta2: float, initial_distance: float, seed: int
) -> LeastSquares:
    """Draw a random problem of the RelaySum paper's appendix B.4, in the authors' order of draws.

    1. A_i standard normal; its singular values, largest first, become linspace(singular_min, singular_max, d), or it is
       divided by its largest singular value where singular_min is None. (They are singular values: the Hessian's
       eigenvalues are their squares.)
    2. b_i = s A_i v_i with v_i standard normal, shifted so that the optimum is 0; s by doubling and bisection until
       |zeta^2 - zeta2| <= 1e-5.
    3. A standard normal x* scaled to norm initial_distance; b_i += A_i x*. The start is x^0 = 0.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    A = draw(n, d, d)
    if singular_min is None:
        A = A / torch.linalg.matrix_norm(A, ord=2)[:, None, None]
    else:
        U, _, Vh = torch.linalg.svd(A)
        A = U @ torch.diag(torch.linspace(singular_min, singular_max, d, dtype=torch.float64)) @ Vh
    zero = torch.zeros(d, dtype=torch.float64)
    problem = LeastSquares(A, torch.zeros(n, d, dtype=torch.float64), zero)
    directions = draw(n, d, 1)[..., 0]  # drawn, as the authors do, even where there is no heterogeneity
    if zeta2 > 0:
        problem = _heterogeneous(problem, directions, zeta2)
    x_star = draw(d, 1)[:, 0]
    x_star = x_star * (initial_distance / torch.linalg.vector_norm(x_star))
    return problem._replace(b=problem.b + torch.einsum("nij,j->ni", A, x_star))


def _heterogeneous(problem: LeastSquares, directions: Tensor, zeta2: float) -> LeastSquares:
    """Return the problem with b_i = s A_i directions_i, shifted so that its optimum is 0, with the s that gives this
    zeta^2.

    zeta^2 is s^2 times its value at s = 1, which predicts each step of the bisection, except near rounding errors.
    """

    def scaled(s: float) -> LeastSquares:
        found = problem._replace(b=torch.einsum("nij,nj->ni", problem.A, s * directions))
        return found._replace(b=found.b - torch.einsum("nij,j->ni", problem.A, found.optimum()))

    scale, low, high = 1.0, 0.0, math.inf
    unit = scaled(1.0).heterogeneity()
    for _ in range(10_000):
        error = scale**2 * unit - zeta2
        if abs(abs(error) - _TOLERANCE) <= 1e-9 * max(1.0, zeta2):
            error = scaled(scale).heterogeneity() - zeta2
        if abs(error) <= _TOLERANCE:
            break
        low, high = (scale, high) if error < 0 else (low, scale)
        scale = 2 * scale if high == math.inf else (low + high) / 2
    return scaled(scale)


def _local(x0: Tensor, workers: range) -> Tensor:
    """Return a copy of the common start [d], or the local workers' rows of x0 [n, d]."""
    return x0.clone() if x0.dim() == 1 else x0[workers.start : workers.stop].clone()


class QuadraticProblem(Problem):
    """The local workers' part of a least-squares problem, with seeded gradient noise of variance noise^2 per worker."""

    metrics = (Metric("objective", "suboptimality"), Metric("objective", "distance_to_optimum"))
    steps_per_epoch = 1.0

    def __init__(self, problem: LeastSquares, noise: float, seed: int, workers: range, device: torch.device) -> None:
        self.problem = LeastSquares(*(part.to(device) for part in problem))
        self.noise, self.seed, self.workers = noise, seed, workers
        self.numbers = np.arange(workers.start, workers.stop)
        local = slice(workers.start, workers.stop)
        self.A, self.b = self.problem.A[local], self.problem.b[local, :, None]
        self.At = self.A.transpose(1, 2)
        self.num_samples = self.A.shape[1]
        self.optimum = problem.optimum().to(device)
        A = self.problem.A
        self.mean_H = torch.einsum("nij,nik->jk", A, A) / len(A)

    def init(self) -> Tensor:
        """Return the problem's x^0 [d], or those of the local workers [k, d]."""
        return _local(self.problem.x0, self.workers)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return ||A_i x_i - b_i||^2 [r] and A_i^T (A_i x_i - b_i) + noise [r, d]."""
        A, At, b = (self.A, self.At, self.b) if workers is None else (p[workers] for p in (self.A, self.At, self.b))
        residual = A @ x.unsqueeze(-1) - b
        g = (At @ residual).squeeze(-1)
        if self.noise:
            numbers = self.numbers if workers is None else self.numbers[workers]
            noise = normal(self.seed, "gradient noise", draws[:, None], numbers[:, None], np.arange(x.shape[1]))
            g += torch.from_numpy(noise).to(g) * (self.noise / math.sqrt(x.shape[1]))
        return residual.squeeze(-1).square().sum(1), g

    def at(self, x: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """See `Problem`: sample s of d is row s of A_i and b_i, with d (a x - b)^2 and d a (a x - b), without noise."""
        own = torch.arange(len(x), device=x.device)[:, None]
        a, m = self.A[own, samples], self.num_samples
        residual = (a @ x.unsqueeze(-1) - self.b[own, samples]).mul_(m)
        return residual.squeeze(-1).square() / m, a * residual

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return f(x_i) - f(x*) and ||x_i - x*||: [r, 2].

        The first is computed as (x_i - x*)^T mean_H (x_i - x*), mean_H = 1/n sum_j A_j^T A_j. This equals the
        difference of the two values, without cancellation, and without reading all A_j.
        """
        x = x if workers is None else x[workers]
        e = x - self.optimum
        return torch.stack([(e * (e @ self.mean_H)).sum(1), torch.linalg.vector_norm(e, dim=1)], dim=1).cpu()


_MOST_NEWTON_STEPS = 100
_ROUNDING = 1e-8  # of the norm of a gradient, below which f changes by less than its rounding


class Samples(NamedTuple):
    """The samples of all workers, float64."""

    A: Tensor  # [n, m, d]
    b: Tensor  # [n, m]


class Loss(NamedTuple):
    """A convex function of the margin z = a^T x of a sample and its label b; elementwise."""

    value: Callable[[Tensor, Tensor], Tensor]  # (z, b)
    slope: Callable[[Tensor, Tensor], Tensor]  # (z, b): derivative by z
    curvature: Callable[[Tensor, Tensor], Tensor]  # (z, b): second derivative
    excess: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Excess loss (z, z*, b): value(z) - value(z*) - slope(z*) (z - z*), computed without cancellation."""


def _logistic_excess(z: Tensor, least: Tensor, b: Tensor) -> Tensor:
    """Return log(1 - s + s e^delta) - s delta, with s = sigmoid(-b z*) and delta = -b (z - z*)."""
    s, delta = torch.sigmoid(-b * least), b * (least - z)
    return torch.log1p(s * torch.expm1(delta)) - s * delta


LOSSES = {
    "linear": Loss(
        value=lambda z, b: (z - b).square() / 2,
        slope=lambda z, b: z - b,
        curvature=lambda z, b: torch.ones_like(z),
        excess=lambda z, least, b: (z - least).square() / 2,
    ),
    "logistic": Loss(
        value=lambda z, b: torch.nn.functional.softplus(-b * z),
        slope=lambda z, b: -b * torch.sigmoid(-b * z),
        curvature=lambda z, b: torch.sigmoid(z) * torch.sigmoid(-z),
        excess=_logistic_excess,
    ),
}


def draw(n: int, m: int, d: int, loss: str, noise: float, heterogeneity: float, seed: int) -> Samples:
    """Draw the samples of n workers as in task=regression; each number is addressed by its role."""
    worker, sample, coordinate = np.arange(n), np.arange(m), np.arange(d)
    A = normal(seed, "regression samples", worker[:, None, None], sample[:, None], coordinate)
    w = normal(seed, "regression model", coordinate)
    w = w + heterogeneity * normal(seed, "regression model of a worker", worker[:, None], coordinate)
    z = np.einsum("nmd,nd->nm", A, w)
    place = worker[:, None], sample
    if loss == "linear":
        b = z + noise * normal(seed, "regression noise", *place)
    else:
        p = uniform(seed, "regression labels", *place)
        with np.errstate(divide="ignore"):  # the logistic quantile of 0 is minus infinity
            b = np.where(z + noise * (np.log(p) - np.log1p(-p)) >= 0, 1.0, -1.0)
    return Samples(torch.from_numpy(A), torch.from_numpy(b))


def optimum(data: Samples, loss: Loss, l2: float) -> Tensor:
    """Return the x* [d] with the smallest f, by Newton's method: one step for linear regression, until rounding for
    logistic.

    A step that does not decrease f enough is halved, so that it converges from any start. Raises ArithmeticError if it
    does not.
    """
    A, b = data.A.flatten(0, 1), data.b.flatten()

    def f(x: Tensor) -> Tensor:
        return loss.value(A @ x, b).mean() + l2 / 2 * x.square().sum()

    x = best = A.new_zeros(A.shape[1])
    smallest = math.inf
    for _ in range(_MOST_NEWTON_STEPS):
        z = A @ x
        g = A.T @ loss.slope(z, b) / len(b) + l2 * x
        size = float(torch.linalg.vector_norm(g))
        if smallest <= min(size, _ROUNDING):
            return best
        if size < smallest:
            best, smallest = x, size
        H = (A.T * loss.curvature(z, b)) @ A / len(b) + l2 * torch.eye(len(x), dtype=x.dtype)
        p, step = torch.linalg.solve(H, g), 1.0
        while size > _ROUNDING and f(x - step * p) > f(x) - 1e-4 * step * (g @ p):
            step /= 2
        x = x - step * p
    raise ArithmeticError(f"Newton's method has not converged after {_MOST_NEWTON_STEPS} steps.")


class RegressionProblem(Problem):
    """The local workers' part of a regression; see task=regression."""

    metrics = (
        Metric("objective", "suboptimality"),
        Metric("objective", "distance_to_optimum"),
        Metric("objective", "relative_squared_distance"),
    )
    steps_per_epoch = 1.0

    def __init__(
        self, data: Samples, loss: Loss, l2: float, workers: range, device: torch.device, x0: Tensor | None = None
    ) -> None:
        """Store the data. `x0` is the start [d], or the starts of all workers [n, d]; None: zeros."""
        self.loss, self.l2, self.workers = loss, l2, workers
        self.optimum = optimum(data, loss, l2).to(device)
        self.x0 = torch.zeros_like(self.optimum) if x0 is None else x0.to(device)
        self.all = Samples(*(part.to(device) for part in data))
        local = slice(workers.start, workers.stop)
        self.A, self.b = self.all.A[local], self.all.b[local]
        self.At = self.A.transpose(1, 2)
        self.num_samples = self.b.shape[1]
        self.least = self.all.A @ self.optimum  # the margins [n, m] at x*

    def init(self) -> Tensor:
        """Return x^0 [d], or those of the local workers [k, d]."""
        return _local(self.x0, self.workers)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return F_i(x_i) [r] and its gradient 1/m A_i^T slope(A_i x_i, b_i) + l2 x_i [r, d], the same in every
        draw."""
        A, At, b = (self.A, self.At, self.b) if workers is None else (p[workers] for p in (self.A, self.At, self.b))
        z, m = (A @ x[..., None])[..., 0], b.shape[1]
        g = (At @ self.loss.slope(z, b)[..., None])[..., 0].div_(m).add_(x, alpha=self.l2)
        return self.loss.value(z, b).mean(1) + self.l2 / 2 * x.square().sum(1), g

    def at(self, x: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """See `Problem`."""
        own = torch.arange(len(x), device=x.device)[:, None]
        a, b = self.A[own, samples], self.b[own, samples]
        z = (a @ x.unsqueeze(-1)).squeeze(-1)
        g = self.loss.slope(z, b).unsqueeze(-1) * a + self.l2 * x.unsqueeze(1)
        return self.loss.value(z, b) + self.l2 / 2 * x.square().sum(1, keepdim=True), g

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return f(x_i) - f(x*), ||x_i - x*|| and ||x_i - x*||^2 / ||x*||^2: [r, 3].

        The gradient of f is zero at x*, so that the first is the mean excess of the losses + l2/2 ||x_i - x*||^2.
        """
        x = x if workers is None else x[workers]
        z = torch.einsum("nmd,rd->rnm", self.all.A, x)
        squared = (x - self.optimum).square().sum(1)
        excess = self.loss.excess(z, self.least, self.all.b).mean((1, 2)) + self.l2 / 2 * squared
        return torch.stack([excess, squared.sqrt(), squared / self.optimum.square().sum()], dim=1).cpu()


class SampleMean(Problem):
    """Samples s_i^t ~ N(mean, std^2) with the gradient x_i - s_i^t; float64."""

    metrics = (Metric("objective", "squared_error"),)
    steps_per_epoch = 1.0

    def __init__(self, mean: float, std: float, d: int, seed: int, workers: range, device: torch.device) -> None:
        self.mean, self.std, self.d, self.seed, self.device = mean, std, d, seed, device
        self.numbers = np.arange(workers.start, workers.stop)

    def init(self) -> Tensor:
        """Return zeros [d]."""
        return torch.zeros(self.d, dtype=torch.float64, device=self.device)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return 1/2 ||x_i - s_i||^2 [r] and x_i - s_i [r, d]."""
        numbers = self.numbers if workers is None else self.numbers[workers]
        drawn = normal(self.seed, "sample", draws[:, None], numbers[:, None], np.arange(self.d))
        sample = self.mean + self.std * drawn
        g = x - torch.from_numpy(sample).to(x)
        return g.square().sum(1) / 2, g

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return the mean over coordinates of (x_i - mean)^2: [r, 1]."""
        x = x if workers is None else x[workers]
        return (x - self.mean).square().mean(1, keepdim=True).cpu()
