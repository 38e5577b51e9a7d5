"""Regularised linear and logistic regression with a known optimum: the arithmetic behind task=regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import normal, uniform
from decentral.store.metadata import Metric
from decentral.tasks.evaluation import WHOLE, Scope
from decentral.tasks.task import Problem

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
    """(z, z*, b): value(z) - value(z*) - slope(z*) (z - z*), without the cancellation of this difference."""


def _logistic_excess(z: Tensor, least: Tensor, b: Tensor) -> Tensor:
    """With s = sigmoid(-b z*) and delta = -b (z - z*): log(1 - s + s e^delta) - s delta."""
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
    """The samples of n workers, as task=regression describes them; each number is addressed by what it belongs to."""
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
    """The x* [d] with the least f, by Newton's method: one step for linear regression, until rounding for logistic.

    A step that does not lower f enough is halved, so that it ends from everywhere. Raises ArithmeticError if it does
    not.
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
    raise ArithmeticError(f"Newton's method has not ended after {_MOST_NEWTON_STEPS} steps.")


class RegressionProblem(Problem):
    """The local workers' part of a regression; see task=regression."""

    metrics = (
        Metric("objective", "suboptimality"),
        Metric("objective", "distance_to_optimum"),
        Metric("objective", "relative_squared_distance"),
    )
    steps_per_epoch = 1.0

    def __init__(self, data: Samples, loss: Loss, l2: float, workers: range, device: torch.device) -> None:
        self.loss, self.l2 = loss, l2
        self.optimum = optimum(data, loss, l2).to(device)
        self.all = Samples(*(part.to(device) for part in data))
        local = slice(workers.start, workers.stop)
        self.A, self.b = self.all.A[local], self.all.b[local]
        self.At = self.A.transpose(1, 2)
        self.least = self.all.A @ self.optimum  # the margins [n, m] at x*

    def init(self) -> Tensor:
        """Zeros [d]."""
        return torch.zeros_like(self.optimum)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """F_i(x_i) [r] and its gradient 1/m A_i^T slope(A_i x_i, b_i) + l2 x_i [r, d], the same in every draw."""
        A, At, b = (self.A, self.At, self.b) if workers is None else (p[workers] for p in (self.A, self.At, self.b))
        z, m = (A @ x[..., None])[..., 0], b.shape[1]
        g = (At @ self.loss.slope(z, b)[..., None])[..., 0].div_(m).add_(x, alpha=self.l2)
        return self.loss.value(z, b).mean(1) + self.l2 / 2 * x.square().sum(1), g

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """f(x_i) - f(x*), ||x_i - x*|| and ||x_i - x*||^2 / ||x*||^2: [r, 3].

        The gradient of f is zero at x*, so that the first is the mean excess of the losses + l2/2 ||x_i - x*||^2.
        """
        x = x if workers is None else x[workers]
        z = torch.einsum("nmd,rd->rnm", self.all.A, x)
        squared = (x - self.optimum).square().sum(1)
        excess = self.loss.excess(z, self.least, self.all.b).mean((1, 2)) + self.l2 / 2 * squared
        return torch.stack([excess, squared.sqrt(), squared / self.optimum.square().sum()], dim=1).cpu()
