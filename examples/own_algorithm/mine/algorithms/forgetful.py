"""A wrong algorithm, to see `decentral-check algo=forgetful --config-dir mine` fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import OnlyModels
from decentral.optim.rows import add, scale
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class Forgetful(OnlyModels):
    """Gossip that adds its own model again without halving the sum: wrong on purpose.

    x_i <- 0.6 (y_i + sum_j W_ij y_j)
    """

    name: str = "forgetful"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """One gradient at x_i, one round of a sum that is not an average."""
        x, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)
        return self.State(scale(add(net.mix(y.clone(), t), y), 0.6), opt)
