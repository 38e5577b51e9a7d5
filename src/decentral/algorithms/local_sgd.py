"""Local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.algorithms.algorithm import Parts
from decentral.algorithms.features import Feature
from decentral.algorithms.states import OnlyModels
from decentral.settings import setting

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class LocalSGD(OnlyModels):
    """Local SGD: workers train independently, and all models are averaged every `period_steps` steps.

        x_i <- x_i + u_i                       and, when t + 1 is a multiple of period_steps,
        x_i <- 1/n sum_j x_j

    Stich, ICLR 2019; FedAvg with full participation (McMahan et al., AISTATS 2017). A step is one gradient, so steps
    and epochs are comparable between algorithms; period_steps=1 is `model_averaging`. Topology: not used.
    """

    name: str = "local_sgd"
    period_steps: int = setting(4, at_least=1, as_sgd=1)
    supports = (OnlyModels.supports | {Feature.own_steps}) - {Feature.message_loss, Feature.topology}

    def step(self, s: OnlyModels.State, oracle: Oracle, net: Network, t: int) -> OnlyModels.State:
        """Take one local update, and all-reduce the models at the end of a period."""
        x, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1) % self.period_steps == 0:
            x = net.mean(x)
        return self.State(x, opt)

    def parts(self, s: OnlyModels.State) -> Parts:
        """See `Algorithm`."""
        return Parts(replicas=("x",))
