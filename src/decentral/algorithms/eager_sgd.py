"""Eager-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Team
from decentral.algorithms.features import Feature
from decentral.cluster.groups import Groups, Join
from decentral.cluster.operations import Mean
from decentral.randomness import address
from decentral.settings import setting
from decentral.topology.groups import GroupSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network


class Partial(Enum):
    """The worker that starts a partial collective: the first one, or one drawn at random in every step."""

    solo = "solo"
    majority = "majority"


@dataclass
class EagerSGD(AsynchronousAlgorithm):
    """Eager-SGD: all-reduce SGD whose all-reduce does not wait for stragglers.

        send_i <- send_i + g_i(x_i)
        G = 1/n sum_j send_j in step t of all workers; a contributed send_j is then reset to 0
        x_i <- x_i + Opt(G)

    Li et al., PPoPP 2020 (arXiv:1908.04207). A late gradient stays in the send buffer and joins a later step; nothing
    is lost. Every worker applies the sums of all steps in order, so models differ only by their workers' progress. They
    are averaged every `period_steps` steps and after the last.

    collective     solo: the first worker triggers the all-reduce of a step; majority: a randomly drawn worker triggers
                   it, so that on average half of all workers contribute a fresh gradient
    period_steps   steps between two averagings of the models
    """

    name: str = "eager_sgd"
    collective: Partial = Partial.solo
    period_steps: int = setting(32, at_least=1)
    supports = AsynchronousAlgorithm.supports - {Feature.topology}

    class State(NamedTuple):
        """Models, send buffers, and the local optimizer."""

        x: Rows  # [n, P]
        send: Rows  # [n, P]
        opt: Buffers

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError unless n is a power of two."""
        GroupSchedule(num_workers, num_workers, False)

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [n, P] and empty send buffers."""
        return self.State(x, x.new_zeros(x.shape), self.local.init(x))

    def place(self, team: Team) -> Groups:
        """Return one group of all workers."""
        n = team.num_workers
        drawn: Callable[[int], int] = lambda version: address(team.seed, "initiator", version) % n  # noqa: E731

        def made() -> Groups:
            return Groups(
                GroupSchedule(n, n, False),
                self.publish,
                self.receive,
                empties=True,
                depth=self.period_steps,
                activator=drawn if self.collective is Partial.majority else None,
            )

        return team.meeting_place(made)

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield, for each step, a gradient and a partial all-reduce of all gradients."""
        groups = self.place(team)
        gradient, synchronize = Gradient(), Mean()
        for t in range(team.num_steps):
            yield gradient
            yield Join(groups, t)
            if (t + 1) % self.period_steps == 0 or t + 1 == team.num_steps:
                yield synchronize

    def publish(self, s: State, i: int, g: Tensor | None, t: int) -> None:
        """Compute send_i <- send_i + g_i."""
        assert g is not None
        s.send[i].add_(g)

    def receive(self, s: State, i: int, t: int, fresh: bool, size: int, total: Tensor) -> None:
        """Compute x_i <- x_i + Opt(G)."""
        self.update(s, i, total / size, t)
