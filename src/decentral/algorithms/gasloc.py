"""GASLoC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, copy, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class GASLoC(Algorithm):
    """GASLoC: DiLoCo's outer step with gossip in place of the all-reduce.

        x_i <- x_i + u_i                                     and, when t + 1 is a multiple of H = `period_steps`,
        y_i    = phi_i + outer_lr (x_i - phi_i)              phi_i: x_i after the last outer step
        phi_i <- sum_j W_ij y_j + mu (y_i - y_i^before)      mu = `outer_momentum`, y^before = x^0 at first
        x_i   <- phi_i

    arXiv:2606.11081; the formula is from a summary, the paper was not read. It is included because its limiting cases,
    which are tested, hold. On any graph the mean of the phi_i follows DiLoCo with Nesterov momentum on the mean drift;
    one worker is DiLoCo; W = 1 1^T / n agrees with DiLoCo in the mean, and with mu = 0 in every worker; mu = 0 and
    outer_lr = 1 is local SGD with gossip, with H = 1 `dpsgd`. W here is I - alpha Lambda there. The r-th outer step
    uses round r of the topology. W is doubly stochastic, static or time-varying. Lost messages: as dpsgd.
    """

    name: str = "gasloc"
    period_steps: int = setting(50, at_least=1, as_sgd=1)
    outer_lr: float = setting(0.7, at_least=0, as_sgd=1)
    outer_momentum: float = setting(0.9, at_least=0, below=1, as_sgd=0)
    supports = Algorithm.supports | {Feature.own_starts, Feature.own_steps, Feature.robust_mixing}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Current models, models and y of the last outer step, and the local optimizer."""

        x: Rows  # [k, P], and so are all others
        phi: Rows
        y: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], phi = y = x, and the local optimizer before step 0."""
        return self.State(x, x.clone(), x.clone(), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one local update, and a round of averaging with an outer step at the end of a period."""
        x, phi, before, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1) % self.period_steps == 0:
            y = add(phi, sub(x, phi), alpha=self.outer_lr)  # in the memory of phi
            moved = sub(y, before, out=before)  # y - y^before
            x = copy(y, out=x)
            x = net.mix(x, t // self.period_steps)
            x = add(x, moved, alpha=self.outer_momentum)
            before, phi = copy(y, out=before), copy(x, out=phi)
        return self.State(x, phi, before, opt)

    def parts(self, s: State) -> Parts:
        """Return x, phi and y: with x alone, x - phi would be a step that no worker took."""
        return Parts((s.x, s.phi, s.y))
