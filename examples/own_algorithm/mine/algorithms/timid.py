"""An asynchronous algorithm with a `program`: pairwise gossip after every few gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.cluster.operations import Average, Pairs
from decentral.settings import setting
from decentral.topology.requirements import Need
from decentral.topology.rounds import neighbors_of, sides

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network


@dataclass
class Timid(AsynchronousAlgorithm):
    """AD-PSGD in which a worker asks its neighbors in turn, once per `every` gradients.

        x_i <- x_i + u_i                               `every` times, then
        x_i, x_j <- (1 - weight) x_i + weight x_j, (1 - weight) x_j + weight x_i

    The graph is bipartite: workers on the side of worker 0 ask, the others answer.

    every     gradients between two averages
    weight    how far each of the two moves to the other; 1/2: to their mean
    """

    name: str = "timid"
    every: int = setting(2, at_least=1)
    weight: float = 0.5
    usual: ClassVar = {"topology": "ring"}
    free_running: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.undirected, Need.connected, Need.bipartite})

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows  # [n, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """The models x [n, P]."""
        return self.State(x, self.local.init(x))

    def place(self, team: Team) -> Pairs:
        """Where two workers meet."""
        return team.meeting_place(lambda: Pairs(self.average, self.exchange))

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield the operations of worker i, one by one, forever."""
        gradient, update, pairs = Gradient(copied=True), Local(self.update), self.place(team)
        asks, neighbors, turn = sides(team.rounds)[i] == 0, neighbors_of(team.rounds, i, 0), 0
        while True:
            for _ in range(self.every):
                yield gradient
                yield update
            if asks:
                yield Average(pairs, neighbors[turn % len(neighbors)])
                turn += 1

    def average(self, s: State, i: int, j: int, now: float) -> None:
        """Both rows, in one process."""
        difference = (s.x[j] - s.x[i]).mul_(self.weight)
        s.x[i].add_(difference)
        s.x[j].sub_(difference)

    def exchange(self, s: State, i: int, sent: Tensor, received: Tensor, now: float) -> None:
        """The row of i, between processes: updates made in the meantime are kept."""
        s.x[i].add_(received - sent, alpha=self.weight)
