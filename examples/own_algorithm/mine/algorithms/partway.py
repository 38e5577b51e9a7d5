"""An algorithm with one setting: gossip with a consensus step size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import OnlyModels
from decentral.optim.rows import add, scale, sub
from decentral.settings import setting
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class Partway(OnlyModels):
    """Gossip that moves part of the way to the neighbors' mean, as CHOCO-SGD does with its compressed messages.

        y_i = x_i + u_i
        x_i <- y_i + step_size (sum_j W_ij y_j - y_i)

    Koloskova et al., ICML 2019 (arXiv:1902.00340), Algorithm 2 without compression, where it is D-PSGD with the matrix
    I + step_size (W - I). The topology is doubly stochastic.

    step_size    gamma in the paper, above 0 and at most 1; 1 is D-PSGD
    """

    name: str = "partway"
    step_size: float = setting(0.5, above=0, at_most=1, as_sgd=1)
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """One gradient at x_i, one round of averaging."""
        x, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x_i + u_i, in the memory of x
        away = sub(net.mix(y.clone(), t), y)  # sum_j W_ij y_j - y_i; mix is given a copy, which it may overwrite
        return self.State(add(y, scale(away, self.step_size)), opt)
