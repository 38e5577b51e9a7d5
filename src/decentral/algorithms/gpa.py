"""GPA: generalized primal averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.errors import ConfigError
from decentral.optim.rows import add, scale
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class GPA(Algorithm):
    """GPA: a smooth one-worker DiLoCo; any local optimizer on z, the gradient between z and its running average x.

        y  = m_y x + (1 - m_y) z                             x^0 = z^0: the initial model
        z <- z + u,  u = Opt(1/n sum_j g_j(y))               weight decay acts on z
        x <- m_x x + (1 - m_x) z                             x is evaluated

    Defazio, Mishchenko, Raman, Shi & Xiao, 2025 (arXiv:2512.17131; formula from facebookresearch/optimizers, the
    paper's text was not checked). m_x = 0 is `allreduce`; m_x = m_y with plain SGD makes y SGD with Nesterov momentum
    m_x at lr (1 - m_x). m_x = 0.9^(1/H) corresponds to DiLoCo with H steps. Departure: in the release, z's weight decay
    changes y and x only partly, so that they leave this formula; here it holds. Bytes: those of all-reduce. Topology:
    not used.

    average            m_x; the authors use 0.9967 (H = 32), the default is H = 16
    gradient_average   m_y; in a script with `decentral.wrap`, only 1: the gradient is that at the model, x
    """

    name: str = "gpa"
    average: float = setting(0.9934, at_least=0, at_most=1, as_sgd=0)
    gradient_average: float = setting(0.7, at_least=0, at_most=1)
    supports = Algorithm.supports - {Feature.own_rates, Feature.message_loss, Feature.topology}

    class State(NamedTuple):
        """The average, the model of the local optimizer, and its buffers; the same on all workers."""

        x: Rows  # [k, P]
        z: Rows
        opt: Buffers

    def check(self, num_workers: int, optim: Any) -> None:
        """See `Algorithm`."""
        if optim is None and self.gradient_average != 1:
            raise ConfigError(
                f"algo.gradient_average={self.gradient_average:g} takes gradients beside the model, but a script takes "
                "them at its model: use algo.gradient_average=1, or decentral-run."
            )

    def init(self, x: Tensor, net: Network) -> State:
        """Return x = z [k, P] and the local optimizer before step 0."""
        return self.State(x, x.clone(), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at y, all-reduce it, and apply one update to z."""
        x, z, opt = s
        m_x, m_y = self.average, self.gradient_average
        y = x if m_y == 1 else add(scale(x.clone(), m_y), z, alpha=1 - m_y)
        z, opt = self.local.adapt(z, net.mean(oracle(y)), opt, t)
        return self.State(add(scale(x, m_x), z, alpha=1 - m_x), z, opt)

    def parts(self, s: State) -> Parts:
        """See `Algorithm`."""
        return Parts(replicas=("x", "z", "opt"))
