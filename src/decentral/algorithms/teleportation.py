"""TELEPORTATION."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.algorithms.features import Feature
from decentral.algorithms.states import OnlyModels
from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.settings import setting
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.topology import topology_of

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds


@dataclass
class Teleportation(OnlyModels):
    """TELEPORTATION: a few models move among many workers, so that they mix on a small graph.

        S_t  = k = `active` different workers, drawn in every step (k >= n: all, in their order)
        x_{S_t[i]} <- x_{S_t[i]} + u_{S_t[i]}                             gradients of the active workers only
        x_{S_t[i]} <- sum_j W_ij x_{S_t[j]}                               W of `graph` for k workers, round t
        x_{S_{t+1}[i]} <- x_{S_t[i]}                                      a message, unless it is the same worker

    Takezawa & Stich, ICLR 2025 (arXiv:2501.15259; the order is that of a third-party port, the authors' code was not
    found and the paper's text not checked). An inactive worker keeps a copy of its last model. A step is k gradients,
    not n: compare by gradients. With k >= n it is `dpsgd` on `graph`; with k = 1 it is a random walk of one SGD
    iterate. Momentum and other local optimizer buffers stay with their workers: plain `optim=sgd` is the method.
    Evaluations use all n workers' copies, including old ones, while the paper's result is the mean of the k models:
    with few active workers "averaged" and "mean" lag behind. The paper tries k = 1, 2, 4, ...; `seed` determines the
    active workers of each step.

    In a virtual cluster every worker spends the time of a gradient in every step, active or not: simulated time is an
    upper bound if workers are not equally fast. Topology: not used; the `graph` has its usual settings.
    """

    name: str = "teleportation"
    active: int = setting(4, at_least=1)
    graph: str = setting("ring", choices=partial(components, "topology"))
    seed: int = 0
    supports = OnlyModels.supports - {
        Feature.own_rates,
        Feature.own_starts,
        Feature.message_loss,
        Feature.absence,
        Feature.topology,
        Feature.plain_sgd,
    }

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if `graph` does not exist for the active workers or does not preserve the mean."""
        rounds = _rounds(self.graph, min(self.active, num_workers))
        if rounds.num_pieces > 1 or any(
            np.abs(sums - 1).max() > 1e-9
            for round in range(rounds.period)
            for W in rounds.mixing(round)
            for sums in (W.row_sums(), W.column_sums())
        ):
            raise ConfigError(
                f"algo.graph={self.graph} has no doubly stochastic matrix for {rounds.num_workers} active workers: use "
                "ring, complete, exponential or base_graph."
            )

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take a gradient on each active worker, average among them, and send each model to its next worker."""
        x, opt = s
        S, after = self.workers(net.n, t), self.workers(net.n, t + 1)
        here = sorted(int(worker) - net.workers.start for worker in S if worker in net.workers)
        if len(here) < len(x) and net.traffic.clock is not None:
            net.traffic.clock.gradient()  # of all workers; the oracle counts it when called for all
        if len(here) == len(x):
            x, opt = self.local.adapt(x, oracle(x), opt, t)
        elif here:
            of_active = tuple(buffer[here] for buffer in opt)
            active = x[here]
            x[here], of_active = self.local.adapt(active, oracle(active, here), of_active, t)
            for buffer, rows in zip(opt, of_active, strict=True):
                buffer[here] = rows
        x = net.mix_with(x, self.mixing(net.n, S, t))
        if len(S) < net.n:
            x = net.mix_with(x, self.moving(net.n, S, after))
        return self.State(x, opt)

    def workers(self, n: int, t: int) -> np.ndarray:
        """Return S_t: int64 [min(k, n)]."""
        if self.active >= n:
            return np.arange(n)
        return numpy_generator(self.seed, "teleportation", t).permutation(n)[: self.active]

    def mixing(self, n: int, S: np.ndarray, t: int) -> MixingMatrix:
        """Return W among the workers S, the identity for all others."""
        (W,) = _rounds(self.graph, len(S)).mixing(t)
        rest = np.setdiff1d(np.arange(n), S)
        return MixingMatrix.of_entries(
            n,
            np.concatenate([S[W.src], rest]),
            np.concatenate([S[W.dst], rest]),
            np.concatenate([W.weight, np.ones(len(rest))]),
        )

    def moving(self, n: int, S: np.ndarray, after: np.ndarray) -> MixingMatrix:
        """Return the matrix that copies row S[i] to worker after[i] and keeps all others."""
        source = np.arange(n)
        source[after] = S
        return MixingMatrix.of_entries(n, source, np.arange(n), np.ones(n))


@lru_cache(maxsize=8)
def _rounds(graph: str, active: int) -> Rounds:
    return topology_of(graph, {}).schedule(active)
