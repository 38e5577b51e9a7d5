"""All-reduce SGD: the centralized baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import OnlyModels

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class AllReduce(OnlyModels):
    """All-reduce SGD: the gradients of all workers are averaged in every step (the centralized baseline).

        x_i <- x_i + Opt(1/n sum_j g_j)

    All workers keep the same model. The RelaySGD and Bagua authors average models instead: `algo=model_averaging`, the
    same for SGD with momentum (everything is linear), another method for Adam. The topology is not used.
    """

    name: str = "allreduce"
    survives_loss: ClassVar[bool] = False
    uses_topology: ClassVar[bool] = False

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """One gradient, one all-reduce of it, one update."""
        x, opt = s
        g = net.mean(oracle(x))  # 1/n sum_j g_j
        x, opt = self.local.adapt(x, g, opt, t)
        return self.State(x, opt)
