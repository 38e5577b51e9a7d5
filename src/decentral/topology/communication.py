"""Local steps, periodic global averaging, and topologies of machines with several workers each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import Settings, setting
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import MEAN, Phase, Rounds, Split
from decentral.topology.topology import Topology

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds
    from decentral.topology.topology import Topology


_ROUNDS_KEPT = 32


def on_machines(topology: Topology, num_workers: int, workers_per_machine: int) -> Rounds:
    """Return the rounds W (x) J / L for a topology of machines with matrix W: each of L workers gets the mixed means.

    Raises:
        ConfigError: the workers do not divide into such machines, or the topology is not a single graph.
    """
    L = workers_per_machine
    if num_workers % L:
        raise ConfigError(
            f"communication.workers_per_machine={L} does not divide num_workers={num_workers}: use a divisor of "
            "num_workers."
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
    """Return W (x) J / L, J all ones: every entry of W becomes L^2 entries W_IJ / L."""
    M, L = machines.num_workers, workers_per_machine
    into, of = np.repeat(np.arange(L), L), np.tile(np.arange(L), L)
    dst = (machines.dst[:, None] * L + into).ravel()
    src = (machines.src[:, None] * L + of).ravel()
    weight = np.repeat(machines.weight * (1 / L), L * L)
    return MixingMatrix.of_entries(M * L, src, dst, weight)


def hierarchical_phases(machines: MixingMatrix, workers_per_machine: int) -> list[Phase]:
    """Return three exchanges that apply W (x) J / L, J all ones, for W of machines [M, M]; rows are cut in L shards.

    Worker l of a machine first gets the machine's mean of shard l, then sum_J W_IJ of those means, then the shards of
    the machine's other workers. Each worker sends (L - 1) / L + degree / L + (L - 1) / L times its row.
    """
    n, L = machines.num_workers * workers_per_machine, workers_per_machine
    worker, scatter, between, gather = np.arange(n), [], [], []
    for h in range(L):  # the shard, and the worker of each machine that owns it
        keeper = worker // L * L + h
        others = np.flatnonzero(keeper != worker)
        ones = np.ones(len(others))
        # every worker's shard goes to its owner, which takes the mean; the others keep theirs
        scatter.append(_matrix(n, (worker, keeper, np.full(n, 1 / L)), (others, others, ones)))
        exchange = machines.src * L + h, machines.dst * L + h, machines.weight
        between.append(_matrix(n, exchange, (others, others, ones)))
        gather.append(MixingMatrix(n, keeper, worker, np.ones(n)))
    return [Phase(tuple(part), Split.contiguous) for part in (scatter, between, gather)]


def _matrix(n: int, *parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> MixingMatrix:
    """Return the matrix with the entries (src, dst, weight) of all parts, which are disjoint."""
    return MixingMatrix.of_entries(n, *(np.concatenate(column) for column in zip(*parts, strict=True)))


MAX_PERIOD = 100_000


def now_and_then(base: Rounds, every: int, global_every: int | None, topology: str) -> Rounds:
    """Return rounds with `base` in every `every`-th round and the global mean in every `global_every`-th of those.

    In between workers send nothing: W = I. `topology` is its name in messages.

    Raises:
        ConfigError: the period is too long.
    """
    n, d = base.num_workers, base.num_pieces
    period = every * math.lcm(base.period, global_every or 1)
    if period > MAX_PERIOD:
        raise ConfigError(
            f"communication.every={every} and communication.global_every={global_every} with topology={topology} "
            f"repeat only after {period} steps, more than {MAX_PERIOD}: use smaller numbers."
        )

    def everybody(round: int) -> bool:
        return global_every is not None and (round // every + 1) % global_every == 0

    def matrices(round: int) -> tuple[MixingMatrix, ...]:
        if rounds.is_silent(round):
            return (MixingMatrix.identity(n),) * d
        return (MixingMatrix.average(n),) * d if everybody(round) else base.mixing(round // every)

    def phases(round: int) -> list[Phase]:
        if rounds.is_silent(round):
            return []
        return [MEAN] if everybody(round) else base.phases(round // every)

    rounds = Rounds(n, matrices, num_pieces=d, period=period, split=base.split, phases=phases, every=every)
    return rounds


class LocalSteps(NamedTuple):
    """Local steps per worker: of `every` steps between two communications, worker i takes the first steps[i]."""

    every: int
    steps: np.ndarray
    """Numbers of local steps, from 1 to `every`: int64 [n]."""

    def active(self, t: int | np.ndarray) -> np.ndarray:
        """Return which workers take a local step in step t (or in steps t [T, 1]): bool [n] or [T, n]."""
        return np.asarray(t % self.every < self.steps)

    def taken(self, t: int | np.ndarray) -> np.ndarray:
        """Return the number of local steps of each worker before step t: int64 [n] or [T, n]."""
        return np.asarray(t // self.every * self.steps + np.minimum(t % self.every, self.steps))

    def of(self, workers: range) -> LocalSteps:
        """Return the local steps of these workers."""
        return self._replace(steps=self.steps[workers.start : workers.stop])


@dataclass
class Communication(Settings, where="communication"):
    """The communication schedule on top of a topology, for any algorithm (Ying et al. 2021, sections III and V).

    every                 local steps: communicate only in rounds every, 2 every, ...
    global_every          periodic global averaging: number of communications between two means over all workers (null:
                          never)
    workers_per_machine   L > 1: workers i L to i L + L - 1 are on machine i, and the topology connects machines, not
                          workers: x_i <- sum_J W_IJ (mean of machine J)
    """

    every: int = setting(1, at_least=1, older=1)
    global_every: int | None = setting(None, at_least=1, older=None)
    workers_per_machine: int = setting(1, at_least=1, older=1)

    @property
    def plain(self) -> bool:
        """Return whether the rounds of the topology are unchanged."""
        return self == Communication()

    def schedule(self, topology: Topology, num_workers: int) -> Rounds:
        """Return the rounds of the topology under this schedule.

        Raises:
            ConfigError: the topology does not exist for this number of workers or machines, or cannot connect machines.
        """

        rounds = (
            topology.schedule(num_workers)
            if self.workers_per_machine == 1
            else on_machines(topology, num_workers, self.workers_per_machine)
        )
        if self.every == 1 and self.global_every is None:
            return rounds
        return now_and_then(rounds, self.every, self.global_every, topology.name)
