"""A2CiD2: AD-PSGD with a continuous momentum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Team
from decentral.algorithms.features import Feature
from decentral.cluster.operations import Average, Local, Pairs
from decentral.randomness import addresses
from decentral.settings import setting
from decentral.topology.rounds import Need, neighbors_of, sides

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, RevisionOf, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds


class Constants(NamedTuple):
    """The rate eta per unit of time, and the weight alpha_t of a meeting in the second model; alpha = 1/2."""

    eta: float
    alpha_t: float


@dataclass
class A2CiD2(AsynchronousAlgorithm):
    """A2CiD2: asynchronous pairwise gossip, accelerated by a second model xt that each worker mixes with its model.

        mix(i, s):    D = s - tau_i, a = (1 + exp(-2 eta D)) / 2;  tau_i <- s;
                      (x_i, xt_i) <- (a x_i + (1 - a) xt_i, (1 - a) x_i + a xt_i)
        gradient:     mix(i, s), g_i = grad F_i(x_i);  when it is computed, at s':
                      mix(i, s'), x_i <- x_i + u_i, xt_i <- xt_i + u_i
        meeting:      mix(i, s), mix(j, s), m = x_i - x_j;  x_i <- x_i - m / 2, x_j <- x_j + m / 2,
                      xt_i <- xt_i - alpha_t m, xt_j <- xt_j + alpha_t m

    Nabli, Belilovsky, Oyallon, NeurIPS 2023, Algorithm 1 and Proposition 3.6; the unit of time is that of a gradient.
    From the rates l_ij of meetings, Lam = sum l_ij (e_i - e_j)(e_i - e_j)^T, chi1 = 1 / lambda_2(Lam),
    chi2 = max over edges of (e_i - e_j)^T Lam^+ (e_i - e_j) / 2:  eta = 1 / (2 sqrt(chi1 chi2)),
    alpha_t = sqrt(chi1 / chi2) / 2. Departures: m is the difference of the mixed models, as in the paper's differential
    equation (the authors' code does not mix one side, so the mean drifts); workers are paired as in `adpsgd`.
    Only gradients change the sum of x and xt over workers. On a complete graph the constants give alpha_t = 1/2 and
    xt = x, which is AD-PSGD; such graphs are refused here, like all non-bipartite graphs: use `algo=adpsgd`.
    Between processes, time is the number of gradients that all workers have begun, divided by n, as far as the process
    knows it. This is the paper's unit on any machine.

    gossips_per_step       averagings that an active worker starts per gradient
    eta, alpha_t           the constants, instead of those above (null), eta for a unit of time of a gradient
    events                 CSV file of events, which replaces the clock: see `adpsgd`; times are in gradients
    mix_before_gradient    take the gradient at the mixed model, as in the differential equation; false: at the unmixed
                           model, as in the authors' code
    """

    name: str = "a2cid2"
    gossips_per_step: int = setting(1, at_least=1)
    mix_before_gradient: bool = field(default=True, metadata={"older": True})
    eta: float | None = setting(None, at_least=0, older=None)
    alpha_t: float | None = setting(None, at_least=0, older=None)
    events: str | None = setting(None, content=True, older=None)
    supports = AsynchronousAlgorithm.supports | {Feature.own_starts}
    usual: ClassVar = {"topology": "ring"}
    free_running: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.static, Need.undirected, Need.connected, Need.bipartite})

    class State(NamedTuple):
        """Both models, the time of their last mixing, and the local optimizer."""

        x: Rows  # [n, P]
        xt: Rows  # [n, P]
        tau: Rows  # [n], float64: in simulated seconds; between processes see `Team.gradient_s`
        opt: Buffers

    def revision(self, of: RevisionOf) -> int:
        """Return 2 between processes: revision 1 measured time in seconds."""
        return 2 if of.between_processes else 1

    def init(self, x: Tensor, net: Network) -> State:
        """Return the state with both models at x [n, P]."""
        return self.State(x, x.clone(), x.new_zeros(len(x)).double(), self.local.init(x))

    def rule(self, team: Team) -> _Rule:
        """Return the row updates of this method."""
        return _Rule(self, team.rounds, team.gradient_s)

    def place(self, team: Team) -> Pairs:
        """Return the pairs of neighbors."""
        rule = self.rule(team)
        return team.meeting_place(lambda: Pairs(rule.meet, rule.exchange, rule.mix))

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield gradients forever; after each, an active worker meets a neighbor."""
        rounds, n = team.rounds, team.num_workers
        rule, pairs = self.rule(team), self.place(team)
        mix, gradient, update = Local(rule.mix_one, timed=True), Gradient(copied=True), Local(rule.update, timed=True)
        asks = sides(rounds)[i] == 0 and n > 1
        averages, draws = [Average(pairs, j) for j in neighbors_of(rounds, i, 0)], addresses(team.seed, "gossip", i)
        while True:
            if self.mix_before_gradient:
                yield mix
            yield gradient
            yield update
            for _ in range(self.gossips_per_step if asks else 0):
                yield averages[next(draws) % len(averages)]


@dataclass(frozen=True, eq=False)
class _Rule:
    """Row updates. The constants are computed on first use: eigenvalues for many workers take long."""

    algorithm: A2CiD2
    rounds: Rounds
    gradient_s: float

    @cached_property
    def constants(self) -> Constants:
        """Return the constants with eta per second."""
        if self.rounds.num_workers < 2:
            return Constants(0.0, 0.5)
        eta, alpha_t = self.algorithm.eta, self.algorithm.alpha_t
        if eta is None or alpha_t is None:
            usual = constants(self.rounds, self.algorithm.gossips_per_step)
            eta, alpha_t = (usual.eta if eta is None else eta), (usual.alpha_t if alpha_t is None else alpha_t)
        return Constants(eta / self.gradient_s, alpha_t)

    def mix(self, s: A2CiD2.State, i: int, now: float) -> None:
        """Apply mix(i, now)."""
        tau, x, xt = s.tau[i], s.x[i], s.xt[i]
        b = -math.expm1(-2 * self.constants.eta * (now - tau.item())) / 2
        tau.fill_(now)
        difference = (xt - x).mul_(b)
        x.add_(difference)
        xt.sub_(difference)

    def mix_one(self, s: A2CiD2.State, i: int, g: Tensor | None, t: int, now: float) -> None:
        """Apply mix(i, now) alone."""
        self.mix(s, i, now)

    def update(self, s: A2CiD2.State, i: int, g: Tensor, t: int, now: float) -> None:
        """Apply the worker's update to both models."""
        self.mix(s, i, now)
        before = s.x[i].clone()
        self.algorithm.update(s, i, g, t)
        s.xt[i].add_(s.x[i] - before)

    def meet(self, s: A2CiD2.State, i: int, j: int, now: float) -> None:
        """Apply a meeting of i and j."""
        self.mix(s, i, now)
        self.mix(s, j, now)
        m = s.x[i] - s.x[j]
        s.x[i].sub_(m, alpha=0.5)
        s.x[j].add_(m, alpha=0.5)
        s.xt[i].sub_(m, alpha=self.constants.alpha_t)
        s.xt[j].add_(m, alpha=self.constants.alpha_t)

    def exchange(self, s: A2CiD2.State, i: int, sent: Tensor, received: Tensor, now: float) -> None:
        """Apply a meeting to i: its mixed model was `sent`, the partner's is `received`."""
        m = sent - received
        s.x[i].sub_(m, alpha=0.5)
        s.xt[i].sub_(m, alpha=self.constants.alpha_t)


@lru_cache(maxsize=8)
def constants(rounds: Rounds, gossips_per_step: int) -> Constants:
    """Return eta and alpha_t for the pairing of `adpsgd`: an active worker meets each neighbor equally often."""
    n, side = rounds.num_workers, sides(rounds)
    Lam = np.zeros((n, n))
    edges = []
    for i in (i for i in range(n) if side[i] == 0):
        neighbors = neighbors_of(rounds, i, 0)
        for j in neighbors:
            rate = gossips_per_step / len(neighbors)
            Lam[[i, j], [i, j]] += rate
            Lam[[i, j], [j, i]] -= rate
            edges.append((i, j))
    values, vectors = np.linalg.eigh(Lam)
    inverse = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
    chi1 = 1 / values[1]
    chi2 = max(inverse[i, i] + inverse[j, j] - 2 * inverse[i, j] for i, j in edges) / 2
    return Constants(1 / (2 * math.sqrt(chi1 * chi2)), math.sqrt(chi1 / chi2) / 2)
