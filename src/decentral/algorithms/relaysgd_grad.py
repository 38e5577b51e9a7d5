"""RelaySGD/Grad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.optim.rows import add
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, EdgeRows, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class RelaySGDGrad(Algorithm):
    """RelaySGD/Grad: relays updates instead of models; needs no counts, but is sensitive to data heterogeneity.

        m_{i->j}^t = u_i^t + sum_{l in N_i, l != j} m_{l->i}^{t-1}        m = 0 at the start
        x_i^{t+1} = x_i^t + 1/n (u_i^t + sum_{j in N_i} m_{j->i}^t)

    RelaySum paper, Algorithm 6. It needs a tree. A lost message is zero and never repaired.

    receiver_lr    apply the learning rate of the step in which an update arrives, as the authors' simulator does,
                   instead of that of the step in which it was sent, as their training code
    """

    name: str = "relaysgd_grad"
    receiver_lr: bool = False
    supports = Algorithm.supports - {Feature.own_rates, Feature.stale_return}  # missed updates are never resent
    needs: ClassVar[frozenset[Need]] = frozenset({Need.tree})

    class State(NamedTuple):
        """Models, the last messages and the local optimizer."""

        x: Rows
        m: EdgeRows  # [E, ceil(P / d)]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P] and m = 0."""
        return self.State(x, net.no_messages(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and send one message over every edge in each direction."""
        x, m, opt = s
        u, opt = self.local(oracle(x), x, opt, t, lr=1.0 if self.receiver_lr else None)
        m = net.relay(u, m, t)
        weight = self.local.lr(t) / net.n if self.receiver_lr else 1 / net.n
        x = add(x, net.collect(m, u), alpha=weight)
        return self.State(x, m, opt)
