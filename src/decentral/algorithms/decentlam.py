"""DecentLaM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.optim.optimizer import check_range, is_zero, move
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class DecentLaM(Algorithm):
    """DecentLaM: momentum SGD on the step that D-PSGD makes, so that momentum does not add to D-PSGD's bias.

        g~_i = (x_i - sum_j W_ij (x_j - lr g_j)) / lr
        m_i <- beta m_i + g~_i                               m^0 = 0
        x_i <- x_i - lr m_i

    Yuan et al., ICCV 2021 (arXiv:2104.11981). Computed as x+ = W (x - lr g) - lr beta m, m+ = (x - x+) / lr: the same
    bytes as dpsgd. Where it comes to rest m = 0, so that x = W (x - lr g): it is as biased as dpsgd without momentum,
    while dpsgd with momentum is as biased as with a learning rate of lr / (1 - beta).

    W is symmetric and doubly stochastic, static (as in the analysis) or time-varying. Disagreement follows z^2 - (beta
    + lambda) z + beta = 0 for each eigenvalue lambda of W, which is stable for real lambda in (-1, 1) but allows an
    imaginary part of less than 1 - beta only: directed graphs are refused. g includes the weight decay, and is what the
    local optimizer makes of it: plain `optim=sgd` is the published method. Departure: where lr = 0, as in the first
    step of a warm-up, the models are mixed and m is left alone. Lost messages: as dpsgd, but the repaired W is not
    symmetric, and disturbs more.
    """

    name: str = "decentlam"
    beta: float = 0.9
    needs: ClassVar[frozenset[Need]] = frozenset({Need.symmetric, Need.doubly_stochastic, Need.connected})

    def __post_init__(self) -> None:
        check_range("algo.beta", self.beta, 0.0, 1.0)

    class State(NamedTuple):
        """Models, momentum and the local optimizer."""

        x: Rows
        m: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """No momentum yet."""
        return self.State(x, x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One gradient, one round of mixing; x and m change places in memory."""
        lr = self.local.lr(t)
        y, opt = self.local.moved(s.x, oracle(s.x), s.opt, t, keep=True)
        y = net.mix(y, t)  # W (x - lr g)
        if is_zero(lr):
            return self.State(s.x.copy_(y), s.m, opt)
        x = move(y, s.m, self.beta * lr, out=s.m)
        return self.State(x, s.x.sub_(x).div_(lr), opt)
