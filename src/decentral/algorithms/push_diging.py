"""Push-DIGing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.dpsgd import Mode
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows, Shared
    from decentral.network.network import Network


@dataclass
class PushDIGing(Algorithm):
    """Push-DIGing: gradient tracking with push-sum, exact on any directed graph, static or time-varying.

        z_i = x_i / w_i
        q^t = W^{t-1} (q^{t-1} + u^t - u^{t-1})              mode=atc, with u^t = u(z^t); q^0 = u^0
        q^t = W^{t-1} q^{t-1} + u^t - u^{t-1}                mode=awc
        (x, w) <- (W^t (x + q^t), W^t w)                     W column-stochastic; w^0 = 1

    atc is equations (27)-(31) of Ying et al., 2021 (arXiv:2111.04287), with q for -gamma y, x for u, w for v and z for
    x; awc is their example code, and the method of Nedic, Olshevsky & Shi, SIAM J. Optim. 2017 (arXiv:1607.03218). The
    q_i sum to the sum of the u_i, so the sum of the x follows it, for any local optimizer and schedule. The state keeps
    c = q - u, which does not need the next gradient. Each step sends two vectors in two messages: atc needs q before it
    can send x. Both modes send as many bytes as gradient_tracking.

    The state holds z, and w for all workers: it follows from the topology, so it is never sent (BlueFog sends it).
    Weight decay and the reported models use z. Lost messages: as sgp, in x, w and q alike; unless W is doubly
    stochastic, the sums lose nothing, and the method stays exact.
    """

    name: str = "push_diging"
    mode: Mode = Mode.atc
    supports = Algorithm.supports | {Feature.own_starts, Feature.corrections}
    usual: ClassVar = {"topology": "one_peer_exponential"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.column_stochastic, Need.connected})

    class State(NamedTuple):
        """De-biased models, corrections, push-sum weights and the local optimizer."""

        x: Rows  # [k, P]: z
        c: Rows  # [k, P]
        w: Shared  # [n, d]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return z^0 = x [k, P], c^0 = 0, and push-sum weights of one."""
        return self.State(x, x.new_zeros(x.shape), net.known_ones(), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at z and one round of push-sum; mix the corrections before it (atc) or after it."""
        z, c, w, opt = s
        u, opt = self.local(oracle(z), z, opt, t)
        q = add(c, u)  # q^{t-1} + u^t - u^{t-1}: in awc q is already mixed
        if self.mode is Mode.atc and t > 0:
            q = net.mix(q, t - 1)
        x = add(net.weigh(z, w), q)  # x_i = w_i z_i
        x, w = net.mix(x, t), net.mix_known(w, t)
        z = net.weigh(x, 1 / w)
        if self.mode is Mode.awc:
            q = net.mix(q, t)
        c = sub(q, u)
        return self.State(z, c, w, opt)

    def parts(self, s: State) -> Parts:
        """Return the x_i and the c_i [k, P]."""
        return Parts((self.models(s),), corrections=s.c)
