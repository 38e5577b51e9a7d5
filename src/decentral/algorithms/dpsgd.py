"""D-PSGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.topology.requirements import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


class Mode(Enum):
    """Adapt then combine, or adapt while combining."""

    atc = "atc"
    awc = "awc"


@dataclass
class DPSGD(Algorithm):
    """Decentralized parallel SGD: one round of gossip averaging with the neighbours per step.

        mode=atc    x_i <- sum_j W_ij (x_j + u_j)           adapt then combine, the RelaySGD authors' "DP-SGD"
        mode=awc    x_i <- sum_j W_ij x_j + u_i             adapt while combining: rows travel during the gradient

    Lian et al., NeurIPS 2017 (arXiv:1705.09056), Algorithm 1 is awc. W is doubly stochastic, static or time-varying.
    Lost messages: the receiver rescales its remaining weights to their old sum.
    """

    name: str = "dpsgd"
    mode: Mode = Mode.atc
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models and the local optimizer."""

        x: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Only the models."""
        return self.State(x, self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """One gradient at x_i, one round of mixing."""
        if self.mode is Mode.atc:
            y, opt = self.local.moved(s.x, oracle(s.x), s.opt, t)
            return self.State(net.mix(y, t), opt)
        mixing = net.begin_mix(s.x, t)
        u, opt = self.local(oracle(s.x), s.x, s.opt, t)
        return self.State(mixing.wait().add_(u), opt)
