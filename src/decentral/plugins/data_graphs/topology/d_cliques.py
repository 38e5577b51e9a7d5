"""D-Cliques."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, product

import numpy as np

from decentral.plugins.data_graphs.shares import SeesClasses
from decentral.settings import setting
from decentral.topology.drawn import generator_of
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology

_IMPROVES = -1e-12


class Between(Enum):
    """The graph of the cliques."""

    fully = "fully"
    ring = "ring"
    smallworld = "smallworld"
    fractal = "fractal"


@dataclass
class DCliques(SeesClasses, GraphTopology):
    """D-Cliques: cliques that together hold all classes in about their overall shares, connected sparsely.

        skew(C) = sum_c |mean_{i in C} Pi[i, c] - mean_i Pi[i, c]|     Pi [n, C] the workers' class shares

    Greedy swap: begin with random cliques of M = `clique_size` workers; `swaps` times, of two random cliques, one of
    the swaps of two workers that lower the sum of the skews, at random. Each edge between cliques joins their workers
    with the fewest such edges so far.

    Bellet, Kermarrec & Lavoie, SRDS 2022 (arXiv:2104.07365, Algorithm 2; read in the authors' code). Departures: every
    worker counts the same in the skew, whatever the number of its examples; ties between workers go to the lowest
    number; the paper's clique averaging of gradients is left out.

    clique_size  M; the rest of the workers makes one smaller clique
    swaps        number of attempts to swap
    between      fully: all pairs of cliques; ring; smallworld: cliques at about 2^s on both sides; fractal: groups of M
                 cliques, fully connected, then groups of M groups
    seed         seed of the draws: all workers know them
    """

    name: str = "d_cliques"
    clique_size: int = setting(10, at_least=1)
    swaps: int = setting(1000, at_least=0)
    between: Between = Between.fully
    seed: int = 0

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the edges within cliques, and between them."""
        generator, M = generator_of(self.seed, self.name, num_workers, 0), self.clique_size
        order = generator.permutation(num_workers).tolist()
        cliques = [order[start : start + M] for start in range(0, num_workers, M)]
        C, swaps = len(cliques), self.swaps if num_workers > M else 0
        pairs = [generator.choice(C, 2, replace=False).tolist() for _ in range(swaps)]
        swap(self.given(num_workers), cliques, pairs, generator.random)
        edges = [edge for clique in cliques for edge in combinations(clique, 2)] + joined(cliques, self.between, M)
        one, other = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        return [(undirected(num_workers, one, other),)]


def swap(Pi: np.ndarray, cliques: list[list[int]], pairs: Sequence[Sequence[int]], draw: Callable[[], float]) -> None:
    """Swap workers of each pair of cliques in place: of all (a, b) that lower the skew, by a then b, number
    floor(draw() * count); nothing if there are none."""
    mean = Pi.mean(0)
    for x, y in pairs:
        one, other = cliques[x], cliques[y]
        now = Pi[one].mean(0) - mean, Pi[other].mean(0) - mean
        change = Pi[other] - Pi[one][:, None]  # [a, b, C]
        after = np.abs(now[0] + change / len(one)).sum(-1) + np.abs(now[1] - change / len(other)).sum(-1)
        lower = np.argwhere(after - np.abs(now).sum() < _IMPROVES)
        if len(lower):
            by_number = sorted(lower.tolist(), key=lambda at: (one[at[0]], other[at[1]]))
            a, b = by_number[int(draw() * len(lower))]
            one[a], other[b] = other[b], one[a]


def joined(cliques: list[list[int]], between: Between, M: int) -> list[tuple[int, int]]:
    """Return the edges between cliques."""
    C, count, edges = len(cliques), dict.fromkeys((worker for clique in cliques for worker in clique), 0), []

    def join(one: list[int], other: list[int]) -> None:
        if one is not other:
            ends = [min(part, key=lambda worker: (count[worker], worker)) for part in (one, other)]
            for end in ends:
                count[end] += 1
            edges.append((ends[0], ends[1]))

    if between is Between.ring:
        for x in range(C if C > 2 else C - 1):
            join(cliques[x], cliques[(x + 1) % C])
    elif between is Between.smallworld:
        for x, s, k in product(range(C), range(math.ceil(math.log2(C))), (0, 1)):
            join(cliques[x], cliques[(x - 2**s - k) % C])
            join(cliques[x], cliques[(x + 2**s + k) % C])
    else:
        size, units = (M if between is Between.fractal else C), cliques
        while len(units) > 1:
            groups = [units[start : start + max(2, size)] for start in range(0, len(units), max(2, size))]
            for group in groups:
                for one, other in combinations(group, 2):
                    join(one, other)
            units = [[worker for unit in group for worker in unit] for group in groups]
    return edges
