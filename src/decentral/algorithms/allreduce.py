"""All-reduce SGD: the centralized baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class AllReduce(Algorithm):
    """All-reduce SGD: the gradients of all workers are averaged in every step (the centralized baseline).

        x_i <- x_i + Opt(1/n sum_j g_j)

    All workers keep the same model. The RelaySGD and Bagua authors average models instead: `algo=model_averaging`, the
    same for SGD with momentum (everything is linear), another method for Adam. The topology is not used.
    """

    name: str = "allreduce"
    survives_loss: ClassVar[bool] = False
    uses_topology: ClassVar[bool] = False

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Only the models."""
        return self.State(x, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One gradient, one all-reduce of it, one update."""
        g = net.mean(oracle(s.x))
        return self.State(*self.local.moved(s.x, g, s.opt, t))
