"""GT-SAGA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.features import Feature
from decentral.algorithms.given_samples import GivenSamples
from decentral.host.machine import Lazy
from decentral.optim.rows import add, copy, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


@dataclass
class GTSAGA(GivenSamples):
    """GT-SAGA: gradient tracking with variance-reduced gradients, from a table of the last gradient of every sample.

        G_i = 1/B sum_s (g_is(x_i) - T_is) + 1/m sum_s T_is          s: `batch` random samples; T_is = g_is(x_i^0) first
        T_is <- g_is(x_i)                                            for these s
        y_i <- sum_j W_ij (y_j + G_j - G_j^before)                   y^0 = G^before = 0
        x_i <- sum_j W_ij (x_j - lr y_j)

    Xin, Khan & Kar, 2019 (arXiv:1909.11774) and, non-convex, 2020 (arXiv:2011.03853); formula from third parties' code
    and from memory, the papers' texts were not checked: one index for the gradient and the table, as in SAGA. It is
    exact with a constant rate, although each step takes B of m sample gradients. The mean of the y always equals that
    of the G. m = 1 is gradient tracking with one more W than `gradient_tracking`. The table has m rows per worker. Two
    rounds of averaging per step, the second after the first. W is doubly stochastic, static or time-varying. The local
    optimizer acts on G. Lost messages: weights are rescaled; the y then do not keep their mean.
    """

    name: str = "gt_saga"
    supports = GivenSamples.supports | {Feature.own_starts}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models, tracked gradient, last gradient, table, and the local optimizer."""

        x: Rows  # [k, P]
        y: Rows  # [k, P]
        G: Rows  # [k, P]
        table: Rows  # [k, m, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], y = G = 0, an empty table, and the local optimizer before step 0."""
        zeros = (x.new_zeros(x.shape), x.new_zeros(x.shape), x.new_zeros(len(x), self.num_samples, x.shape[1]))
        return self.State(x, *zeros, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take the gradients of a batch, of all samples before the first, and two rounds of averaging."""
        x, y, G, table, opt = s
        if t == 0:
            table = copy(self.at(oracle, x, self.all_samples(net)), out=table)
        own, drawn = torch.arange(len(x))[:, None], self.samples(net, t)
        new = self.at(oracle, x, drawn)
        g = add((new - table[own, drawn]).mean(1), table.mean(1))
        table[own, drawn] = new
        g, opt = self.local.direction(self.local.regularised(g, x), x, opt, t)
        y = net.mix(add(sub(y, G), g), t)
        G = copy(g, out=G)
        x = net.mix(sub(x, y, alpha=self.local.lr(t)), t)
        return self.State(x, y, G, table, opt)
