"""D2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.states import WithCorrections
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class D2(WithCorrections):
    """D2: gossip averaging that corrects for the difference between the workers' data.

        x^{t+1} = W (x^t + u^t + c^t)
        c^{t+1} = x^{t+1} - x^t - u^t                        c^0 = 0: a correction here

    which is x^{t+1} = W (2 x^t - x^{t-1} + u^t - u^{t-1}), and stays right with momentum and a learning rate that
    varies (RelaySum paper, Algorithm 2; Tang et al., ICML 2018). W is symmetric and static with smallest eigenvalue
    above -1/3; the Metropolis-Hastings ring with even n sits exactly there, and is what the paper uses. Lost messages:
    weights are rescaled, after which D2 is known to drift (RelaySum paper, Table 5).

    With `communication.every` = H it is LED (Alghunaim, 2023, arXiv:2302.00620) with the dual step 1/H: H local steps,
    each with a part of the correction, and then a round of averaging. It stays exact.

        x <- x + u + c / H                                   H times
        x^+ = W x,   c^+ = c + x^+ - x
    """

    name: str = "d2"
    usual_topology: ClassVar[str] = "ring"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected, Need.d2_spectrum}
    )
    has_local_steps: ClassVar[bool] = True
    lazy: ClassVar[bool] = False  # mix with W, not with (W + I) / 2

    def step(self, s: WithCorrections.State, oracle: Oracle, net: Network, t: int) -> WithCorrections.State:
        """One gradient, one round of averaging."""
        x, c, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x^t + u^t
        if (every := net.rounds.every) > 1:
            x = add(y, c, alpha=1 / every)
            if net.rounds.is_silent(t):
                return self.State(x, c, opt)
            c = sub(c, x)
            x = net.mix(x, t, lazy=self.lazy)
            return self.State(x, add(c, x), opt)
        x = net.mix(add(c, y), t, lazy=self.lazy)  # W (x^t + u^t + c^t)
        c = sub(x, y, out=y)  # x^{t+1} - (x^t + u^t)
        return self.State(x, c, opt)
