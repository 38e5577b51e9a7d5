"""The one place that takes steps: an algorithm on a network, with an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Algorithm, Oracle
    from decentral.network.network import Network


class Stepper:
    """s^{t+1} = algorithm.step(s^t, oracle, net, t) for t = 0, 1, ..., from the models x [k, P] of the k local workers.

    Training runs, throughput studies, ensembles, consensus and benchmarks all take their steps here, inside of
    `torch.no_grad()`. With several processes all of them step together.
    """

    def __init__(self, algorithm: Algorithm, net: Network, oracle: Oracle, x: Tensor) -> None:
        """`algorithm` has its local rule already (`Algorithm.using`); x is the algorithm's from now on."""
        self.algorithm, self.net, self.oracle = algorithm, net, oracle
        self.state: Any = algorithm.init(x, net)
        self.t = 0
        """How many steps have been taken."""

    def step(self) -> None:
        """Take a step."""
        self.state = self.algorithm.step(self.state, self.oracle, self.net, self.t)
        self.t += 1

    def settle(self) -> None:
        """Bring home what is on its way, so that the state is complete. All processes call this after the same step."""
        self.state = self.algorithm.settle(self.state, self.net)

    @property
    def models(self) -> Tensor:
        """The models x_i [k, P] of the local workers."""
        return self.algorithm.models(self.state)
