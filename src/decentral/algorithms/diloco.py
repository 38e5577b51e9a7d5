"""DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, copy, scale, sub
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


def outer_step(phi: Tensor, v: Tensor, D: Tensor, lr: float, mu: float, nesterov: bool = True) -> tuple[Tensor, Tensor]:
    """Return phi, v after v <- mu v + D, phi <- phi - lr (D + mu v) (no nesterov: - lr v), in the arguments' memory."""
    v = add(scale(v, mu), D)
    return sub(phi, add(D, v, alpha=mu) if nesterov else v, alpha=lr), v


@dataclass
class DiLoCo(Algorithm):
    """DiLoCo: local steps, and periodically an outer optimizer step along the workers' mean model change.

        x_i <- x_i + u_i                     and, when t + 1 is a multiple of H = `period_steps`,
        D    = 1/n sum_j (phi - x_j)         phi: the common model after the last outer step
        v   <- mu v + D                      v^0 = 0
        phi <- phi - outer_lr (D + mu v)     Nesterov's momentum; nesterov=false: - outer_lr v
        x_i <- phi

    Douillard et al., 2023 (arXiv:2311.08105; formula as in torchft's code, the paper's text was not checked): H = 500,
    outer_lr = 0.7, mu = `outer_momentum` = 0.9, and AdamW as the local optimizer. Local optimizer buffers stay with
    their workers and are never reset. outer_lr=1 outer_momentum=0 is `local_sgd`; with period_steps=1 and local plain
    SGD, all-reduce. A step is one gradient. Departure: H defaults to 50. Topology: not used.
    """

    name: str = "diloco"
    period_steps: int = setting(50, at_least=1, as_sgd=1)
    outer_lr: float = setting(0.7, at_least=0, as_sgd=1)
    outer_momentum: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    nesterov: bool = True
    supports = (Algorithm.supports | {Feature.own_steps}) - {Feature.message_loss, Feature.topology}

    class State(NamedTuple):
        """Models, the last outer model, outer momentum, and the local optimizer."""

        x: Rows  # [k, P], and so are all others
        phi: Rows
        v: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], phi = x, v = 0, and the local optimizer before step 0."""
        return self.State(x, x.clone(), x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one local update, and an all-reduce with an outer step at the end of a period."""
        x, opt = self.local.adapt(s.x, oracle(s.x), s.opt, t)
        return self.outer(s._replace(x=x, opt=opt), net, t)

    def outer(self, s: State, net: Network, t: int) -> State:
        """Complete step t after the local update."""
        x, phi, v, opt = s
        if (t + 1) % self.period_steps == 0:
            D = net.mean(sub(phi, x, out=x))
            phi, v = outer_step(phi, v, D, self.outer_lr, self.outer_momentum, self.nesterov)
            x = copy(phi, out=x)
        return self.State(x, phi, v, opt)

    def regroup(self, s: State, net: Network, t: int) -> State:
        """Start returning workers at phi, as all workers start a period."""
        return s._replace(x=copy(s.phi, out=s.x))

    def parts(self, s: State) -> Parts:
        """See `Algorithm`."""
        return Parts(replicas=("phi", "v"))
