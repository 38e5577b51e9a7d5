"""GT-NSGDm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, divide, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class GTNSGDm(Algorithm):
    """GT-NSGDm: gradient tracking of the momentum with normalized steps, for heavy-tailed gradients.

        m_i <- beta m_i + (1 - beta) g_i                     m^0 = y^0 = 0
        y_i <- sum_j W_ij (y_j + m_j - m_j^before)
        x_i <- sum_j W_ij (x_j - lr y_j / ||y_j||)           over the whole row; no step where y = 0

    arXiv:2505.03736 (formula from code, the paper's text was not checked; there y = 0 gives NaN). The mean of the y
    always equals that of the m. A step has two rounds of averaging, the second after the first. Steps do not shrink
    near an optimum: decay lr. One worker does normalized SGD with momentum. g is the output of the local optimizer:
    plain `optim=sgd` is the method. W is doubly stochastic, static or time-varying. Lost messages: both vectors are
    lost together and the weights are rescaled; the y then do not keep their mean.
    """

    name: str = "gt_nsgdm"
    beta: float = setting(0.9, at_least=0, below=1)
    supports = (Algorithm.supports | {Feature.own_starts}) - {Feature.equal_updates, Feature.plain_sgd}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models, momentum, its tracked mean and the local optimizer."""

        x: Rows  # [k, P], and so are all others
        m: Rows
        y: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], m = y = 0, and the local optimizer before step 0."""
        return self.State(x, x.new_zeros(x.shape), x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and two rounds of averaging."""
        x, m, y, opt = s
        g, opt = self.local.direction(self.local.regularised(oracle(x), x), x, opt, t)
        y = sub(y, m)
        m = add(scale(m, self.beta), g, alpha=1 - self.beta)
        y = net.mix(add(y, m), t)
        x = net.mix(sub(x, self.normalized(y.clone()), alpha=self.local.lr(t)), t)
        return self.State(x, m, y, opt)

    def normalized(self, y: Tensor) -> Tensor:
        """Return y / ||y|| [k, P], in the memory of y; 0 for 0."""
        length = y.norm(dim=-1, keepdim=True)
        return divide(y, length.masked_fill_(length == 0, 1.0))
