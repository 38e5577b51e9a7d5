"""GT-SARAH."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.features import Feature
from decentral.algorithms.given_samples import GivenSamples
from decentral.algorithms.states import beside_zeros
from decentral.optim.rows import add, copy, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class GTSARAH(GivenSamples):
    """GT-SARAH: gradient tracking of recursive gradients, with a full gradient every q + 1 steps.

        v_i <- grad F_i(x_i), when t is a multiple of q + 1, q = `inner_steps`; else, with `batch` random samples s,
        v_i <- v_i + 1/B sum_s (g_is(x_i) - g_is(x_i^before))        x^before: the x of the step before
        y_i <- sum_j W_ij y_j + v_i - v_i^before                     y^0 = v^before = 0
        x_i <- sum_j W_ij x_j - lr y_i

    Xin, Khan & Kar, 2020 (arXiv:2008.07428; formula from third parties' code, the paper's text was not checked). It
    is exact with a constant rate. q = 0, or all samples in every step, is `gradient_tracking` with mode=awc and full
    gradients. x and y are sent together. The mean of the y always equals that of the v. W is doubly stochastic, static
    or time-varying. The local optimizer acts on v. Lost messages: both vectors are lost together and the weights are
    rescaled; the y then do not keep their mean.

    inner_steps   q, steps between two full gradients
    """

    name: str = "gt_sarah"
    inner_steps: int = setting(10, at_least=0)
    supports = GivenSamples.supports | {Feature.own_starts}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models beside tracked gradients, models before, recursive gradients and their directions, and the local
        optimizer."""

        xy: Rows  # [k, 2, P]
        before: Rows  # [k, P], and so are v and d
        v: Rows
        d: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], y = v = 0, and the local optimizer before step 0."""
        return self.State(beside_zeros(x), x.clone(), x.new_zeros(x.shape), x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take a full gradient or two of a batch, and one round of averaging of two vectors."""
        xy, before, v, d, opt = s
        x = xy[:, 0]
        if t % (self.inner_steps + 1) == 0:
            v = copy(self.at(oracle, x, self.all_samples(net)).mean(1), out=v)
        else:
            drawn = self.samples(net, t)
            g = self.at(oracle, x, drawn).mean(1)
            v = add(v, sub(g, self.at(oracle, before, drawn).mean(1)))
        before = copy(x, out=before)
        g, opt = self.local.direction(self.local.regularised(v.clone(), x), x, opt, t)
        d = sub(g, d, out=d)  # v - v^before
        xy = net.mix(xy, t)
        y = add(xy[:, 1], d)
        sub(xy[:, 0], y, alpha=self.local.lr(t))
        return self.State(xy, before, v, copy(g, out=d), opt)

    def models(self, s: State) -> Tensor:
        """Return the x_i [k, P]."""
        return s.xy[:, 0]
