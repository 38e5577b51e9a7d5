"""Model averaging in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.algorithms.algorithm import Parts
from decentral.algorithms.features import Feature
from decentral.algorithms.states import OnlyModels

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class ModelAveraging(OnlyModels):
    """All-reduce of the models after every local step, as the RelaySGD and Bagua authors implement all-reduce.

        x_i <- 1/n sum_j (x_j + u_j)

    Local optimizer buffers are never sent. For SGD with momentum this equals `allreduce`; for Adam it does not.
    Topology: not used.
    """

    name: str = "model_averaging"
    supports = OnlyModels.supports - {Feature.message_loss, Feature.topology}

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take one local update and all-reduce the models."""
        x, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x_i + u_i
        x = net.mean(y)
        return self.State(x, opt)

    def parts(self, s: OnlyModels.State) -> Parts:
        """See `Algorithm`."""
        return Parts(replicas=("x",))
