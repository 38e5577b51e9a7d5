"""Least-squares problems with a known optimum: the arithmetic behind task=quadratics."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import normal
from decentral.tasks.task import Metric, Problem


class LeastSquares(NamedTuple):
    """f(x) = 1/n sum_i ||A_i x - b_i||^2, all float64."""

    A: Tensor  # [n, d, d]
    b: Tensor  # [n, d]
    x0: Tensor  # [d]

    def optimum(self) -> Tensor:
        """The x* [d] with the least f (and the least norm, if there are several)."""
        d = self.A.shape[-1]
        return torch.linalg.lstsq(self.A.reshape(-1, d), self.b.reshape(-1, 1), driver="gelsd").solution[:, 0]

    def gradients(self, x: Tensor) -> Tensor:
        """A_i^T (A_i x - b_i) for one x [d]: [n, d]. (Half the gradient of ||A_i x - b_i||^2, as the paper uses it.)"""
        return torch.einsum("nij,ni->nj", self.A, torch.einsum("nij,j->ni", self.A, x) - self.b)

    def heterogeneity(self) -> float:
        """zeta^2 = 1/n sum_i ||A_i^T (A_i x* - b_i)||^2."""
        return self.gradients(self.optimum()).square().sum(1).mean().item()


def random_problem(
    n: int, d: int, singular_min: float | None, singular_max: float, zeta2: float, initial_distance: float, seed: int
) -> LeastSquares:
    """A random problem of the RelaySum paper's appendix B.4, in the authors' order of draws.

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
    """The problem with b_i = s A_i directions_i, shifted so that its optimum is 0, and the s that gives this zeta^2."""
    scale, low, high = 1.0, 0.0, math.inf
    for _ in range(10_000):
        shifted = problem._replace(b=torch.einsum("nij,nj->ni", problem.A, scale * directions))
        shifted = shifted._replace(b=shifted.b - torch.einsum("nij,j->ni", problem.A, shifted.optimum()))
        error = shifted.heterogeneity() - zeta2
        if abs(error) <= 1e-5:
            break
        low, high = (scale, high) if error < 0 else (low, scale)
        scale = 2 * scale if high == math.inf else (low + high) / 2
    return shifted


class QuadraticProblem(Problem):
    """The local workers' part of a least-squares problem, with seeded gradient noise of variance noise^2 per worker."""

    metrics = (Metric("objective", "suboptimality"), Metric("objective", "distance_to_optimum"))
    steps_per_epoch = 1.0

    def __init__(self, problem: LeastSquares, noise: float, seed: int, workers: range, device: torch.device) -> None:
        self.problem = LeastSquares(*(part.to(device) for part in problem))
        self.noise, self.seed, self.workers = noise, seed, workers
        local = slice(workers.start, workers.stop)
        self.A, self.b = self.problem.A[local], self.problem.b[local, :, None]
        self.At = self.A.transpose(1, 2)
        self.optimum = problem.optimum().to(device)
        self.least = self._objective(self.optimum[None])[0]

    def init(self, seed: int) -> Tensor:
        """The problem's x^0 [d]."""
        return self.problem.x0.clone()

    def gradient(self, x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """||A_i x_i - b_i||^2 [k] and A_i^T (A_i x_i - b_i) + noise [k, d]."""
        residual = self.A @ x[..., None] - self.b
        g = (self.At @ residual)[..., 0]
        if self.noise:
            worker, coordinate = np.array(self.workers)[:, None], np.arange(x.shape[1])
            noise = normal(self.seed, "gradient noise", index, worker, coordinate)
            g += torch.from_numpy(noise).to(g) * (self.noise / math.sqrt(x.shape[1]))
        return residual[..., 0].square().sum(1), g

    def evaluate_workers(self, x: Tensor) -> Tensor:
        """f(x_i) - f(x*) and ||x_i - x*||: [k, 2]."""
        distance = torch.linalg.vector_norm(x - self.optimum, dim=1)
        return torch.stack([self._objective(x) - self.least, distance], dim=1).cpu()

    def evaluate_average(self, x: Tensor, part: int, parts: int) -> Tensor:
        """The same of one model [d]: [2]."""
        found = self.evaluate_workers(x[None])[0]
        return found if part == 0 else torch.zeros_like(found)

    def _objective(self, x: Tensor) -> Tensor:
        """f(x) = 1/n sum_i ||A_i x - b_i||^2 for each row of x: [r, d] -> [r]."""
        residual = torch.einsum("nij,rj->rni", self.problem.A, x) - self.problem.b
        return residual.square().sum(2).mean(1)
