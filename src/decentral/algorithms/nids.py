"""NIDS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.host.machine import Lazy
from decentral.optim.rows import add, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network
else:
    torch = Lazy("torch")


@dataclass
class NIDS(Algorithm):
    """NIDS: exact, and each worker may have its own step size (`lr_per_worker`).

        x^1     = x^0 + u^0                                  u_i = -a_i g_i, Lambda = diag(a)
        x^{t+1} = M (2 x^t - x^{t-1} + u^t - u^{t-1})        M = I - Lambda (I - W) / (2 max a)
                = M (x^t + u^t + c^t),  c^t = x^t - x^{t-1} - u^{t-1}

    Li, Shi & Yan, 2017 (arXiv:1704.07807; the smooth part; 1 / (2 max a) from memory, the paper's text was not
    checked). With equal a, M = (W + I)/2: `exact_diffusion`, begun at x^0 + u^0. With unequal a the mean of the x_i is
    not that of D-PSGD and the c_i do not sum to 0 (the c_i / a_i do), yet all x_i reach the optimum of the sum of the
    losses. The ratios a_i / max a are those of the first steps. W is symmetric and static. Lost messages: weights are
    rescaled; it is then no longer exact.
    """

    name: str = "nids"
    supports = (Algorithm.supports | {Feature.own_starts}) - {Feature.absence, Feature.plain_sgd}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models, corrections, a_i / max a of each worker, and the local optimizer."""

        x: Rows  # [k, P]
        c: Rows  # [k, P]
        share: Rows  # [k, 1]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], c = 0, and the local optimizer before step 0."""
        a = torch.as_tensor(self.local.lr(1), dtype=x.dtype).reshape(-1, 1)
        a = a.max().expand(len(x), 1) if len(a) != len(x) else a
        share = (a / net.gather(a.to(x.device)).max()).to(x)
        return self.State(x, x.new_zeros(x.shape), share, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and, except in step 0, one round of averaging."""
        x, c, share, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)  # x^t + u^t
        if t == 0:
            return self.State(y, c, share, opt)
        c = add(c, y)
        x = sub(net.mix(c.clone(), t), c)  # (W - I) (x^t + u^t + c^t)
        x = add(x.mul_(share / 2), c)
        return self.State(x, sub(x, y, out=c), share, opt)
