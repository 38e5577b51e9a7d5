"""Gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.dpsgd import Mode
from decentral.algorithms.states import beside_zeros
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class GradientTracking(Algorithm):
    """Gradient tracking: every worker also tracks the mean of all updates, by gossip on a second vector.

        x^{t+1} = W (x^t + u^t + c^t)                        mode=atc
        x^{t+1} = W x^t + u^t + c^t                          mode=awc
        c^{t+1} = W (c^t + u^t) - u^t                        c^0 = 0: a correction here

    q = u + c is the tracked update, q^{t+1} = W q^t + u^{t+1} - u^t: its mean over the workers is the mean of the u.
    atc is the RelaySum paper's Algorithm 3 (Lorenzo & Scutari 2016). awc is DIGing (Nedic, Olshevsky & Shi, SIAM J.
    Optim. 2017) and BlueFog's example: it needs smaller learning rates, and the memory of one row more. `push_diging`
    has the form that mixes u^{t+1} - u^t too. Two vectors per step; they lie side by side in one row and travel as one
    message. W is doubly stochastic, static or time-varying. Lost messages: both vectors are lost together and the
    weights are rescaled; the corrections then do not sum to zero any more, and the method is not exact any more.
    """

    name: str = "gradient_tracking"
    mode: Mode = field(default=Mode.atc, metadata={"older": Mode.atc})
    own_starts: ClassVar[bool] = True
    usual_topology: ClassVar[str] = "ring"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models with their corrections, and the local optimizer."""

        xc: Rows  # [k, 2, P]: x_i and c_i
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """The models x [k, P], and c^0 = 0 beside them."""
        return self.State(beside_zeros(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One gradient, one round of averaging of two vectors."""
        x, c = s.xc[:, 0], s.xc[:, 1]
        u, opt = self.local(oracle(x), x, s.opt, t)
        q = add(c, u)  # c^t + u^t
        if self.mode is Mode.atc:
            x = add(x, q)  # x^t + u^t + c^t
            xc = net.mix(s.xc, t)  # of x and q, which lie there
        else:
            q = q.clone()  # it is mixed where it lies, and needed as it was
            xc = net.mix(s.xc, t)
            x = add(xc[:, 0], q)  # W x^t + u^t + c^t
        c = sub(xc[:, 1], u)  # W (c^t + u^t) - u^t
        return self.State(xc, opt)

    def models(self, s: State) -> Tensor:
        """The x_i [k, P], without their corrections."""
        return s.xc[:, 0]
