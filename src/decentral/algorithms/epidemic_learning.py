"""Epidemic Learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.features import Feature
from decentral.algorithms.states import OnlyModels
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class EpidemicLearning(OnlyModels):
    """Epidemic Learning: a local update, then the plain average of the worker's model and all received models.

        x_i <- sum_j W_ij (x_j + u_j)        W row-stochastic, in general different in every round

    de Vos et al., NeurIPS 2023 (paper's text not checked; formula from the authors' code). With topology=epidemic each
    worker sends to s random others (EL-Local): W_ij = 1 / (1 + messages received), so the mean of the models changes in
    every round, and the weight of a worker is random. With topology=random_regular topology.changing=true (EL-Oracle),
    or any doubly stochastic W, it is `dpsgd`. Lost messages: as dpsgd.
    """

    name: str = "epidemic_learning"
    supports = OnlyModels.supports | {Feature.own_steps}
    usual: ClassVar = {"topology": "epidemic"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.row_stochastic, Need.connected})

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take one gradient at x_i and one round of averaging."""
        x, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x_j + u_j
        return self.State(net.mix(y, t), opt)
