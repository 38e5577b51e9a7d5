"""An algorithm in an installed package: gossip with local steps in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import OnlyModels
from decentral.settings import setting
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class Pairwise(OnlyModels):
    """Gossip in every `period`-th step; the other steps are local.

        x_i <- sum_j W_ij (x_j + u_j)    if t mod period = 0, else x_i + u_i

    period    steps from one round of averaging to the next
    """

    name: str = "pairwise"
    period: int = setting(2, at_least=1, as_sgd=1)
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """One gradient at x_i, and a round of averaging if one is due."""
        x, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        return self.State(x if t % self.period else net.mix(x, t // self.period), opt)
