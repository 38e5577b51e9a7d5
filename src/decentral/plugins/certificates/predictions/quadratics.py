"""Predicted rate, bias and noise of a run of task=quadratics: `decentral-run ... --predict`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decentral.config.schema import Config
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
    if config.task.name != "quadratics" or config.schedule.name != "constant":
        raise ConfigError(
            f"--predict cannot be used with task={config.task.name} schedule={config.schedule.name}: use "
            "task=quadratics schedule=constant."
        )
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
    """Return the exact rate, bias and noise of this configuration's problem, the rate as a spectral radius."""
    import torch
    from scipy.linalg import solve_discrete_lyapunov

    from decentral.plugins.certificates.certify import Certifier, method_of
    from decentral.plugins.certificates.quadratics import STABLE

    with torch.no_grad():
        pieces = Certifier(method_of(config), config.lr).at(config.lr)
    n = pieces[0].n
    problem = config.task.open(config, range(n), torch.device("cpu"))
    A, d = problem.problem.A.numpy(), problem.problem.A.shape[-1]
    columns = config.rounds().slices(d)
    of = [next(piece for piece, chosen in zip(pieces, columns, strict=True) if c in range(d)[chosen]) for c in range(d)]
    ends = [np.cumsum([0, *(piece.phases[t].A.shape[1] for piece in of)]) for t in range(len(of[0].phases))]
    first, size = ends[0], int(ends[0][-1])
    if first[-1] > _LARGEST:
        raise ConfigError(
            f"--predict needs {first[-1]} state coordinates, more than {_LARGEST}: use a smaller problem."
        )
    optimum = problem.optimum.numpy()
    hessian = np.einsum("nkc,nkd->ncd", A, A)
    offset = np.einsum("ncd,d->nc", hessian, optimum) - np.einsum("nkc,nk->nc", A, problem.problem.b.numpy())
    variance = config.task.noise**2 / d
    period, driven, noise = np.eye(size), np.zeros(size), np.zeros((size, size))
    for t, start in enumerate(ends):
        after = ends[(t + 1) % len(ends)]
        F, q, N = np.zeros((after[-1], start[-1])), np.zeros(after[-1]), np.zeros((after[-1], after[-1]))
        for c, piece in enumerate(of):
            rows = slice(after[c], after[c + 1])
            phase = piece.phases[t]
            F[rows, start[c] : start[c + 1]] += phase.A
            q[rows] = phase.B @ offset[:, c]
            N[rows, rows] = variance * phase.B @ phase.B.T
            for other, source in enumerate(of):
                F[rows, start[other] : start[other + 1]] += phase.B @ (hessian[:, c, other, None] * source.phases[t].C)
        period, driven, noise = F @ period, F @ driven + q, F @ noise @ F.T + N
    rate = float(np.abs(np.linalg.eigvals(period)).max() ** (1 / len(of[0].phases)))
    if rate >= STABLE:
        return Prediction(rate, math.inf, math.inf if variance else 0.0)
    models = np.zeros((d, n, size))
    for c, piece in enumerate(of):
        models[c, :, first[c] : first[c + 1]] = piece.phases[0].M
    bias = models @ np.linalg.solve(np.eye(size) - period, driven)
    covariance = solve_discrete_lyapunov(period, noise) if variance else noise
    return Prediction(
        rate,
        math.sqrt(np.square(bias).sum() / n),
        math.sqrt(np.einsum("cis,st,cit->", models, covariance, models) / n),
    )


def _measured(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluated steps and the root mean square distance of the workers from the optimum there."""
    found: dict[int, list[Any]] = {}
    for row in read_metrics(directory):
        if row["metric"] == "distance_to_optimum" and str(row["worker"]).isdigit():
            found.setdefault(int(row["step"]), []).append(float(row["value"]))
    steps = sorted(found)
    return np.array(steps), np.array([math.sqrt(np.square(found[step]).mean()) for step in steps])
