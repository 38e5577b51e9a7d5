"""Pairwise Gaussian differential privacy of linear gossip: the information in the messages that a worker receives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from torch import Tensor

from decentral.algorithms.asynchronous import in_rounds
from decentral.compression.dense import NoCompression
from decentral.compression.rows import RowLayout
from decentral.network.local import LocalNetwork
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds

_LARGEST = 4096
"""The largest n T."""
_RANK, _TOLERANCE = 1e-12, 1e-8
_TRIED = 8
"""Columns with random gradients, which the coefficients have to predict."""


class NoAccount(Exception):
    """A method or run that has no account of pairs, with the reason."""


class _Watched(LocalNetwork):
    """A network that keeps the rows it mixes."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__(rounds, Losses(0.0, 0))
        self.sent: list[Tensor] = []

    def begin_mix(self, x: Tensor, round: int, lazy: bool = False) -> Callable[[], Tensor]:
        self.sent += x.clone().reshape(len(x), -1, x.shape[-1]).unbind(1)
        return super().begin_mix(x, round, lazy)

    def _other(self, *arguments: Any, **settings: Any) -> Any:
        raise NoAccount("it sends more than rows to be mixed with those of neighbors")

    mean = mean_at = begin_mean = mix_with = push = relay = _other  # type: ignore[assignment]
    allgather = broadcast = swap = relay_payloads = gather = average = _other  # type: ignore[assignment]


def covariance(rounds: Rounds, sigma: float, pair_sigma: float) -> np.ndarray:
    """Return cov = sigma^2 I + pair_sigma^2 L [n, n] of the workers' noise; L the Laplacian of the first round."""
    A = rounds.mixing(0)[0].graph.dense() if pair_sigma else np.zeros((rounds.num_workers, rounds.num_workers))
    return np.asarray(sigma**2 * np.eye(len(A)) + pair_sigma**2 * (np.diag(A.sum(1)) - A))


def sent(config: Any, lr: Sequence[float]) -> list[tuple[int, np.ndarray]]:
    """Return (round, rows) of all messages: coefficients [n, n T] of the gradients, step by step.

    Raises NoAccount for a method that is not linear, or does more than gossip.
    """
    rounds, algo = config.rounds(), config.algo
    n, T = rounds.num_workers, len(lr)
    changes = config.network.drop_probability, config.lr_per_worker, config.steps_per_worker, config.compress.name
    others = config.availability.name, config.robust.name, config.attack.name
    if not in_rounds(type(algo)) or changes != (0.0, None, None, "none") or others != ("none",) * 3:
        raise NoAccount(
            "it is asynchronous, or has absences, losses, compressed messages, or other steps or rates per worker"
        )
    if n * T > _LARGEST or rounds.num_pieces > 1:
        raise NoAccount(f"n T = {n * T} is above {_LARGEST}, or the topology cuts models into pieces")
    g = torch.zeros(T, n, n * T + _TRIED, dtype=torch.float64)
    for t in range(T):
        g[t, :, t * n : (t + 1) * n] = torch.eye(n)
    tried = torch.randn(T, n, _TRIED, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g[..., n * T :] = tried
    layout = RowLayout.flat(g.shape[-1])
    net = _Watched(rounds)
    algorithm = algo.bind(config.optim.rule(lambda t: lr[t], layout), NoCompression().bound(layout, 0, 1.0))
    state, messages = algorithm.init(torch.zeros_like(g[0]), net), list[tuple[int, np.ndarray]]()
    for t in range(T):
        drawn, taken = g[t], list[int]()

        def oracle(x: Tensor, workers: Sequence[int] | None = None, g: Tensor = drawn, to: list[int] = taken) -> Tensor:
            rows = list(range(n) if workers is None else workers)
            to += rows
            return g[rows]

        net.sent.clear()
        state = algorithm.step(state, oracle, net, t)
        if sorted(taken) != list(range(n)) or not (net.sent or rounds.is_silent(t)):
            raise NoAccount("it does not gossip, or takes not one gradient per step")
        messages += [(t, rows.numpy()) for rows in net.sent]
    together = np.concatenate([rows for _, rows in messages])
    predicted = together[:, : n * T] @ tried.reshape(n * T, _TRIED).numpy()
    if np.abs(predicted - together[:, n * T :]).max() > _TOLERANCE * np.abs(predicted).max():
        raise NoAccount("it is not linear in its gradients")
    return [(t, rows[:, : n * T]) for t, rows in messages]


def pairs(config: Any, lr: Sequence[float], sigma: float, pair_sigma: float) -> np.ndarray:
    """Return mu_{u->v} [n, n] for contributions that change by 1 in every step: see `Gaussian`. The diagonal is 0.

    Raises NoAccount as `sent` does.
    """
    messages, rounds = sent(config, lr), config.rounds()
    n, T = rounds.num_workers, len(lr)
    mu = np.zeros((n, n))
    for v in range(n):
        others = np.arange(n) != v
        senders = ((rounds.mixing(t)[0].dense()[v] != 0) & others for t, _ in messages)
        B = np.concatenate([rows[heard] for heard, (_, rows) in zip(senders, messages, strict=True)])
        M = B.reshape(-1, T, n)[:, :, others]
        covs = [_known_to(v, rounds.mixing(t)[0].graph.dense(), sigma, pair_sigma) for t in range(T)]
        N = np.stack([M[:, t] @ np.linalg.cholesky(cov) for t, cov in enumerate(covs)], axis=1)
        N = N.reshape(len(B), -1)
        sizes, U = np.linalg.eigh(N @ N.T)
        kept = sizes > _RANK * sizes.max(initial=0.0)
        Y = ((U[:, kept] / np.sqrt(sizes[kept])).T @ M.reshape(len(B), -1)).reshape(-1, T, n - 1).transpose(2, 1, 0)
        seen = np.abs(Y @ Y.transpose(0, 2, 1)).sum((1, 2))
        most = sum(np.linalg.inv(cov).diagonal() for cov in covs)
        mu[others, v] = np.sqrt(np.minimum(seen, most))
    return mu


def _known_to(v: int, A: np.ndarray, sigma: float, pair_sigma: float) -> np.ndarray:
    """Return the covariance [n - 1, n - 1] of the other workers' noise, for a worker that knows its own: that of the
    graph without it."""
    others = np.delete(np.delete(A | A.T, v, 0), v, 1).astype(float)
    laplacian = np.diag(others.sum(1)) - others
    return np.asarray(sigma**2 * np.eye(len(others)) + pair_sigma**2 * laplacian)


def epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) <=
    delta."""
    if mu <= 0:
        return 0.0

    def over(eps: float) -> float:
        return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu))) - delta

    return 0.0 if over(0.0) <= 0 else float(brentq(over, 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1))
