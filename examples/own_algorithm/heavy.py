"""Gossip with momentum: an algorithm with a state of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.settings import setting

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Buffers, Rows


@dataclass
class HeavyGossip(Algorithm):
    """Gossip with a momentum of the gradients: x_i <- sum_j W_ij (x_j + Opt(m_j)), m_i <- beta m_i + (1 - beta) g_i.

    beta    weight of the old momentum
    """

    name: str = "heavy_gossip"
    beta: float = setting(0.9, at_least=0, below=1, as_sgd=0)

    class State(NamedTuple):
        """Models, momentum and the local optimizer."""

        x: Rows  # [k, P]
        m: Rows  # [k, P]
        opt: Buffers

    def init(self, x, net):
        """Return the state before step 0."""
        return self.State(x, x.new_zeros(x.shape), self.local.init(x))

    def step(self, s, oracle, net, t):
        """Take one gradient and mix with the neighbors."""
        m = s.m.mul_(self.beta).add_(oracle(s.x), alpha=1 - self.beta)
        y, opt = self.local.adapt(s.x, m.clone(), s.opt, t)  # y_i = x_i + u_i
        return self.State(net.mix(y, t), m, opt)
