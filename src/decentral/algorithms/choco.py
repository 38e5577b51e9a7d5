"""CHOCO-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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


class Order(Enum):
    """The position of the compression in a step: before averaging the models, or at the end."""

    compress_then_combine = "compress_then_combine"
    combine_then_compress = "combine_then_compress"


@dataclass
class Choco(Algorithm):
    """CHOCO-SGD: gossip that sends compressed differences to the neighbors' current estimates.

        order=compress_then_combine              order=combine_then_compress
            y_i <- x_i + u_i                         x_i <- x_i + u_i + gamma sum_j W_ij (h_j - h_i)
            h_i <- h_i + C(y_i - h_i)                h_i <- h_i + C(x_i - h_i)
            x_i <- y_i + gamma sum_j W_ij (h_j - h_i)

    Koloskova, Stich & Jaggi, ICML 2019, Algorithm 2 is the former; the authors' code, and Algorithm 1 of Koloskova,
    Lin, Stich & Jaggi, ICLR 2020, the latter, which can overlap a message with the next gradient. Workers send C(.)
    only, and all neighbors of worker i know its h_i (x-hat in the papers). Nothing is lost for good, so C needs no
    error feedback. The mean of the x_i obeys mean(x) <- mean(x) + mean(u), exactly, for any C and gamma. At a constant
    rate on heterogeneous data the x_i stay away from the optimum, as in D-PSGD; those of `beer` do not.

    A worker keeps s_i = sum_j W_ij h_j instead of every h_j, so W must be the same in every round.

    gamma   consensus step size, from 0 to 1: the stronger the compression, the smaller, or training diverges. Tune it
            with the rate. Best of six on digits (study flex_choco_gamma): 1 for int8, 0.5 for top-k with keep=0.1, 0.1
            with keep=0.01. The papers' theory gives far smaller values; their experiments use 0.3 to 1
    start   h^0: initial is the shared x^0; zero, as in the authors' code for deep learning, spends many rounds on
            sending x^0
    """

    name: str = "choco"
    gamma: float = setting(0.5, at_least=0, at_most=1, as_sgd=1)
    order: Order = Order.compress_then_combine
    start: Start = Start.initial
    usual: ClassVar = {"topology": "ring"}
    supports = Algorithm.supports - {Feature.message_loss}
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.whole, Need.static, Need.doubly_stochastic, Need.symmetric, Need.connected}
    )
    takes = AcceptedCompression.payloads

    class State(NamedTuple):
        """Models, the estimates known to others, their mixture, residuals, and the local optimizer."""

        x: Rows  # [k, P]
        h: Rows  # [k, P]
        s: Rows  # [k, P]: sum_j W_ij h_j
        compression_stats: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], h^0, and the local optimizer before step 0."""
        h = self.start.of(x)
        return self.State(x, h, h.clone(), self.compressor.compression_stats(x), self.local.init(x))

    def step(self, st: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and send one compressed message to each neighbor."""
        x, h, s, compression_stats, opt = st
        g = oracle(x)
        x, opt = self.local.adapt(x, g, opt, t)
        if self.order is Order.combine_then_compress:
            x = add(x, sub(s, h, out=g), self.gamma)
        heard = self.compressor.send(sub(x, h, out=g), net, t)
        h = heard.add_own(h)
        s = heard.add_mixed(s)
        if self.order is Order.compress_then_combine:
            x = add(x, sub(s, h, out=g), self.gamma)
        return self.State(x, h, s, compression_stats, opt)

    def regroup(self, s: State, net: Network, t: int) -> State:
        """Recompute s_i = sum_j W_ij h_j among the present workers."""
        return s._replace(s=net.mix(copy(s.h, out=s.s), t))
