"""Model averaging in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class ModelAveraging(Algorithm):
    """All-reduce of the models after every local step, as the RelaySGD and Bagua authors' all-reduce does.

        x_i <- 1/n sum_j (x_j + u_j)

    The local optimizers' buffers are never communicated. For SGD with momentum this equals `allreduce`; for Adam it is
    another method. Topology: not used.
    """

    name: str = "model_averaging"
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
        """One local step, one all-reduce of the models."""
        y, opt = self.local.moved(s.x, oracle(s.x), s.opt, t)
        return self.State(net.mean(y), opt)
