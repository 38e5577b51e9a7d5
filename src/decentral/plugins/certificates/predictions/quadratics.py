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
_LAST = 0.2
"""Share of the evaluations that the end of a run is."""


class Prediction(NamedTuple):
    """The predicted behavior for one problem."""

    rate: float
    bias: float
    """Root mean square distance of the workers from the optimum at the fixed point."""
    noise: float
    """Root mean square distance of the workers from the fixed point by gradient noise."""


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
        steps, distances = _measured(directory)
        end = float(np.sqrt(np.square(distances[-math.ceil(_LAST * len(distances)) :]).mean()))
        expected = math.hypot(predicted.bias, predicted.noise)
        falling = (distances > 10 * expected) & (distances > 1e-9 * distances[0]) & (steps >= steps[-1] // 10)
        slope = np.polyfit(steps[falling], np.log(distances[falling]), 1)[0] if falling.sum() > 1 else math.nan
        rows = [
            ["", "predicted", "measured"],
            ["rate per step", f"{predicted.rate:.5f}", "-" if math.isnan(slope) else f"{math.exp(slope):.5f}"],
            ["distance by heterogeneity", _shown(predicted.bias), "-" if predicted.noise else _shown(end)],
            [
                "distance by gradient noise",
                _shown(predicted.noise),
                "-" if predicted.bias > _ROUNDING or not predicted.noise else _shown(end),
            ],
            ["distance at the end", _shown(expected), _shown(end)],
        ]
        return f"Predicted from the method's coefficients (root mean square over workers):\n{aligned(rows)}"

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
        return Prediction(rate, math.inf, math.inf if variance else 0.0)
    models = whole.fixed_point(hessian, np.einsum("nkc,nk->cn", A, b).ravel()).reshape(d, n)
    bias = models - problem.optimum.numpy()[:, None]
    noise = variance * np.trace(whole.noise(hessian)) if variance else 0.0
    return Prediction(rate, math.sqrt(np.square(bias).sum() / n), math.sqrt(noise / n))


def _measured(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluated steps and the root mean square distance of the workers from the optimum there."""
    found: dict[int, list[Any]] = {}
    for row in read_metrics(directory):
        if row["metric"] == "distance_to_optimum" and str(row["worker"]).isdigit():
            found.setdefault(int(row["step"]), []).append(float(row["value"]))
    steps = sorted(found)
    return np.array(steps), np.array([math.sqrt(np.square(found[step]).mean()) for step in steps])
