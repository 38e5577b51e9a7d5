"""Decentralized momentum SGD that averages the momentum too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.algorithms.states import beside_zeros
from decentral.optim.rows import add, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


class Form(Enum):
    """The two published forms, named after their first authors."""

    yu = "yu"
    ying = "ying"


@dataclass
class DmSGD(Algorithm):
    """Decentralized momentum SGD: gossip averaging of the models and of their momentum.

        form=yu      m_i^{t+1/2} = beta m_i^t + g_i                       m^0 = 0
                     x_i^{t+1} = sum_j W_ij (x_j^t - lr m_j^{t+1/2})
                     m_i^{t+1} = sum_j W_ij m_j^{t+1/2}
        form=ying    x_i^{t+1} = sum_j W_ij (x_j^t - lr m_j^t)            the momentum of the step before: a gradient
                     m_i^{t+1} = sum_j W_ij (beta m_j^t + g_j)            moves the models one step later

    Yu, Jin & Yang, ICML 2019 (arXiv:1905.03817), and Ying et al., NeurIPS 2021 (arXiv:2110.13363), Algorithm 1.
    "Vanilla" DmSGD, with a local momentum, is algo=dpsgd with optim=momentum. Each step sends two vectors as one
    message: they share a row. g includes the weight decay and is the output of the local optimizer: plain `optim=sgd`
    is the published method. W is doubly stochastic, static or time-varying. Lost messages: both vectors are lost
    together and the weights are rescaled.
    """

    name: str = "dmsgd"
    form: Form = Form.yu
    beta: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    supports = Algorithm.supports | {Feature.own_starts}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models with their momentum, and the local optimizer."""

        xm: Rows  # [k, 2, P]: x_i and m_i
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], and m^0 = 0 beside them."""
        return self.State(beside_zeros(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and one round of averaging of two vectors."""
        x, m, lr = s.xm[:, 0], s.xm[:, 1], self.local.lr(t)
        g, opt = self.local.direction(self.local.regularised(oracle(x), x), x, s.opt, t)
        if self.form is Form.ying:
            x = sub(x, m, alpha=lr)  # x_j - lr m_j^t
        m = add(scale(m, self.beta), g)  # beta m_j + g_j
        if self.form is Form.yu:
            x = sub(x, m, alpha=lr)  # x_j - lr m_j^{t+1/2}
        xm = net.mix(s.xm, t)  # of both x and m, in place
        return self.State(xm, opt)

    def models(self, s: State) -> Tensor:
        """Return the x_i [k, P], without their momentum."""
        return s.xm[:, 0]
