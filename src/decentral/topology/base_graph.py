"""The Base-(k+1) graphs: exact consensus in finitely many rounds, for any number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from decentral.settings import setting
from decentral.topology.graph import undirected
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.topology import MatrixTopology


class Averaging(NamedTuple):
    """One round: groups that average fully, and pairs that exchange a share.

    Workers are int64: groups [any number, size], one array per size; pairs one [p], other [p], share [p] (float64),
    which is W_ij = W_ji. A worker keeps the rest.
    """

    groups: tuple[np.ndarray, ...] = ()
    one: np.ndarray = np.empty(0, dtype=np.int64)
    other: np.ndarray = np.empty(0, dtype=np.int64)
    share: np.ndarray = np.empty(0)

    def matrix(self, num_workers: int) -> MixingMatrix:
        """Return W, symmetric and doubly stochastic."""
        one, other, share = [self.one], [self.other], [self.share]
        for members in self.groups:
            size = members.shape[1]
            first, second = np.triu_indices(size, 1)
            one.append(members[:, first].ravel())
            other.append(members[:, second].ravel())
            share.append(np.full(one[-1].size, 1 / size))
        i, j, w = np.concatenate(one), np.concatenate(other), np.concatenate(share)
        graph = undirected(num_workers, i, j)
        weight = np.empty(len(graph))
        for src, dst in ((i, j), (j, i)):
            weight[np.searchsorted(graph.keys, dst * num_workers + src)] = w
        given = np.bincount(graph.dst, weights=weight, minlength=num_workers)
        return MixingMatrix.on(graph, weight, 1.0 - given)


@dataclass
class BaseGraph(MatrixTopology):
    """Base-(k+1) graph: exact consensus after at most 2 log_{k+1}(n) + 2 rounds, with at most k neighbors.

    It supports any n and any k = `neighbors`. n = p q, where p is the largest divisor of n whose prime factors are at
    most k + 1: first the simple graph (topology=simple_base_graph) runs on p consecutive blocks of q workers in
    parallel, then workers at the same position of the p blocks average, digit by digit of the block number. If the
    simple graph on all n takes fewer rounds, it is used instead. Every round is symmetric and doubly stochastic, and
    the product of all rounds is 1 1^T / n. For k = 1 and n = 2^m these are the matchings of the hypercube.

    Takezawa, Sato, Bao, Niwa & Yamada, NeurIPS 2023, Algorithms 1-3; the rounds are those of the authors' code, with
    integer logarithms instead of floats, which miss a power (log_3 243 < 5).
    """

    name: str = "base_graph"
    neighbors: int = setting(1, at_least=1)

    def rounds(self, num_workers: int) -> Rounds:
        """Return one cycle, repeated."""
        return rounds_of(num_workers, base(num_workers, self.neighbors))


def rounds_of(num_workers: int, averagings: Sequence[Averaging]) -> Rounds:
    """Return these averagings as rounds, repeated."""
    return Rounds(num_workers, lambda round: (averagings[round].matrix(num_workers),), period=len(averagings))


@cache
def base(num_workers: int, k: int) -> tuple[Averaging, ...]:
    """Return the rounds of Base-(k+1) for n workers (Algorithm 3)."""
    n = num_workers
    whole = simple(n, k)
    p = prod(_radices(n, k + 1)[0])
    q = n // p
    blocks = np.arange(n).reshape(p, q)
    within = [_on(blocks, averaging) for averaging in simple(q, k)] if q > 1 else []
    across = [Averaging((groups,)) for groups in _hyper_hypercube(blocks.T, k + 1)] if p > 1 else []
    rounds = tuple(within + across) or whole
    return whole if len(whole) < len(rounds) else rounds


@cache
def simple(num_workers: int, k: int) -> tuple[Averaging, ...]:
    """Return the rounds of the simple Base-(k+1) graph for n workers (Algorithm 2)."""
    n, B = num_workers, k + 1
    if _radices(n, B)[1] == 1:
        return tuple(Averaging((groups,)) for groups in _hyper_hypercube(np.arange(n)[None], B))
    parts = _parts(n, B)  # V_l as [a_l, B^{p_l}]
    sizes = [V.size for V in parts]
    together = [_hyper_hypercube(V.reshape(1, -1), B) for V in parts]
    apart = [_hyper_hypercube(V.reshape(1, -1) if V.size < B else V, B) for V in parts]
    rounds = [
        Averaging(tuple(cycle[m % len(cycle)] for cycle in together)) for m in range(len(together[0]))
    ]  # every block agrees
    done, last, r = [0] * len(parts), len(parts) - 1, 0
    ends = len(_hyper_hypercube(parts[0][:1], B))
    while done[0] < ends:
        groups, pairs = list[np.ndarray](), Averaging()
        if r < last:
            pairs, unused = _spread(parts, sizes, r)
            whole = len(unused) // B * B
            groups += [group for group in (unused[:whole].reshape(-1, B), unused[whole:][None]) if group.size]
        for number, cycle in enumerate(apart):
            if number < r or number == r == last:
                groups.append(cycle[done[number] % len(cycle)])
                done[number] += 1
        rounds.append(pairs._replace(groups=tuple(groups)))
        r += 1
    return tuple(rounds)


def _spread(parts: list[np.ndarray], sizes: list[int], r: int) -> tuple[Averaging, np.ndarray]:
    """Pair workers of the blocks after V_r with the last free worker of each part of V_r; also return the free ones."""
    V = parts[r]
    later = np.concatenate([parts[number].ravel() for number in range(len(parts) - 1, r, -1)])
    partner = V[:, ::-1][:, : len(later)]  # [a_r, later]
    w = sizes[r] / sum(sizes[r:])
    one, other = np.broadcast_arrays(later, partner)
    pairs = Averaging((), one.ravel(), other.ravel(), np.full(other.size, w / len(V)))
    return pairs, V[:, : V.shape[1] - len(later)].ravel()


def _parts(n: int, B: int) -> list[np.ndarray]:
    """Return consecutive workers [a_l, B^{p_l}] for each nonzero digit a_l of n in base B, from the highest."""
    power, first, parts = 1, 0, []
    while power * B <= n:
        power *= B
    while power:
        digit = (n - first) // power
        if digit:
            parts.append(np.arange(first, first + digit * power).reshape(digit, power))
            first += digit * power
        power //= B
    return parts


def _radices(n: int, largest: int) -> tuple[list[int], int]:
    """Return factors of n from 2 to `largest`, ascending (extracted largest first), and the remaining cofactor."""
    factors = []
    for factor in range(largest, 1, -1):
        while n % factor == 0:
            factors.append(factor)
            n //= factor
    return factors[::-1], n


def _hyper_hypercube(sets: np.ndarray, largest: int) -> list[np.ndarray]:
    """Return the groups of each round of Algorithm 1, for several sets of workers at once, [sets, m] with m a product
    of factors up to `largest`.

    A group has workers of a set whose positions differ in one mixed-radix digit only.
    """
    radices, left = _radices(sets.shape[1], largest)
    assert left == 1
    rounds, stride = [], 1
    for radix in radices:
        rounds.append(sets.reshape(len(sets), -1, radix, stride).swapaxes(2, 3).reshape(-1, radix))
        stride *= radix
    return rounds or [sets.reshape(-1, 1)]  # one round in which a single worker is idle


def _on(blocks: np.ndarray, averaging: Averaging) -> Averaging:
    """Apply an averaging of the positions 0 .. q-1 to the workers [p, q] of p blocks."""
    groups = tuple(blocks[:, members].reshape(-1, members.shape[1]) for members in averaging.groups)
    one, other = blocks[:, averaging.one].ravel(), blocks[:, averaging.other].ravel()
    return Averaging(groups, one, other, np.tile(averaging.share, len(blocks)))


@dataclass
class SimpleBaseGraph(MatrixTopology):
    """Simple Base-(k+1) graph: exact consensus in finitely many rounds, without the blocks of topology=base_graph.

    In base k + 1, k = `neighbors`, each nonzero digit a_l of n stands for a block V_l of a_l (k+1)^{p_l} workers.
    First every block reaches consensus. Then, for r = 0, 1, ..., every worker of the blocks after V_r exchanges with
    one worker of each of the a_r parts of V_r, with weight w / a_r where w = |V_r| / sum_{q >= r} |V_q|, and the parts
    average the result. If the prime factors of n are at most k + 1 there are no blocks: workers average digit by digit
    of their numbers.

    Takezawa et al., NeurIPS 2023, Algorithms 1 and 2.
    """

    name: str = "simple_base_graph"
    neighbors: int = setting(1, at_least=1)

    def rounds(self, num_workers: int) -> Rounds:
        """Return one cycle, repeated."""
        return rounds_of(num_workers, simple(num_workers, self.neighbors))
