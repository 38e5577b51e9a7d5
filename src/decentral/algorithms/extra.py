"""EXTRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.algorithms.states import WithCorrections
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class EXTRA(WithCorrections):
    """EXTRA: gossip averaging that adds up all disagreement seen so far, until that outweighs the updates.

        c^t = c^{t-1} + V x^t - x^t                          V = (W + I) / 2, c^{-1} = 0: a correction here
        x^{t+1} = V x^t + u^t + c^t

    which is x^{t+1} = V (2 x^t - x^{t-1}) + u^t - u^{t-1} after a first step x^1 = W x^0 + u^0: Shi, Ling, Wu & Yin,
    SIAM J. Optim. 2015 (arXiv:1404.6264), with V for their W~. (All workers start at the same x^0, so a first step
    V x^0 + u^0 would be the same.) It is exact. V keeps sums, so the c_i add up to 0, and the mean of the x follows the
    mean of the u, whatever the local optimizer and the schedule. At rest V x = x, so all x_i are equal, and u = -c, so
    the u_i add up to 0. `exact_diffusion` is the same with u mixed, V (x + u), and allows larger learning rates.

    W is symmetric and static. Lost messages: weights are rescaled; the c then do not add up to zero any more, and the
    method is not exact any more.
    """

    name: str = "extra"
    usual_topology: ClassVar[str] = "ring"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected})
    as_sgd: ClassVar[dict[str, Any] | None] = None

    def step(self, s: WithCorrections.State, oracle: Oracle, net: Network, t: int) -> WithCorrections.State:
        """One gradient, one round of averaging."""
        x, c, opt = s
        u, opt = self.local(oracle(x), x, opt, t)
        c = sub(c, x)
        x = net.mix(x, t, lazy=True)  # V x^t
        c = add(c, x)  # c^{t-1} - x^t + V x^t
        x = add(add(x, u), c)  # V x^t + u^t + c^t
        return self.State(x, c, opt)
