"""Predicted rate, bias and noise of a run of task=quadratics: `decentral-run ... --predict`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from decentral.config.schema import Config, Simulate
from decentral.errors import ConfigError
from decentral.store.metrics import read_metrics

_ROUNDING = 1e-9
_LARGEST = 2000
"""The largest number of state coordinates."""
_CONVERGED = 0.05
"""A run has converged where no more than this share of the predicted distance is left from its start."""
_LAST = 0.2
"""Share of the evaluations that the end of a run is."""


def quadratics(config: Config) -> Callable[[Path], list[list[str]]]:
    """Predict a run of this configuration; return what compares it with the finished run in a directory: rows of a
    quantity, its predicted and its measured value, with * where the run has not converged.

    Raises ConfigError for another task, a learning rate that changes, or a method that has no certificate.
    """
    refused = {
        f"task={config.task.name}: use task=quadratics": config.task.name != "quadratics",
        "lr=0: use a larger learning rate": config.lr == 0,
        "simulate=timeline, which does not train: leave it out": config.simulate is not Simulate.training,
    }
    if any(refused.values()):
        raise ConfigError(f"--predict cannot be used with {max(refused, key=lambda words: refused[words])}.")
    rate, bias, noise, suboptimality = _predict(config)
    expected = math.hypot(bias, noise)

    def compared(directory: Path) -> list[list[str]]:
        steps, squares = _measured(directory, "distance_to_optimum", 2)
        distances, last = np.sqrt(squares), math.ceil(_LAST * len(steps))
        end = math.sqrt(squares[-last:].mean())
        left = distances[0] * min(rate, 1.0) ** int(steps[-1])
        mark = "*" * bool(left > max(_CONVERGED * expected, _ROUNDING))
        falling = (distances > 10 * expected) & (distances > 1e-9 * distances[0]) & (steps >= steps[-1] // 10)
        slope = np.polyfit(steps[falling], np.log(distances[falling]), 1)[0] if falling.sum() > 1 else math.nan
        ended = float(_measured(directory, "suboptimality", 1)[1][-last:].mean())
        return [
            ["rate per step", f"{rate:.5f}", "-" if math.isnan(slope) else f"{math.exp(slope):.5f}"],
            ["bias", _shown(bias), "-" if noise else _shown(end) + mark],
            ["noise", _shown(noise), _shown(end) + mark if noise and bias <= _ROUNDING else "-"],
            ["left from the start", _shown(left), "-"],
            ["suboptimality, last fifth of the run", _shown(suboptimality), _shown(ended) + mark],
            ["distance, last fifth of the run", _shown(expected), _shown(end) + mark],
        ]

    return compared


def _shown(distance: float) -> str:
    return "unstable" if math.isinf(distance) else f"{distance:.3g}" if distance > _ROUNDING else "0"


def _predict(config: Config) -> tuple[float, float, float, float]:
    """Return the asymptotic rate of this configuration's problem, a spectral radius; the root mean square distance of
    the workers from the optimum at the fixed point; that from it by gradient noise; and their suboptimality.

    The coordinates of the model, each with the coefficients of its piece, are coupled by the Hessians.
    """
    import torch
    from scipy.linalg import block_diag

    from decentral.plugins.certificates.certify import Certifier, method_of
    from decentral.plugins.certificates.quadratics import STABLE, Piece

    certifier = Certifier(method_of(config), config.lr)
    n, problem = certifier.method.n, config.task.open(config, range(certifier.method.n), torch.device("cpu"))
    A, b = problem.problem.A.numpy(), problem.problem.b.numpy()
    d = A.shape[-1]
    columns = [np.arange(d)[part] for part in certifier.method.rounds.slices(d)]
    pieces = zip(certifier.at(config.lr), columns, strict=True)
    coordinates, order = [piece for piece, part in pieces for _ in part], np.concatenate(columns)
    size = sum(len(piece.states) for piece in coordinates)
    if size > _LARGEST:
        raise ConfigError(f"--predict needs {size} state coordinates, more than {_LARGEST}: use a smaller problem.")
    steps = zip(*(piece.phases for piece in coordinates), strict=True)
    phases: list[Any] = [tuple(block_diag(*matrices) for matrices in zip(*step, strict=True)) for step in steps]
    whole = Piece(phases, np.zeros((size, 0)), config.lr)
    A = A[..., order]
    hessian = np.einsum("nkc,nke,nm->cnem", A, A, np.eye(n)).reshape(d * n, d * n)
    rate, variance = whole.rate(hessian), config.task.noise**2 / d / config.accumulate
    if rate >= STABLE:
        return rate, math.inf, math.inf if variance else 0.0, math.inf
    models = whole.fixed_point(hessian, np.einsum("nkc,nk->cn", A, b).ravel()).reshape(d, n)
    bias = models - problem.optimum.numpy()[order, None]
    noise = variance * whole.noise(hessian) if variance else np.zeros((d * n, d * n))
    moments = np.einsum("ci,ei->ce", bias, bias) + np.einsum("ciei->ce", noise.reshape(d, n, d, n))
    suboptimality = float(np.einsum("ikc,ike,ce->", A, A, moments) / n**2)
    return rate, math.sqrt(np.square(bias).sum() / n), math.sqrt(np.trace(noise) / n), suboptimality


def _measured(directory: Path, metric: str, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluated steps and, there, the mean over the workers of this power of a metric."""
    from pandas import DataFrame

    rows = DataFrame(read_metrics(directory))
    rows = rows[(rows.metric == metric) & rows.worker.astype(str).str.isdigit()]
    means = rows.value.astype(float).pow(power).groupby(rows.step.astype(int)).mean()
    return means.index.to_numpy(), means.to_numpy()
