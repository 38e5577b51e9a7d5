"""Gaussian noise on clipped gradients, independent or correlated among neighbors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.network.privacy import Privacy
from decentral.randomness import torch_generator
from decentral.settings import setting
from decentral.store.files import csv_text, write_text
from decentral.store.metrics import Metric
from decentral.terminal.console import say

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.tasks.task import Problem

_WORKER = Metric("privacy", "epsilon", larger_is_better=False)
_PAIRS = Metric("privacy", "epsilon_of_a_pair", larger_is_better=False)
_SEEN = Metric("privacy", "epsilon_if_all_is_seen", larger_is_better=False)


@dataclass
class Gaussian(Privacy):
    """Every worker clips its gradient and adds Gaussian noise, before the local optimizer and any message.

        g_i <- g_i min(1, C / ||g_i||) + xi_i + sum_{j ~ i} v_ij      xi_i ~ N(0, sigma^2 I)
                                                                      v_ij = -v_ji ~ N(0, pair_sigma^2 I)

    Independent noise before gossip is Muffliato's (Cyffers, Even, Bellet & Massoulie, NeurIPS 2022), with one round of
    gossip per step; noise that cancels among neighbors is DECOR's (Allouah et al., ICML 2024), where i and j draw v_ij
    from a common seed, without messages.

    A run records epsilon for `delta`: a worker's is the largest over all other workers, as attackers that see the
    messages they receive and know the graph, the learning rates and their own noise; the mean over all pairs is
    recorded, too, and privacy.csv has each pair. Two data sets are neighbors if they differ in all examples of one
    worker. Each of its gradients then changes by at most Delta = 2 C, in every step: no amplification by sampling is
    counted. With the messages y = B (g + xi) of T steps, B from the method itself, and X the projection on the row
    space of B without the attacker's columns (with correlated noise: B^T (B Sigma B^T)^+ B):

        mu_{u->v}^2 = (Delta / sigma)^2 min(T, sum_{s,t <= T} |X[(s, u), (t, u)]|)
        delta       = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)

    (Gaussian differential privacy, Dong, Roth & Su 2022; pairs as by Bellet et al., 2025, arXiv:2510.17480.) This needs
    a method that only sends rows by gossip, linear in its gradients: dpsgd, d2, gradient_tracking, also with momentum.
    For all other methods, and for long runs of many workers (n T > 4096), only the epsilon against an attacker that
    sees every gradient with its noise is recorded: mu^2 = T Delta^2 max_i (cov^-1)_ii, cov = sigma^2 I + pair_sigma^2 L
    for the graph's Laplacian L.

    clip        C, the largest norm of a gradient
    sigma       standard deviation of the independent noise
    pair_sigma  standard deviation of the noise that each pair of neighbors shares
    delta       delta, for which epsilon is reported
    """

    name: str = "gaussian"
    clip: float = setting(1.0, above=0)
    sigma: float = setting(1.0, at_least=0)
    pair_sigma: float = setting(0.0, at_least=0)
    delta: float = setting(1e-5, above=0, below=1)
    metrics: ClassVar[tuple[Metric, ...]] = (_WORKER, _PAIRS, _SEEN)

    def __post_init__(self) -> None:
        if not self.sigma:
            raise ConfigError("privacy.sigma=0 protects nothing in the end: use noise, such as privacy.sigma=0.1.")

    def protect(self, problem: Problem, config: Any, workers: range) -> Problem:
        """Return the problem with clipped gradients and noise."""
        return Protected(problem, self, config, workers)  # type: ignore[return-value]

    def account(self, config: Any, rates: Iterable[float], directory: Path) -> list[dict[str, Any]]:
        """Return rows with epsilon of each worker, the worst and the mean, and write privacy.csv."""
        from decentral.plugins.private.accountant import NoAccount, covariance, epsilon, pairs

        lr, scale = list(rates), 2 * self.clip
        cov = covariance(config.rounds(), self.sigma, self.pair_sigma)
        seen = scale * np.sqrt(len(lr) * np.linalg.inv(cov).diagonal().max())
        found: list[tuple[Metric, int | str, float]] = [(_SEEN, "worst", epsilon(seen, self.delta))]
        try:
            mu = scale * pairs(config, lr, self.sigma, self.pair_sigma)
        except NoAccount as reason:
            say(f"Privacy of pairs of algo={config.algo.name} is not computed, because {reason}.")
            mu = np.zeros((0, 0))
        if len(mu) > 1:
            table = np.array([[epsilon(each, self.delta) for each in row] for row in mu])
            ends = [(u, v) for u in range(len(mu)) for v in range(len(mu)) if u != v]
            rows = [[u, v, mu[u, v], table[u, v]] for u, v in ends]
            write_text(directory / "privacy.csv", csv_text(["of", "attacker", "mu", "epsilon"], rows))
            each = table.max(1)  # the diagonal is 0
            found += [(_WORKER, worker, value) for worker, value in enumerate(each.tolist())]
            found += [(_WORKER, "worst", each.max()), (_WORKER, "mean", each.mean())]
            found += [(_PAIRS, "mean", table.sum() / len(ends))]
        return [
            {"split": metric.split, "metric": metric.name, "worker": worker, "value": float(value)}
            for metric, worker, value in found
        ]


class Protected:
    """A problem whose gradients are clipped and have noise; everything else is delegated."""

    def __init__(self, problem: Problem, privacy: Gaussian, config: Any, workers: range) -> None:
        self.problem, self.privacy, self.workers, self.seed = problem, privacy, workers, config.seed
        self.rounds = config.rounds() if privacy.pair_sigma else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return the mean losses [r] and the protected gradients [r, P]."""
        losses, g = self.problem.gradient(x, draws, workers)
        places = range(len(self.workers)) if workers is None else workers
        g = g * (self.privacy.clip / g.norm(dim=1, keepdim=True)).clamp_(max=1.0)
        for row, place, draw in zip(g, places, draws.tolist(), strict=True):
            self.disturb(row, self.workers[place], draw)
        return losses, g

    def disturb(self, row: Tensor, worker: int, draw: int) -> None:
        """Add the noise of a worker's gradient number `draw`."""
        self.add(row, self.privacy.sigma, "privacy", worker, draw)
        if self.rounds is not None:
            graph = self.rounds.mixing(draw)[0].graph
            for other in graph.src[graph.dst == worker].tolist():
                ends = sorted((worker, other))
                self.add(row, self.privacy.pair_sigma * (1 if worker < other else -1), "pair privacy", *ends, draw)

    def add(self, row: Tensor, scale: float, *address: Any) -> None:
        """Add scaled Gaussian noise of this address to a row [P]."""
        generator = torch_generator("cpu", self.seed, *address)
        row.add_(row.new_empty(len(row), device="cpu").normal_(generator=generator).to(row.device), alpha=scale)
