"""Topologies of machines, each with several workers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Phase, Rounds, Split
from decentral.topology.topology import Topology

_ROUNDS_KEPT = 32


def on_machines(topology: Topology, num_workers: int, workers_per_machine: int) -> Rounds:
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

    @lru_cache(_ROUNDS_KEPT)
    def phases(round: int) -> list[Phase]:
        return hierarchical_phases(machines.mixing(round)[0], L)

    return Rounds(
        num_workers,
        lambda round: (of_workers(machines.mixing(round)[0], L),),
        period=machines.period,
        phases=phases,
    )


def of_workers(machines: MixingMatrix, workers_per_machine: int) -> MixingMatrix:
    """W (x) J / L, J of ones: every entry of W becomes L^2, each W_IJ / L."""
    M, L = machines.num_workers, workers_per_machine
    into, of = np.repeat(np.arange(L), L), np.tile(np.arange(L), L)
    dst = (machines.dst[:, None] * L + into).ravel()
    src = (machines.src[:, None] * L + of).ravel()
    weight = np.repeat(machines.weight * (1 / L), L * L)
    order = np.argsort(dst * (M * L) + src)
    return MixingMatrix(M * L, src[order], dst[order], weight[order])


def hierarchical_phases(machines: MixingMatrix, workers_per_machine: int) -> list[Phase]:
    """Three exchanges that apply W (x) J / L, J of ones, for a matrix W of machines [M, M]; rows are cut in L shards.

    Worker l of a machine first has the machine's mean of shard l, then sum_J W_IJ of those means, then the shards of
    the others of its machine. Each worker sends (L - 1) / L + degree / L + (L - 1) / L times its row.
    """
    n, L = machines.num_workers * workers_per_machine, workers_per_machine
    worker, scatter, between, gather = np.arange(n), [], [], []
    for h in range(L):  # the shard, and the worker of each machine that looks after it
        keeper = worker // L * L + h
        others = np.flatnonzero(keeper != worker)
        ones = np.ones(len(others))
        # everybody's shard to its keeper, who takes the mean; those who are no keepers go on with what they have
        scatter.append(_matrix(n, (worker, keeper, np.full(n, 1 / L)), (others, others, ones)))
        exchange = machines.src * L + h, machines.dst * L + h, machines.weight
        between.append(_matrix(n, exchange, (others, others, ones)))
        gather.append(MixingMatrix(n, keeper, worker, np.ones(n)))
    return [Phase(tuple(part), Split.contiguous) for part in (scatter, between, gather)]


def _matrix(n: int, *parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> MixingMatrix:
    """The matrix with the entries (src, dst, weight) of all parts, which have none in common."""
    src, dst, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(dst * n + src)
    return MixingMatrix(n, src[order], dst[order], weight[order])
