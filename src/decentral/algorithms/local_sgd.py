"""Local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class LocalSGD(Algorithm):
    """Local SGD: every worker trains on its own and all models are averaged every `period_steps` steps.

        x_i <- x_i + u_i                       and, when t + 1 is a multiple of period_steps,
        x_i <- 1/n sum_j x_j

    Stich, ICLR 2019; FedAvg with full participation (McMahan et al., AISTATS 2017). A step is one gradient, so that the
    steps and epochs of all algorithms compare; period_steps=1 is `model_averaging`. Topology: not used.
    """

    name: str = "local_sgd"
    period_steps: int = 4
    survives_loss: ClassVar[bool] = False
    uses_topology: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.period_steps < 1:
            raise ConfigError(f"algo.period_steps={self.period_steps} makes no sense: it has to be at least 1.")

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Only the models."""
        return self.State(x, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One local step, and an all-reduce of the models at the end of a period."""
        x, opt = self.local.moved(s.x, oracle(s.x), s.opt, t)
        return self.State(net.mean(x) if (t + 1) % self.period_steps == 0 else x, opt)
