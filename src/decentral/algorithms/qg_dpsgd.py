"""D-PSGD with quasi-global momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.algorithms.features import Feature
from decentral.algorithms.states import WithMomentum
from decentral.optim.optimizer import is_zero
from decentral.optim.rows import add, copy, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Oracle
    from decentral.network.network import Network


@dataclass
class QGDPSGD(WithMomentum):
    """D-PSGD with quasi-global momentum: the momentum follows the averaged models, not the local gradients.

        b = beta m_i + g_i                                   a temporary buffer
        x_i^{t+1} = sum_j W_ij (x_j + Opt(g_j + beta b_j))   (nesterov=false: Opt(b_j))
        m_i <- (1 - a) m_i + a (x_i^t - x_i^{t+1}) / lr      a = 1 - beta by default

    Lin et al., ICML 2021 (arXiv:2102.04761), in the RelaySum paper's form; in the QG authors' code `a` is a separate
    setting, 0.1 for any beta (the same for beta=0.9). g includes the weight decay. The local optimizer acts on the
    quasi-global direction: plain `optim=sgd` is the published method; momentum or Adam gives a combination (not the
    paper's QG-Adam, which keeps a second quasi-global moment). Departures: if lr = 0, as in the first step of a
    warm-up, m stays, while the authors divide rounding errors by 1e-8; their option to update m only in every k-th
    step, from k moves, is not offered. W is doubly stochastic. Lost messages: as dpsgd.
    """

    name: str = "qg_dpsgd"
    beta: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    nesterov: bool = True
    a: float | None = setting(None, above=0, at_most=1, hint="or null for 1 - algo.beta", older=None)
    supports = WithMomentum.supports | {Feature.robust_mixing}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    def step(self, s: WithMomentum.State, oracle: Oracle, net: Network, t: int) -> WithMomentum.State:
        """Take one gradient and one round of averaging."""
        x, m, opt = s
        beta, lr = self.beta, self.local.lr(t)
        g = self.local.regularised(oracle(x), x)
        b = add(g, m, alpha=beta)  # beta m + g
        if self.nesterov:
            b = sub(scale(b, 1 + beta), m, alpha=beta)  # g + beta b, since g = b - beta m
        d, opt = self.local.direction(b, x, opt, t)
        x_next = net.mix(sub(x, d, alpha=lr, out=b), t)
        if not is_zero(lr):
            kept = beta if self.a is None else 1 - self.a
            m = add(scale(m, kept), sub(x, x_next), alpha=(1 - kept) / lr)
        return self.State(copy(x_next, out=x), m, opt)
