"""Predicted rate, bias and noise of a run of task=quadratics: `decentral-run ... --predict`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decentral.config.schema import Config, Simulate
from decentral.errors import ConfigError
from decentral.store.metrics import read_metrics
from decentral.terminal.console import aligned

_LARGEST = 2000
"""The largest number of state coordinates."""
_ROUNDING = 1e-9
_CONVERGED = 0.05
"""A run has converged where no more than this share of the predicted distance is left from its start."""
_LAST = 0.2
"""Share of the evaluations that the end of a run is."""


class Prediction(NamedTuple):
    """The predicted behavior for one problem."""

    rate: float
    bias: float
    """Root mean square distance of the workers from the optimum at the fixed point."""
    noise: float
    """Root mean square distance of the workers from the fixed point by gradient noise."""
    suboptimality: float
    """Mean over the workers, by both."""


def quadratics(config: Config) -> Callable[[Path], str]:
    """Predict a run of this configuration; return the text that compares it with the finished run in a directory.

    Raises ConfigError for another task, a learning rate that changes, or a method that has no certificate.
    """
    refused = {
        f"task={config.task.name}: use task=quadratics": config.task.name != "quadratics",
        "lr=0: use a larger learning rate": config.lr == 0,
        "simulate=timeline, which does not train: leave it out": config.simulate is not Simulate.training,
    }
    for words, is_given in refused.items():
        if is_given:
            raise ConfigError(f"--predict cannot be used with {words}.")
    predicted = _predict(config)

    def compared(directory: Path) -> str:
        steps, squares = _measured(directory, "distance_to_optimum", 2)
        distances, last = np.sqrt(squares), math.ceil(_LAST * len(steps))
        end = math.sqrt(squares[-last:].mean())
        expected = math.hypot(predicted.bias, predicted.noise)
        left = distances[0] * min(predicted.rate, 1.0) ** int(steps[-1])
        mark = " (not converged)" * bool(left > max(_CONVERGED * expected, _ROUNDING))
        falling = (distances > 10 * expected) & (distances > 1e-9 * distances[0]) & (steps >= steps[-1] // 10)
        slope = np.polyfit(steps[falling], np.log(distances[falling]), 1)[0] if falling.sum() > 1 else math.nan
        ended = float(_measured(directory, "suboptimality", 1)[1][-last:].mean())
        rows = [
            ["", "predicted", "measured"],
            ["rate per step", f"{predicted.rate:.5f}", "-" if math.isnan(slope) else f"{math.exp(slope):.5f}"],
            ["distance by heterogeneity", _shown(predicted.bias), "-" if predicted.noise else _shown(end) + mark],
            [
                "distance by gradient noise",
                _shown(predicted.noise),
                "-" if predicted.bias > _ROUNDING or not predicted.noise else _shown(end) + mark,
            ],
            ["suboptimality (mean)", _shown(predicted.suboptimality), _shown(ended) + mark],
            ["distance at the end", _shown(expected), _shown(end) + mark],
        ]
        table = f"Predicted from the method's coefficients (root mean square over workers):\n{aligned(rows)}"
        if mark:
            table += (
                f"\nNot converged: after {steps[-1]} steps, a distance of about {left:.3g} from the start is left, and "
                "the predicted ends are those of a longer run."
            )
        return table

    return compared


def _shown(distance: float) -> str:
    return f"{distance:.3g}" if distance > _ROUNDING else "0"


def _predict(config: Config) -> Prediction:
    """Return the exact rate, bias and noise of this configuration's problem, the rate as a spectral radius.

    The coordinates of the model, each with the coefficients of its piece, are coupled by the Hessians.
    """
    import torch
    from scipy.linalg import block_diag

    from decentral.plugins.certificates.certify import Certifier, method_of
    from decentral.plugins.certificates.quadratics import STABLE, Piece
    from decentral.plugins.certificates.trace import Phase

    certifier = Certifier(method_of(config), config.lr)
    n, pieces = certifier.method.n, certifier.pieces
    problem = config.task.open(config, range(n), torch.device("cpu"))
    A, b = problem.problem.A.numpy(), problem.problem.b.numpy()
    d = A.shape[-1]
    number = np.zeros(d, dtype=int)  # of each coordinate's piece
    for piece, columns in enumerate(config.rounds().slices(d)):
        number[columns] = piece
    coordinates = [pieces[piece] for piece in number]
    size = sum(len(piece.start) for piece in coordinates)
    if size > _LARGEST:
        raise ConfigError(f"--predict needs {size} state coordinates, more than {_LARGEST}: use a smaller problem.")
    phases = [
        Phase(*(block_diag(*matrices) for matrices in zip(*phase, strict=True)))
        for phase in zip(*(piece.phases for piece in coordinates), strict=True)
    ]
    whole = Piece(phases, np.concatenate([piece.start for piece in coordinates]), np.zeros((size, 0)), config.lr)
    hessian = np.einsum("nkc,nke,nm->cnem", A, A, np.eye(n)).reshape(d * n, d * n)
    rate, variance = whole.rate(hessian), config.task.noise**2 / d / config.accumulate
    if rate >= STABLE:
        return Prediction(rate, math.inf, math.inf if variance else 0.0, math.inf)
    models = whole.fixed_point(hessian, np.einsum("nkc,nk->cn", A, b).ravel()).reshape(d, n)
    bias = models - problem.optimum.numpy()[:, None]
    noise = variance * whole.noise(hessian) if variance else np.zeros((d * n, d * n))
    moments = np.einsum("ci,ei->ce", bias, bias) + np.einsum("ciei->ce", noise.reshape(d, n, d, n))
    suboptimality = np.einsum("ikc,ike,ce->", A, A, moments) / n**2
    return Prediction(rate, math.sqrt(np.square(bias).sum() / n), math.sqrt(np.trace(noise) / n), float(suboptimality))


def _measured(directory: Path, metric: str, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluated steps and, there, the mean over the workers of this power of a metric."""
    values: dict[int, list[Any]] = {}
    for row in read_metrics(directory):
        if row["metric"] == metric and str(row["worker"]).isdigit():
            values.setdefault(int(row["step"]), []).append(float(row["value"]) ** power)
    steps = sorted(values)
    return np.array(steps), np.array([np.mean(values[step]) for step in steps])
