"""DecentLaM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import WithMomentum
from decentral.optim.optimizer import is_zero
from decentral.optim.rows import copy, divide, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class DecentLaM(WithMomentum):
    """DecentLaM: momentum applied to the whole D-PSGD step, so that it does not amplify D-PSGD's bias.

        g~_i = (x_i - sum_j W_ij (x_j - lr g_j)) / lr
        m_i <- beta m_i + g~_i                               m^0 = 0
        x_i <- x_i - lr m_i

    Yuan et al., ICCV 2021 (arXiv:2104.11981). Computed as x+ = W (x - lr g) - lr beta m, m+ = (x - x+) / lr: the same
    bytes as dpsgd. At a fixed point m = 0, so x = W (x - lr g): its bias is that of dpsgd without momentum, while the
    bias of dpsgd with momentum corresponds to a learning rate of lr / (1 - beta).

    W is symmetric and doubly stochastic, static (as in the analysis) or time-varying. Disagreement follows z^2 - (beta
    + lambda) z + beta = 0 for each eigenvalue lambda of W. This is stable for real lambda in (-1, 1), but only for
    imaginary parts below 1 - beta: directed graphs are refused. g includes the weight decay and is the output of the
    local optimizer: plain `optim=sgd` is the published method. Departure: if lr = 0, as in the first step of a warm-up,
    the models are mixed and m stays. Lost messages: as dpsgd, but the repaired W is not symmetric, and disturbs more.
    """

    name: str = "decentlam"
    beta: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.symmetric, Need.doubly_stochastic, Need.connected})

    def step(self, s: WithMomentum.State, oracle: Oracle, net: Network, t: int) -> WithMomentum.State:
        """Take one gradient and one round of averaging."""
        x, m, opt = s
        lr, g = self.local.lr(t), oracle(x)
        y, opt = self.local.adapt(x, g, opt, t, out=g)  # x - lr g
        y = net.mix(y, t)  # W (x - lr g)
        if is_zero(lr):
            return self.State(copy(y, out=x), m, opt)
        x_next = sub(y, m, alpha=self.beta * lr, out=m)  # W (x - lr g) - lr beta m
        m = divide(sub(x, x_next), lr)  # (x - x+) / lr
        return self.State(x_next, m, opt)
