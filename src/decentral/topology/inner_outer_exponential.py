"""Machines of several workers: one-peer exponential graphs between machines, and within each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from decentral.topology.graph import Graph
from decentral.topology.inner_outer_ring import inner_outer, num_machines
from decentral.topology.topology import GraphTopology, Repeating


@dataclass
class InnerOuterExponential(GraphTopology):
    """Directed, changing: `inner_outer_ring` with hops 1, 2, 4, ... in turn, between machines and inside.

    With L = `workers_per_machine` and M = n / L machines, in round t the worker at place t mod L of every machine sends
    to the same place 2^(t mod K) machines further, K = 1 + floor(log2(M - 1)). The other L-1 workers of a machine send
    h = 2^(t mod k) places further, k = 1 + floor(log2(L - 2)), and one place more where that is at or beyond the one
    that left: h places further among those that stay. All weights are 1/2: doubly stochastic. The rounds repeat after
    lcm(L, K, k).

    Where L and K have a common factor, some places never try some distances between machines; their models travel
    them by way of the other places. With one machine, the worker whose turn it is keeps its model.

    Source: Ying et al., "BlueFog", 2021 (its inner-outer exponential-2 schedule, there for M >= 2 only).
    """

    name: str = "inner_outer_exponential"
    workers_per_machine: int = 4

    def graphs(self, num_workers: int) -> Repeating:
        """Round t: place t mod L goes 2^(t mod K) machines further; ConfigError unless L > 2 divides n."""
        M, L = num_machines(self.name, num_workers, self.workers_per_machine), self.workers_per_machine
        K, k = max(1, (M - 1).bit_length()), (L - 2).bit_length()

        def graphs(t: int) -> tuple[Graph, ...]:
            return (inner_outer(M, L, t % L, outer_hop=1 << t % K, inner_hop=1 << t % k),)

        return self.repeating(num_workers, math.lcm(L, K, k), graphs)
