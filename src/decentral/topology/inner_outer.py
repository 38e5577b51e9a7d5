"""Machines of several workers: rings, or one-peer exponential graphs, between machines and within each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, directed
from decentral.topology.topology import GraphTopology, Repeating


@dataclass
class InnerOuterRing(GraphTopology):
    """Directed, changing: in every round one worker of each machine sends to another machine, the others inside.

    Machine m holds the L = `workers_per_machine` workers m L .. m L + L-1, its places 0 .. L-1; there are M = n / L
    machines. In round t the worker at place t mod L sends to the same place of machine m+1 (modulo M); the other L-1
    workers of a machine form a ring without it: each sends to the next place, or to the one after it where that is
    place t mod L. Everybody sends and receives one message, so all weights are 1/2: doubly stochastic. The rounds
    repeat after L. With one machine, the worker whose turn it is sends nothing and keeps its model.

    Source: Ying et al., "BlueFog", 2021 (its inner-outer ring schedule, which is refused for L = 2 as well).
    """

    name: str = "inner_outer_ring"
    workers_per_machine: int = 4

    def graphs(self, num_workers: int) -> Repeating:
        """Round t: place t mod L goes outside; ConfigError unless L > 2 divides n."""
        M, L = num_machines(self.name, num_workers, self.workers_per_machine), self.workers_per_machine
        return self.repeating(num_workers, L, lambda t: (inner_outer(M, L, t % L, outer_hop=1, inner_hop=1),))


def num_machines(topology: str, num_workers: int, workers_per_machine: int) -> int:
    """n / L.

    Raises:
        ConfigError: L is smaller than 3, or does not divide n.
    """
    if workers_per_machine < 3:
        raise ConfigError(
            f"topology.workers_per_machine={workers_per_machine} is too small for topology={topology}, where one "
            "worker of a machine talks to another machine and the others among themselves: use at least 3, or "
            "topology=one_peer_exponential for smaller machines."
        )
    if num_workers % workers_per_machine:
        above = -(-num_workers // workers_per_machine) * workers_per_machine
        raise ConfigError(
            f"topology={topology} needs full machines, but num_workers={num_workers} is not a multiple of "
            f"topology.workers_per_machine={workers_per_machine}: use num_workers={above}, or another "
            "topology.workers_per_machine."
        )
    return num_workers // workers_per_machine


def inner_outer(machines: int, places: int, leaver: int, outer_hop: int, inner_hop: int) -> Graph:
    """The graph of one round: the place `leaver` sends `outer_hop` machines further, the others inside.

    The others of a machine, in clockwise order without the leaver, each send `inner_hop` further among themselves.
    """
    worker = np.arange(machines * places).reshape(machines, places)
    target = np.empty_like(worker)
    target[:, leaver] = np.roll(worker[:, leaver], -outer_hop)
    staying = np.delete(np.arange(places), leaver)
    target[:, staying] = worker[:, np.roll(staying, -inner_hop)]
    return directed(worker.size, worker, target)


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
