"""The two sides of a bipartite graph, so that one asks and the other answers."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING

from decentral.topology.graph import Graph, union

if TYPE_CHECKING:
    from decentral.topology.rounds import Rounds


def all_edges(rounds: Rounds) -> Graph:
    """The edges of all rounds of a period, in all pieces."""
    matrices = {id(W): W for r in range(rounds.period) for W in rounds.mixing(r)}
    return union(rounds.num_workers, [W.graph for W in matrices.values()])


def two_sides(graph: Graph) -> list[int] | None:
    """For each vertex the side 0 or 1 on which it is, worker 0 on side 0, no edge within a side; None if impossible."""
    neighbors: list[list[int]] = [[] for _ in range(graph.num_workers)]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        neighbors[dst].append(src)
        neighbors[src].append(dst)
    side = [-1] * graph.num_workers
    for root in range(graph.num_workers):
        if side[root] >= 0:
            continue
        side[root], waiting = 0, deque([root])
        while waiting:
            i = waiting.popleft()
            for j in neighbors[i]:
                if side[j] < 0:
                    side[j] = 1 - side[i]
                    waiting.append(j)
                elif side[j] == side[i]:
                    return None
    return side


@lru_cache(maxsize=8)
def sides(rounds: Rounds) -> list[int]:
    """`two_sides` of all edges of the rounds, which are bipartite (`Need.bipartite`)."""
    found = two_sides(all_edges(rounds))
    assert found is not None
    return found


def neighbors_of(rounds: Rounds, worker: int, round: int) -> list[int]:
    """Whom a worker takes something from in a round, in any piece, ascending."""
    return sorted({j for W in rounds.mixing(round) for j, _ in W.row(worker) if j != worker})
