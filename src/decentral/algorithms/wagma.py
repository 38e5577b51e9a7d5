"""WAGMA-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.algorithms.features import Feature
from decentral.cluster.groups import Groups, Join, Publish
from decentral.cluster.operations import Mean
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.groups import GroupSchedule, group_size_auto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network


class Order(Enum):
    """The position of averaging in a step: after the local update, or before it."""

    adapt_then_combine = "adapt_then_combine"
    combine_then_adapt = "combine_then_adapt"


class StaleRule(Enum):
    """The use of a group's sum by a worker with a stale contribution."""

    paper = "paper"
    always_plus_one = "always_plus_one"


@dataclass
class WAGMA(AsynchronousAlgorithm):
    """Wait-avoiding group model averaging: averaging in small groups without waiting.

        W'_i = W_i + u_i(W_i);  send_i <- (W'_i, t)
        (t + 1) mod tau != 0:   W_i <- 1/S sum                    if i contributed W'_i of step t to version t
                                W_i <- (sum + W'_i) / (S + 1)     otherwise: `sum` holds an older W'_i
                                where sum = sum of send_j over the group of i in version t
        (t + 1) mod tau == 0:   W_i <- 1/n sum_j W'_j             all workers synchronize

    Li et al., IEEE TPDS 32(7), 2021 (arXiv:2005.00124), Algorithm 2. All groups run version t as soon as the first of
    all workers reaches it; a late worker contributes its send buffer (initially W^0), at most tau - 1 versions old.
    Groups of S = `group_size` change in every version and spread information to all workers within
    ceil(log n / log S) versions: `topology/groups.py` has the paper's Algorithm 1 as in its text and figures, not as
    printed. Local optimizers send nothing. The last step also averages all workers if tau does not divide the number of
    steps (with `order=combine_then_adapt` its update follows).

    tau                  steps from one synchronization to the next
    group_size           S, a power of two; auto: about sqrt(n)
    wait_avoiding        false: groups wait for their members, and every contribution is fresh
    groups               false: no groups, only synchronizations: local SGD with period tau
    dynamic              false: the same groups in every version
    order                combine_then_adapt: average W_i, then add the update (the authors' code and the paper's proof)
    stale_rule           always_plus_one: (sum + W'_i) / (S + 1) for the fresh ones, too (the authors' code)
    recv_depth           number of versions whose sum a worker keeps while it is late; the paper keeps one. A later
                         worker takes the newest sum
    refresh_send_buffer  put the average in the send buffer after a synchronization; in the paper W'_i remains there
    """

    name: str = "wagma"
    tau: int = setting(10, at_least=1)
    group_size: str = "auto"
    wait_avoiding: bool = True
    groups: bool = True
    dynamic: bool = True
    order: Order = Order.adapt_then_combine
    stale_rule: StaleRule = StaleRule.paper
    recv_depth: int = setting(2, at_least=1)
    refresh_send_buffer: bool = False
    supports = AsynchronousAlgorithm.supports - {Feature.topology}

    def __post_init__(self) -> None:
        if self.group_size != "auto" and not (self.group_size.isdigit() and int(self.group_size) >= 1):
            raise ConfigError(f"algo.group_size={self.group_size} is not valid: use a power of two, or auto.")

    class State(NamedTuple):
        """Models, send buffers and the local optimizer."""

        x: Rows  # [n, P]
        send: Rows  # [n, P]
        opt: Buffers

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError unless n workers divide into groups of this size."""
        self.schedule(num_workers)

    def schedule(self, num_workers: int) -> GroupSchedule:
        """Return the groups of every version."""
        size = group_size_auto(num_workers) if self.group_size == "auto" else int(self.group_size)
        return GroupSchedule(num_workers, size, self.dynamic)

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [n, P], also as the content of the send buffers."""
        return self.State(x, x.clone(), self.local.init(x))

    def place(self, team: Team) -> Groups:
        """Return the groups of the schedule."""

        def made() -> Groups:
            return Groups(
                self.schedule(team.num_workers),
                self.publish,
                self.receive,
                synchronizes=lambda t: (t + 1) % self.tau == 0 or t + 1 == team.num_steps,
                waits=not self.wait_avoiding,
                depth=self.recv_depth,
            )

        return team.meeting_place(made)

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield the operations of Algorithm 2."""
        groups = self.place(team)
        gradient, update, synchronize = Gradient(), Local(self.update), Mean()
        adapt_first = self.order is Order.adapt_then_combine
        for t in range(team.num_steps):
            yield gradient
            if adapt_first:
                yield update
            if groups.synchronizes(t):
                yield Publish(groups, t)  # before it waits: others must not get an older model from it
                yield synchronize
                if self.refresh_send_buffer:
                    yield Publish(groups, t)
            elif self.groups:
                yield Join(groups, t)
            if not adapt_first:
                yield update

    def publish(self, s: State, i: int, g: Tensor | None, t: int) -> None:
        """Compute send_i <- W'_i."""
        s.send[i].copy_(s.x[i])

    def receive(self, s: State, i: int, t: int, fresh: bool, size: int, total: Tensor) -> None:
        """Average the group; its sum `total` [P] includes a fresh contribution."""
        if fresh and self.stale_rule is StaleRule.paper:
            s.x[i].copy_(total).div_(size)
        else:
            s.x[i].add_(total).div_(size + 1)
