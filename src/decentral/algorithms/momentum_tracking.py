"""Momentum Tracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.algorithms.states import beside_zeros
from decentral.optim.rows import add, scale, sub
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network


@dataclass
class MomentumTracking(Algorithm):
    """Momentum Tracking: gradient tracking of the momentum, unbiased under heterogeneous data and momentum.

        m_i <- beta m_i + g_i(x_i)                           m^0 = 0
        x_i <- sum_j W_ij x_j - lr (m_i - c_i)
        c_i <- sum_j W_ij (c_j - m_j) + m_i                  c^0 = 0

    Takezawa, Bao, Niwa, Sato & Yamada, TMLR 2023, Algorithm 1 (from the authors' code, u there is m here; the paper's
    text was not checked). The gradient is taken at the unmixed x. The c_i always sum to 0, so the mean of the models
    follows heavy-ball SGD on the mean gradient, for any doubly stochastic W. beta=0 is gradient tracking (mode=awc).
    Each step sends two vectors as one message: x and c - m share a row. Departures: m = c = 0 at the start, where the
    code has (g - mean g) / (1 - beta) after an all-reduce; no weight decay of 0.001 in the gradient, which the code
    hard-codes. g includes the weight decay and is the output of the local optimizer: plain `optim=sgd` is the published
    method. Lost messages: both vectors are lost together and the weights are rescaled; the corrections then no longer
    sum to zero, and the method is no longer exact.
    """

    name: str = "momentum_tracking"
    beta: float = setting(0.9, at_least=0, below=1)
    supports = (Algorithm.supports | {Feature.own_starts, Feature.corrections}) - {Feature.plain_sgd}
    usual: ClassVar = {"topology": "ring"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.doubly_stochastic, Need.connected})

    class State(NamedTuple):
        """Models with their corrections, momentum and the local optimizer."""

        xc: Rows  # [k, 2, P]: x_i and c_i
        m: Rows  # [k, P]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], c^0 = 0 beside them, and m^0 = 0."""
        return self.State(beside_zeros(x), x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient and one round of averaging of two vectors."""
        xc, m, opt = s
        x, c = xc[:, 0], xc[:, 1]
        g, opt = self.local.direction(self.local.regularised(oracle(x), x), x, opt, t)
        m = add(scale(m, self.beta), g)
        q = sub(c, m).clone()  # c - m: the mix is in place, and c - m is needed afterwards
        xc = net.mix(xc, t)
        x, c = xc[:, 0], xc[:, 1]
        x = add(x, q, alpha=self.local.lr(t))  # W x - lr (m - c)
        c = add(c, m)  # W (c - m) + m
        return self.State(xc, m, opt)

    def parts(self, s: State) -> Parts:
        """Return the x_i and the c_i [k, P]."""
        return Parts((self.models(s),), corrections=s.xc[:, 1])

    def models(self, s: State) -> Tensor:
        """Return the x_i [k, P], without their corrections."""
        return s.xc[:, 0]
