"""EXTRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.features import Feature
from decentral.algorithms.states import WithCorrections
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class EXTRA(WithCorrections):
    """EXTRA: gossip averaging that accumulates past disagreement until it cancels the updates.

        c^t = c^{t-1} + V x^t - x^t                          V = (W + I) / 2, c^{-1} = 0: a correction here
        x^{t+1} = V x^t + u^t + c^t

    which is x^{t+1} = V (2 x^t - x^{t-1}) + u^t - u^{t-1} after a first step x^1 = W x^0 + u^0: Shi, Ling, Wu & Yin,
    SIAM J. Optim. 2015 (arXiv:1404.6264), with V for their W~. (All workers start at the same x^0, so a first step
    V x^0 + u^0 is the same.) It is exact. V preserves sums, so the c_i sum to 0, and the mean of the x follows the mean
    of the u, for any local optimizer and schedule. At a fixed point V x = x, so all x_i are equal, and u = -c, so the
    u_i sum to 0. `exact_diffusion` also mixes u, V (x + u), and allows larger learning rates.
    DLM (Ling, Shi, Wu & Ribeiro, IEEE TSP 2015) is EXTRA with W = I - 2 lr r L, L the Laplacian of the graph.

    W is symmetric and static. Lost messages: weights are rescaled; the c then no longer sum to zero, and the method is
    no longer exact.
    """

    name: str = "extra"
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected})
    supports = WithCorrections.supports - {Feature.plain_sgd}

    def step(self, s: WithCorrections.State, oracle: Oracle, net: Network, t: int) -> WithCorrections.State:
        """Take one gradient and one round of averaging."""
        x, c, opt = s
        u, opt = self.local(oracle(x), x, opt, t)
        c = sub(c, x)
        x = net.mix(x, t, lazy=True)  # V x^t
        c = add(c, x)  # c^{t-1} - x^t + V x^t
        x = add(add(x, u), c)  # V x^t + u^t + c^t
        return self.State(x, c, opt)
