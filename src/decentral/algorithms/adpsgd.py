"""AD-PSGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.algorithms.features import Feature
from decentral.cluster.operations import Average, Pairs
from decentral.randomness import addresses
from decentral.settings import setting
from decentral.topology.rounds import Need, neighbors_of, sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network


@dataclass
class ADPSGD(AsynchronousAlgorithm):
    """Asynchronous decentralized parallel SGD: every worker averages with one neighbor at a time, without waiting.

        g_i = grad F_i(x_i; xi_i)                       computed at a copy, while others may average with x_i
        x_i <- x_i + u_i(g_i)                           applied to the current x_i
        x_i, x_j <- (x_i + x_j) / 2                     atomic, at any time, with a random neighbor j

    Lian et al., ICML 2018 (arXiv:1710.06952), Algorithm 1. To avoid deadlock the graph is bipartite: the workers of one
    side (that of worker 0) are active and send requests; the others are passive and answer one request after the other.
    An active worker keeps computing, but requests again only once the previous averaging is over. Only gradients
    change the mean of all models. Fast workers take more gradients: the run ends when all together have taken n times
    `steps`.

    gossips_per_step    averagings that an active worker starts per gradient
    events              CSV file of events, one per step, which replaces the clock: the header time,what,worker,partner
                        and lines below it. begin: the worker begins a gradient at its current model; update: it applies
                        the gradient; average: with the partner
    """

    name: str = "adpsgd"
    gossips_per_step: int = setting(1, at_least=1)
    events: str | None = setting(None, content=True, older=None)
    supports = AsynchronousAlgorithm.supports | {Feature.own_starts}
    usual: ClassVar = {"topology": "ring"}
    free_running: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.undirected, Need.connected, Need.bipartite})

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows  # [n, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [n, P]."""
        return self.State(x, self.local.init(x))

    def place(self, team: Team) -> Pairs:
        """Return the pairs of neighbors."""
        return team.meeting_place(lambda: Pairs(self.average, self.exchange))

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield gradients forever; after each, an active worker requests an average."""
        gradient, update = Gradient(copied=True), Local(self.update)
        pairs, rounds, gossip = self.place(team), team.rounds, enumerate(addresses(team.seed, "gossip", i))
        asks, period = sides(rounds)[i] == 0, rounds.period
        averages = [[Average(pairs, j) for j in neighbors_of(rounds, i, r)] for r in range(period)] if asks else []
        while True:
            yield gradient
            yield update
            for _ in range(self.gossips_per_step if asks else 0):
                number, drawn = next(gossip)
                if choices := averages[number % period]:
                    yield choices[drawn % len(choices)]

    def average(self, s: State, i: int, j: int, now: float) -> None:
        """Compute x_i, x_j <- (x_i + x_j) / 2."""
        s.x[i].add_(s.x[j]).mul_(0.5)
        s.x[j].copy_(s.x[i])

    def exchange(self, s: State, i: int, sent: Tensor, received: Tensor, now: float) -> None:
        """Compute x_i <- x_i + (received - sent) / 2, which keeps an update applied in between."""
        s.x[i].add_(received - sent, alpha=0.5)
