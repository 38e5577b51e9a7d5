"""Rings or one-peer exponential graphs, both between machines and within each machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, directed
from decentral.topology.topology import GraphTopology, Repeating


@dataclass
class InnerOuterRing(GraphTopology):
    """A time-varying directed graph: one worker per machine sends to another machine, the others within theirs.

    Machine m holds the L = `workers_per_machine` workers m L .. m L + L-1, its places 0 .. L-1; there are M = n / L
    machines. In round t the worker at place t mod L sends to the same place of machine m+1 (modulo M). The other L-1
    workers of a machine form a ring without it: each sends to the next place, skipping place t mod L. Every worker
    sends and receives one message, so all weights are 1/2: doubly stochastic. The rounds repeat after L. With one
    machine, the worker at place t mod L sends nothing and keeps its model.

    Source: Ying et al., "BlueFog", 2021 (its inner-outer ring schedule, which also refuses L = 2).
    """

    name: str = "inner_outer_ring"
    workers_per_machine: int = 4

    def graphs(self, num_workers: int) -> Repeating:
        """Return round t, in which place t mod L sends outside. Raise ConfigError unless L > 2 divides n."""
        M, L = num_machines(self.name, num_workers, self.workers_per_machine), self.workers_per_machine
        return self.repeating(num_workers, L, lambda t: (inner_outer(M, L, t % L, outer_hop=1, inner_hop=1),))


def num_machines(topology: str, num_workers: int, workers_per_machine: int) -> int:
    """Return n / L.

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
    """Return the graph of one round: place `leaver` sends `outer_hop` machines ahead, the others within the machine.

    The other workers of a machine, in clockwise order without the leaver, each send `inner_hop` places ahead.
    """
    worker = np.arange(machines * places).reshape(machines, places)
    target = np.empty_like(worker)
    target[:, leaver] = np.roll(worker[:, leaver], -outer_hop)
    staying = np.delete(np.arange(places), leaver)
    target[:, staying] = worker[:, np.roll(staying, -inner_hop)]
    return directed(worker.size, worker, target)


@dataclass
class InnerOuterExponential(GraphTopology):
    """A time-varying directed graph: `inner_outer_ring` with hops 1, 2, 4, ... in turn, between and within machines.

    With L = `workers_per_machine` and M = n / L machines, in round t the worker at place t mod L of every machine sends
    to the same place 2^(t mod K) machines ahead, K = 1 + floor(log2(M - 1)). The other L-1 workers of a machine send
    h = 2^(t mod k) places ahead, k = 1 + floor(log2(L - 2)), plus one to skip the worker that sends outside: h places
    ahead among the others. All weights are 1/2: doubly stochastic. The rounds repeat after lcm(L, K, k).

    If L and K have a common factor, some places never use some distances between machines; their models cover these
    through other places. With one machine, the worker at place t mod L keeps its model.

    Source: Ying et al., "BlueFog", 2021 (its inner-outer exponential-2 schedule, there for M >= 2 only).
    """

    name: str = "inner_outer_exponential"
    workers_per_machine: int = 4

    def graphs(self, num_workers: int) -> Repeating:
        """Return round t: place t mod L sends 2^(t mod K) machines ahead. Raise ConfigError unless L > 2 divides n."""
        M, L = num_machines(self.name, num_workers, self.workers_per_machine), self.workers_per_machine
        K, k = max(1, (M - 1).bit_length()), (L - 2).bit_length()

        def graphs(t: int) -> tuple[Graph, ...]:
            return (inner_outer(M, L, t % L, outer_hop=1 << t % K, inner_hop=1 << t % k),)

        return self.repeating(num_workers, math.lcm(L, K, k), graphs)
