"""task=regression: its losses, its data, its optimum, and its metrics near the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decentral.tasks.problems import convex
from decentral.tasks.problems.convex import LOSSES, RegressionProblem, Samples, optimum

N, M, D, L2 = 6, 20, 5, 0.01
DRAWS = np.zeros(N, dtype=np.int64)
CPU = torch.device("cpu")


def samples(loss: str, heterogeneity: float = 1.0, seed: int = 3) -> Samples:
    return convex.draw(N, M, D, loss, 1.0, heterogeneity, seed)


def problem(loss: str, workers: range = range(N)) -> RegressionProblem:
    return RegressionProblem(samples(loss), LOSSES[loss], L2, workers, CPU)


def objectives(data: Samples, loss: str, x: torch.Tensor) -> torch.Tensor:
    """F_i(x_i) of each worker, straight from its definition."""
    z = torch.einsum("nmd,nd->nm", data.A, x)
    losses = (z - data.b).square() / 2 if loss == "linear" else torch.log(1 + torch.exp(-data.b * z))
    return losses.mean(1) + L2 / 2 * x.square().sum(1)


@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient_are_those_of_the_formula(loss: str) -> None:
    x = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.enable_grad():
        own = x.clone().requires_grad_()
        expected = objectives(samples(loss), loss, own)
        (slope,) = torch.autograd.grad(expected.sum(), own)
    values, g = problem(loss).gradient(x, DRAWS)
    torch.testing.assert_close(values, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(g, slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_at_the_optimum_is_zero_to_machine_precision(loss: str) -> None:
    one = problem(loss)
    _, g = one.gradient(one.optimum.expand(N, D), DRAWS)
    assert float(g.mean(0).abs().max()) < 1e-15
    assert float(g.abs().max()) > 0.1, "the workers do not want the same"


def test_the_optimum_of_linear_regression_solves_the_normal_equations() -> None:
    data = samples("linear")
    A, b = data.A.flatten(0, 1), data.b.flatten()
    rows = torch.cat([A, math.sqrt(L2 * N * M) * torch.eye(D, dtype=A.dtype)])
    expected = torch.linalg.lstsq(rows, torch.cat([b, b.new_zeros(D)])).solution
    torch.testing.assert_close(optimum(data, LOSSES["linear"], L2), expected, rtol=1e-13, atol=1e-13)


def test_newtons_method_reaches_the_optimum_of_almost_separable_labels() -> None:
    data = convex.draw(N, M, D, "logistic", 1e-3, 0.0, 0)
    x, l2 = optimum(data, LOSSES["logistic"], 1e-6), 1e-6
    A, b = data.A.flatten(0, 1), data.b.flatten()
    g = A.T @ LOSSES["logistic"].slope(A @ x, b) / len(b) + l2 * x
    assert float(torch.linalg.vector_norm(x)) > 10 and float(g.abs().max()) < 1e-14


@pytest.mark.parametrize("loss", LOSSES)
def test_the_metrics_are_what_they_say_and_precise_next_to_the_optimum(loss: str) -> None:
    one, data = problem(loss), samples(loss)
    x = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = one.worker_statistics(x)
    f = torch.stack([objectives(data, loss, row.expand(N, D)).mean() for row in (*x, one.optimum)])
    torch.testing.assert_close(found[:, 0], f[:-1] - f[-1])
    distance = torch.linalg.vector_norm(x - one.optimum, dim=1)
    torch.testing.assert_close(found[:, 1], distance)
    torch.testing.assert_close(found[:, 2], (distance / torch.linalg.vector_norm(one.optimum)) ** 2)
    torch.testing.assert_close(one.average_statistics(x[0], 0, 2) + one.average_statistics(x[0], 1, 2), found[0])
    near = one.worker_statistics((one.optimum + 1e-10 * torch.ones(D, dtype=torch.float64))[None])[0]
    assert 0 < float(near[0]) < 1e-18, "f(x) - f(x*) by subtraction would be rounding of 1e-16"


@pytest.mark.parametrize("loss", LOSSES)
def test_the_data_of_a_worker_depend_on_neither_the_others_nor_the_number_of_samples(loss: str) -> None:
    whole, few = samples(loss), convex.draw(2, 7, D, loss, 1.0, 1.0, 3)
    torch.testing.assert_close(few.A, whole.A[:2, :7], rtol=0, atol=0)
    torch.testing.assert_close(few.b, whole.b[:2, :7])
    assert not torch.equal(samples(loss, seed=4).b, whole.b)
    part = problem(loss, range(2, 4))
    x = torch.ones(N, D, dtype=torch.float64)
    torch.testing.assert_close(part.gradient(x[2:4], DRAWS[:2])[1], problem(loss).gradient(x, DRAWS)[1][2:4])
