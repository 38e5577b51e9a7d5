"""Topologies of machines, each with several workers."""

from __future__ import annotations

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.schedule import Phase, Schedule, Split
from decentral.topology.topology import Topology


def on_machines(topology: Topology, num_workers: int, workers_per_machine: int) -> Schedule:
    """W (x) J / L for a topology of machines with matrix W: every machine's mean, mixed, for each of its L workers.

    Raises:
        ConfigError: the workers cannot be dealt to such machines, or the topology is not one graph.
    """
    L = workers_per_machine
    if num_workers % L:
        raise ConfigError(
            f"communication.workers_per_machine={L} does not divide num_workers={num_workers}: all machines have "
            "as many workers."
        )
    machines = topology.schedule(num_workers // L)
    if machines.num_pieces > 1:
        raise ConfigError(
            f"communication.workers_per_machine={L} needs one graph of machines, but topology={topology.name} is "
            f"{machines.num_pieces}: use another topology, such as one_peer_exponential."
        )
    inside = np.full((L, L), 1 / L)
    return Schedule(
        num_workers,
        lambda round: (np.kron(machines.matrices(round)[0], inside),),
        period=machines.period,
        phases=lambda round: hierarchical_phases(machines.matrices(round)[0], L),
    )


def hierarchical_phases(machines: np.ndarray, workers_per_machine: int) -> list[Phase]:
    """Three exchanges that apply W (x) J / L, J of ones, for a matrix W of machines [M, M]; rows are cut in L shards.

    Worker l of a machine first has the machine's mean of shard l, then sum_J W_IJ of those means, then the shards of
    the others of its machine. Each worker sends (L - 1) / L + degree / L + (L - 1) / L times its row.
    """
    M, L = len(machines), workers_per_machine
    scatter, between, gather = [], [], []
    for h in range(L):  # the shard, and the worker of each machine that looks after it
        keeper = np.arange(M) * L + h
        reduce, exchange, spread = np.eye(M * L), np.eye(M * L), np.zeros((M * L, M * L))
        reduce[keeper] = np.kron(np.eye(M), np.full(L, 1 / L))
        exchange[np.ix_(keeper, keeper)] = machines
        spread[np.arange(M * L), np.repeat(keeper, L)] = 1.0
        scatter.append(reduce)
        between.append(exchange)
        gather.append(spread)
    return [Phase(tuple(part), Split.contiguous) for part in (scatter, between, gather)]
