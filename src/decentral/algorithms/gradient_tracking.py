"""Gradient tracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.dpsgd import Mode
from decentral.algorithms.features import Feature
from decentral.algorithms.states import beside_zeros
from decentral.errors import ConfigError
from decentral.optim.rows import add, copy, scale, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


class Tracked(Enum):
    """The updates between two communications that are tracked."""

    last = "last"
    mean = "mean"


@dataclass
class GradientTracking(Algorithm):
    """Gradient tracking: every worker also tracks the mean update of all workers, by gossip on a second vector.

        x^{t+1} = W (x^t + u^t + c^t)                        mode=atc
        x^{t+1} = W x^t + u^t + c^t                          mode=awc
        c^{t+1} = W (c^t + u^t) - u^t                        c^0 = 0: a correction here

    q = u + c is the tracked update, q^{t+1} = W q^t + u^{t+1} - u^t: its mean over the workers is the mean of the u.
    atc is the RelaySum paper's Algorithm 3 (Lorenzo & Scutari 2016). awc is DIGing (Nedic, Olshevsky & Shi, SIAM J.
    Optim. 2017) and BlueFog's example: it needs smaller learning rates and one more row of memory. `push_diging` has
    the form that also mixes u^{t+1} - u^t. Each step sends two vectors as one message: they share a row. W is doubly
    stochastic, static or time-varying. Lost messages: both vectors are lost together and the weights are rescaled; the
    corrections then no longer sum to zero, and the method is no longer exact.

    With `communication.every` = H workers take H local steps x <- x + u + c, then average. It stays exact. `tracked`
    selects the basis of the correction: `last`, only the last of these steps, which is the formula above with W = I in
    the rounds before; or `mean`, K-GT (Liu et al., 2023, arXiv:2301.01313), which reduces noise at the cost of one row:

        D = sum of the H steps u + c,   x^+ = W x,   c^+ = c + (W - I) D / H
    """

    name: str = "gradient_tracking"
    mode: Mode = field(default=Mode.atc, metadata={"older": Mode.atc})
    tracked: Tracked = field(default=Tracked.last, metadata={"older": Tracked.last})
    supports = Algorithm.supports | {Feature.own_starts, Feature.corrections}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models with their corrections, their change since the last communication, and the local optimizer."""

        xc: Rows  # [k, 2, P]: x_i and c_i
        D: Rows  # [k, P], or [k, 0] if only the last update is tracked
        opt: Buffers

    def __post_init__(self) -> None:
        if self.tracked is Tracked.mean and self.mode is Mode.awc:
            raise ConfigError(
                "algo.tracked=mean cannot be used with algo.mode=awc: K-GT mixes after its steps, as atc."
            )

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], and c^0 = 0 beside them."""
        adds_up = self.tracked is Tracked.mean and net.rounds.every > 1
        D = x.new_zeros(x.shape if adds_up else (len(x), 0))
        return self.State(beside_zeros(x), D, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and one round of averaging of two vectors."""
        x, c = s.xc[:, 0], s.xc[:, 1]
        u, opt = self.local(oracle(x), x, s.opt, t)
        if s.D.numel():
            return self._local_step(s, u, opt, net, t)
        q = add(c, u)  # c^t + u^t
        if self.mode is Mode.atc:
            x = add(x, q)  # x^t + u^t + c^t
            xc = net.mix(s.xc, t)  # of both x and q, in place
        else:
            q = q.clone()  # the mix is in place, and q is needed afterwards
            xc = net.mix(s.xc, t)
            x = add(xc[:, 0], q)  # W x^t + u^t + c^t
        c = sub(xc[:, 1], u)  # W (c^t + u^t) - u^t
        return self.State(xc, s.D, opt)

    def _local_step(self, s: State, u: Tensor, opt: Buffers, net: Network, t: int) -> State:
        """Take a step x + u + c of K-GT, with a round of averaging after the last of H steps."""
        x, c = s.xc[:, 0], s.xc[:, 1]
        q = add(u, c)
        D = add(s.D, q)
        add(x, q)
        if not net.rounds.is_silent(t):
            mean = scale(D, 1 / net.rounds.every)
            kept = sub(c, mean, out=q)  # c - D / H
            copy(mean, out=c)
            xc = net.mix(s.xc, t)  # of both x and D / H, in place
            add(xc[:, 1], kept)
            return self.State(xc, D.zero_(), opt)
        return self.State(s.xc, D, opt)

    def parts(self, s: State) -> Parts:
        """Return the x_i and the c_i [k, P]."""
        return Parts((self.models(s),), corrections=s.xc[:, 1])

    def models(self, s: State) -> Tensor:
        """Return the x_i [k, P], without their corrections."""
        return s.xc[:, 0]
