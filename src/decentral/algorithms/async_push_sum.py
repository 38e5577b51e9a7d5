"""Asynchronous stochastic gradient push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.algorithms.features import Feature
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
    """Asynchronous stochastic gradient push: push-sum SGD without waiting.

        z_i = x_i / p_i
        x_i <- x_i + u_i(z_i)                                gradient at z_i
        slot_ji += W_ji (x_i, p_i) for out-neighbors j;  (x_i, p_i) <- W_ii (x_i, p_i)
        (x_i, p_i) += sum_j slot_ij;  slot_ij := 0           everything that has arrived

    With W column-stochastic, p^0 = 1 and empty slots: asynchronous push-sum, (19)-(21) of Ying et al., 2021
    (arXiv:2111.04287), preceded by a gradient as in SGP (Assran et al., ICML 2019). Step t of a worker uses the matrix
    of round t, regardless of the others' steps. Only gradients change the sums of x and p over workers and slots.
    Departure: a sender keeps a share while the receiver has not taken the previous one. Otherwise running workers push
    all their mass into the slots of stalled ones, and x_i + u_i moves z_i by u_i / p_i, which is unbounded.

    In a virtual cluster, shares arrive in order, as links permit; a share is a whole row, with the weights of the first
    piece of the topology. Without one, workers of one process take turns: all push, then all collect, which is sgp.
    Between processes, shares wait in windows (`network/windows`): iterates depend on each worker's pace, and a run is
    not reproducible. For evaluations, checkpoints and `trace`, processes synchronize and deliver all shares in flight.
    With trace=true that is every step, so the steps are those of sgp. Processes also synchronize at least every 20
    steps, or every second, which bounds their lead.

    The state holds z, and p of the local workers: with windows no worker can compute the others' p. Weight decay and
    the reported models use z. A lost message stays with its sender, in both x and p.
    """

    name: str = "async_push_sum"
    supports = AsynchronousAlgorithm.supports | {Feature.own_starts, Feature.message_loss, Feature.plain_sgd}
    usual: ClassVar = {"topology": "one_peer_exponential"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.column_stochastic, Need.connected})
    free_running: ClassVar[bool] = True

    class State(NamedTuple):
        """De-biased models, push-sum weights and the local optimizer."""

        x: Rows  # [k, P]: z
        p: Rows  # [k, d]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return z^0 = x [k, P] and push-sum weights of one."""
        return self.State(x, net.known_ones()[: len(x)], self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at z, push once, and collect the arrived shares."""
        z, p, opt = s
        u, opt = self.local(oracle(z), z, opt, t)
        x = add(net.scale(z, p), u)  # x_i = p_i z_i
        x, p = net.push(x, p, t)
        z = net.scale(x, 1 / p)
        return self.State(z, p, opt)

    def flush(self, s: State, net: Network) -> State:
        """Deliver all shares in flight."""
        if net.flushed:
            return s
        x, p = net.drain(net.scale(s.x, s.p), s.p)
        return self.State(net.scale(x, 1 / p), p, s.opt)

    def place(self, team: Team) -> Slots:
        """Return a slot for each edge."""
        return team.meeting_place(lambda: Slots(self.share, self.keep, self.receive))

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield gradients forever; after each, push shares and collect the arrived ones."""
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
        """Compute p_i z_i <- p_i z_i + u_i(z_i) in place."""
        row = slice(i, i + 1)
        z, opt = s.x[row], tuple([buffer[row] for buffer in s.opt])
        u, new = self.local(g[None], z, opt, t)
        for old, value in zip(opt, new, strict=True):
            if value is not old and value.data_ptr() != old.data_ptr():
                old.copy_(value)
        z.add_(u, alpha=1 / s.p[i].tolist()[0])

    def share(self, s: State, i: int, weight: float) -> tuple[Tensor, Tensor]:
        """Return weight (x_i, p_i)."""
        p = s.p[i] * weight
        return s.x[i] * p.tolist()[0], p

    def keep(self, s: State, i: int, weight: float) -> None:
        """Compute (x_i, p_i) <- weight (x_i, p_i), which keeps z_i."""
        s.p[i] *= weight

    def receive(self, s: State, i: int, x: Tensor, p: Tensor) -> None:
        """Compute (x_i, p_i) <- (x_i, p_i) + (x, p)."""
        own = s.p[i]
        before = own.tolist()[0]
        after = own.add_(p).tolist()[0]
        s.x[i].mul_(before / after).add_(x, alpha=1 / after)


def _push(slots: Slots, rounds: Rounds, i: int, round: int) -> Push:
    """Return the shares that worker i sends in a round: column i of W."""
    given = dict(rounds.mixing(round)[0].column(i))
    kept = given.pop(i, 0.0)
    return Push(slots, tuple(given.items()), kept)
