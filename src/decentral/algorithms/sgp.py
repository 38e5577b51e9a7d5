"""Stochastic gradient push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.optim.rows import add
from decentral.settings import setting
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows, Shared
    from decentral.network.network import Network


@dataclass
class SGP(Algorithm):
    """Stochastic gradient push: push-sum averaging, for any directed graph and any number of workers.

        z_i = x_i / w_i
        x_i <- x_i + u_i(z_i)                                gradient at z_i
        (x, w) <- (W x, W w)                                 `rounds` times, W column-stochastic; w^0 = 1

    Assran et al., ICML 2019; RelaySum paper, Algorithm 4 with rounds=2 on `topology=one_peer_exponential`. Round r of
    step t is round t * rounds + r of the topology. If W is doubly stochastic, all w_i stay 1. The state holds z, and
    w for all workers: it follows from the topology, so it is never sent. Weight decay and the reported models use z.
    Lost messages, in both x and w: if W is doubly stochastic, the receiver divides its remaining weights by their sum
    (in a one-peer round it keeps its model); otherwise the sender keeps undelivered mass, so the w_i sum to n.

    authors_rounds    use round t * (rounds + r) instead, as the RelaySGD authors' training code does through an
                      operator-precedence error: with rounds=2 their average is exact later, or (n = 64) never; with
                      rounds=1 both are the same
    """

    name: str = "sgp"
    rounds: int = setting(1, at_least=1)
    authors_rounds: bool = False
    supports = Algorithm.supports | {Feature.own_starts, Feature.own_steps}
    usual: ClassVar = {"topology": "one_peer_exponential"}
    needs: ClassVar[frozenset[Need]] = frozenset({Need.column_stochastic, Need.connected})

    class State(NamedTuple):
        """De-biased models, push-sum weights and the local optimizer."""

        x: Rows  # [k, P]: z
        w: Shared  # [n, d]
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return z^0 = x [k, P] and push-sum weights of one."""
        return self.State(x, net.known_ones(), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one gradient at z and `rounds` rounds of push-sum."""
        z, w, opt = s
        u, opt = self.local(oracle(z), z, opt, t)
        x = add(net.weigh(z, w), u)  # x_i = w_i z_i
        for r in range(self.rounds):
            k = t * (self.rounds + r) if self.authors_rounds else t * self.rounds + r
            x, w = net.mix(x, k), net.mix_known(w, k)
        z = net.weigh(x, 1 / w)
        return self.State(z, w, opt)
