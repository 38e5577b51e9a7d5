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
from decentral.terminal.console import aligned

_LARGEST = 2000
"""The largest number of state coordinates."""
_ROUNDING = 1e-9
_LAST = 0.2
"""Share of the evaluations that the end of a run is."""


def quadratics(config: Config) -> Callable[[Path], str]:
    """Predict a run of this configuration; return the text that compares it with the finished run in a directory.

    Raises ConfigError for another task, a learning rate that changes, or a method that has no certificate.
    """
    refused = {
        f"task={config.task.name}: use task=quadratics": config.task.name != "quadratics",
        "lr=0: use a larger learning rate": config.lr == 0,
        "simulate=timeline, which does not train: leave it out": config.simulate is not Simulate.training,
    }
    if any(refused.values()):
        raise ConfigError(f"--predict cannot be used with {max(refused, key=lambda words: refused[words])}.")
    rate, bias, noise = _predict(config)
    expected = math.hypot(bias, noise)

    def compared(directory: Path) -> str:
        steps, distances = _measured(directory)
        end = float(np.sqrt(np.square(distances[-math.ceil(_LAST * len(distances)) :]).mean()))
        falling = (distances > 10 * expected) & (distances > 1e-9 * distances[0]) & (steps >= steps[-1] // 10)
        slope = np.polyfit(steps[falling], np.log(distances[falling]), 1)[0] if falling.sum() > 1 else math.nan
        rows = [
            ["", "predicted", "measured"],
            ["rate per step", f"{rate:.5f}", "-" if math.isnan(slope) else f"{math.exp(slope):.5f}"],
            ["distance by heterogeneity", _shown(bias), "-" if noise else _shown(end)],
            ["distance by gradient noise", _shown(noise), _shown(end) if noise and bias <= _ROUNDING else "-"],
            ["distance at the end", _shown(expected), _shown(end)],
        ]
        return f"Predicted from the method's coefficients (root mean square over workers):\n{aligned(rows)}"

    return compared


def _shown(distance: float) -> str:
    return f"{distance:.3g}" if distance > _ROUNDING else "0"


def _predict(config: Config) -> tuple[float, float, float]:
    """Return the exact rate of this configuration's problem, a spectral radius; the root mean square distance of the
    workers from the optimum at the fixed point; and that from the fixed point by gradient noise.

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
        return rate, math.inf, math.inf if variance else 0.0
    models = whole.fixed_point(hessian, np.einsum("nkc,nk->cn", A, b).ravel()).reshape(d, n)
    bias = models - problem.optimum.numpy()[order, None]
    noise = variance * np.trace(whole.noise(hessian)) if variance else 0.0
    return rate, math.sqrt(np.square(bias).sum() / n), math.sqrt(noise / n)


def _measured(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluated steps and the root mean square distance of the workers from the optimum there."""
    from pandas import DataFrame

    rows = DataFrame(read_metrics(directory))
    rows = rows[(rows.metric == "distance_to_optimum") & rows.worker.astype(str).str.isdigit()]
    distances = np.sqrt(rows.value.astype(float).pow(2).groupby(rows.step.astype(int)).mean())
    return distances.index.to_numpy(), distances.to_numpy()
