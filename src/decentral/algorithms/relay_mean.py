"""Distributed mean estimation by RelaySum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.optim.rows import add, copy, sub
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import EdgeRows, Oracle, Rows, Shared
    from decentral.network.network import Network


@dataclass
class RelayMean(Algorithm):
    """Mean estimation by RelaySum (for task=mean_estimation): the mean of all samples that can have arrived so far.

        s_i^t = x_i - g_i(x_i)                            the sample: g is the gradient of 1/2 ||x - s||^2
        m_{i->j}^t = s_i^t + sum_{l != j} m_{l->i}^{t-1},   c alike with 1
        total_i += s_i^t + sum_j m_{j->i}^t,   seen_i += 1 + sum_j c_{j->i}^t
        x_i^{t+1} = total_i / seen_i

    RelaySum paper, Algorithm 5. It needs a tree, and uses neither the local optimizer nor a learning rate. A lost
    message and its count are zero. The gossip baseline is `algo=dpsgd schedule=inverse lr=1`.
    """

    name: str = "relay_mean"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.tree})
    supports = Algorithm.supports - {
        Feature.training,
        Feature.own_rates,
        Feature.absence,
    }  # every step counts the samples seen

    class State(NamedTuple):
        """Estimates, the last messages with their counts, and the running sums."""

        x: Rows
        m: EdgeRows  # [E, ceil(P / d)]
        c: Shared  # [edges of all workers]
        total: Rows  # [k, P]
        seen: Shared  # [n, d]: number of samples in `total`

    def init(self, x: Tensor, net: Network) -> State:
        """Return the estimates x [k, P], without messages or samples."""
        return self.State(x, net.no_messages(x), net.no_counts(), x.new_zeros(x.shape), 0 * net.known_ones())

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one sample and send one message over every edge in each direction."""
        x, m, c, total, seen = s
        g = oracle(x)
        sample = sub(x, g, out=g)
        m, c = net.relay(sample, m, t), net.relay_counts(c, t)
        total = add(total, net.collect(m, sample))
        seen = seen + 1 + net.collect_counts(c)
        x = net.weigh(copy(total, out=x), 1 / seen)
        return self.State(x, m, c, total, seen)
