"""BEER."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.algorithms.states import Start
from decentral.compression.rows import AcceptedCompression
from decentral.optim.rows import add, copy, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class BEER(Algorithm):
    """BEER: gradient tracking that sends both vectors as compressed differences.

        x^{t+1} = x^t + gamma (W h^t - h^t) - eta v^t
        h^{t+1} = h^t + C(x^{t+1} - h^t)
        v^{t+1} = v^t + gamma (W p^t - p^t) + g^{t+1} - g^t
        p^{t+1} = p^t + C(v^{t+1} - p^t)

    from v^0 = g^0 and p^0 = 0, rows of all workers under W. Zhao, Li, Li, Richtarik & Chi, NeurIPS 2022 (there H and G
    are these h and p), Algorithm 1. Each step sends two messages to each neighbor. The mean of v always equals the mean
    of the last gradients, for any C; without noise it reaches the optimum at a constant rate for any heterogeneity of
    the data. With C = id it is gradient tracking with W_gamma = I + gamma (W - I); with one worker, SGD.

    The local optimizer gets v in place of a gradient; weight decay is part of g. Gradients of two steps use two
    samples, as in the authors' numpy code. A step here is: gradient, v, its message, x, its message. As in CHOCO-SGD,
    a worker keeps sums of received messages, so W must be the same in every round.

    gamma   consensus step size, from 0 to 1; smaller for stronger compression
    start   h^0: zero as in the paper, or the shared x^0. Either way, the first step does not mix
    """

    name: str = "beer"
    gamma: float = setting(0.4, at_least=0, at_most=1)
    start: Start = Start.zero
    usual: ClassVar = {"topology": "ring"}
    supports = Algorithm.supports - {Feature.message_loss, Feature.plain_sgd}
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.whole, Need.static, Need.doubly_stochastic, Need.symmetric, Need.connected}
    )
    takes = AcceptedCompression.payloads

    class State(NamedTuple):
        """Models and tracked gradients, estimates of both known to others, mixtures, last gradients, residuals."""

        x: Rows  # [k, P], and so are all others
        h: Rows
        Wh: Rows
        v: Rows
        p: Rows
        Wp: Rows
        m: Rows  # g^t; MoTEF: the momentum
        compression_stats: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], h^0, zeros, and the local optimizer before step 0."""
        h, zero = self.start.of(x), x.new_zeros
        v, p, Wp, m = zero(x.shape), zero(x.shape), zero(x.shape), zero(x.shape)
        return self.State(x, h, h.clone(), v, p, Wp, m, self.compressor.compression_stats(x), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and send two compressed messages to each neighbor; that of v starts at step 1."""
        x, h, Wh, v, p, Wp, m, compression_stats, opt = s
        g = self.local.regularised(oracle(x), x)
        v = sub(v, m)  # v^t = v^{t-1} + gamma (W p - p) + m^t - m^{t-1}
        m = self.momentum(g, m, t)
        v = add(v, m)
        if t > 0:
            v = add(v, sub(Wp, p, out=g), self.gamma)
            heard = self.compressor.send(sub(v, p, out=g), net, t)
            p, Wp = heard.add_own(p), heard.add_mixed(Wp)
        d, opt = self.local.direction(copy(v, out=g), x, opt, t)
        x = sub(x, d, self.local.lr(t))
        x = add(x, sub(Wh, h, out=g), self.gamma)
        heard = self.compressor.send(sub(x, h, out=g), net, t, message=1)
        h, Wh = heard.add_own(h), heard.add_mixed(Wh)
        return self.State(x, h, Wh, v, p, Wp, m, compression_stats, opt)

    def regroup(self, s: State, net: Network, t: int) -> State:
        """Recompute both mixtures among the present workers."""
        return s._replace(Wh=net.mix(copy(s.h, out=s.Wh), t), Wp=net.mix(copy(s.p, out=s.Wp), t))

    def momentum(self, g: Tensor, m: Tensor, t: int) -> Tensor:
        """Return m^t from g^t and m^{t-1}: here the gradient itself."""
        return copy(g, out=m)
