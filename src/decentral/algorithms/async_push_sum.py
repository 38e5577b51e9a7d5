"""Asynchronous stochastic gradient push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.cluster.operations import Push, Slots, Take
from decentral.optim.rows import add
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds


@dataclass
class AsyncPushSum(AsynchronousAlgorithm):
    """Asynchronous stochastic gradient push: stochastic gradient push in which nobody waits for anybody.

        z_i = x_i / p_i
        x_i <- x_i + u_i(z_i)                                gradient at z_i
        slot_ji += W_ji (x_i, p_i) for out-neighbours j;  (x_i, p_i) <- W_ii (x_i, p_i)
        (x_i, p_i) += sum_j slot_ij;  slot_ij := 0           whatever has come by now

    With W column-stochastic, p^0 = 1 and empty slots: asynchronous push-sum, (19)-(21) of Ying et al., 2021
    (arXiv:2111.04287), with a gradient before it as in SGP (Assran et al., ICML 2019). Step t of a worker uses the
    matrix of round t, whatever the step of the others. The sums of x and p over workers and slots change by gradients
    only. Departure: a share whose receiver has not taken the one before stays with its sender. Otherwise all that is
    awake pours its mass into the slots of what is asleep, and x_i + u_i moves z_i by u_i / p_i, without bound.

    In a virtual cluster shares arrive when the links let them, one after the other; a share is of a whole row, with the
    weights of the first piece of the topology. Elsewhere, workers of one process take turns: all push, then all
    collect, which is sgp. Between processes shares wait in windows (`network/windows`): iterates depend on the pace of
    each, and a run is not reproducible. Where the workers are looked at together (evaluations, checkpoints, `trace`)
    processes wait for each other, and what is on its way is brought home: with trace=true that is every step, so that
    the steps are those of sgp. They also ask each other every 20 steps, or every second, whether to go on: nobody is
    further ahead than that.

    The state holds z, and p of the local workers: with windows nobody can compute the others'. Weight decay and the
    reported models use z. A lost message stays with its sender, in x and p alike.
    """

    name: str = "async_push_sum"
    own_starts: ClassVar[bool] = True
    usual_topology: ClassVar[str] = "one_peer_exponential"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.column_stochastic, Need.connected})
    free_running: ClassVar[bool] = True
    survives_loss: ClassVar[bool] = True
    as_sgd: ClassVar[dict[str, Any] | None] = {}

    class State(NamedTuple):
        """De-biased models, push-sum weights and the local optimizer."""

        x: Rows  # [k, P]: z
        p: Rows  # [k, d]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """z^0 = x [k, P], and all push-sum weights are one."""
        return self.State(x, net.known_ones()[: len(x)], self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One gradient at z, one push, and what has come."""
        z, p, opt = s
        u, opt = self.local(oracle(z), z, opt, t)
        x = add(net.scale(z, p), u)  # x_i = p_i z_i
        x, p = net.push(x, p, t)
        z = net.scale(x, 1 / p)
        return self.State(z, p, opt)

    def flush(self, s: State, net: Network) -> State:
        """Bring home the shares that are on their way."""
        if net.flushed:
            return s
        x, p = net.drain(net.scale(s.x, s.p), s.p)
        return self.State(net.scale(x, 1 / p), p, s.opt)

    def place(self, team: Team) -> Slots:
        """A slot for each edge."""
        return team.meeting_place(lambda: Slots(self.share, self.keep, self.receive))

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Gradients without end; after each, shares are left with others, and what has come is taken."""
        slots = self.place(team)
        gradient, update, take = Gradient(), Local(self.update), Take(slots)
        rounds, t = team.rounds, 0
        pushes = [_push(slots, rounds, i, r) for r in range(rounds.period)]
        while True:
            yield gradient
            yield update
            yield pushes[t % rounds.period]
            yield take
            t += 1

    def update(self, s: State, i: int, g: Tensor, t: int) -> None:
        """p_i z_i <- p_i z_i + u_i(z_i) in place."""
        row = slice(i, i + 1)
        z, opt = s.x[row], tuple([buffer[row] for buffer in s.opt])
        u, new = self.local(g[None], z, opt, t)
        for old, value in zip(opt, new, strict=True):
            if value is not old and value.data_ptr() != old.data_ptr():
                old.copy_(value)
        z.add_(u, alpha=1 / s.p[i].tolist()[0])

    def share(self, s: State, i: int, weight: float) -> tuple[Tensor, Tensor]:
        """weight (x_i, p_i)."""
        p = s.p[i] * weight
        return s.x[i] * p.tolist()[0], p

    def keep(self, s: State, i: int, weight: float) -> None:
        """(x_i, p_i) <- weight (x_i, p_i): z_i stays."""
        s.p[i] *= weight

    def receive(self, s: State, i: int, x: Tensor, p: Tensor) -> None:
        """(x_i, p_i) <- (x_i, p_i) + (x, p)."""
        own = s.p[i]
        before = own.tolist()[0]
        after = own.add_(p).tolist()[0]
        s.x[i].mul_(before / after).add_(x, alpha=1 / after)


def _push(slots: Slots, rounds: Rounds, i: int, round: int) -> Push:
    """What worker i gives to whom in a round: column i of W."""
    given = dict(rounds.mixing(round)[0].column(i))
    own = given.pop(i, 0.0)
    return Push(slots, tuple(given.items()), own)
