"""Graphs, weights and pieces of a model, once more: the topologies that `reference` runs on.

Written from the specification; shares no line with `decentral` and imports nothing from it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np

Array = np.ndarray
Edges = set[tuple[int, int]]
"""Directed edges (source, target)."""

# --- graphs ---------------------------------------------------------------------------------------------------------


def both_ways(pairs: Any) -> Edges:
    return {edge for i, j in pairs for edge in ((i, j), (j, i)) if i != j}


def heap(n: int) -> list[tuple[int, int]]:
    """Worker 0 above worker 1, which is the root of a heap: 2w and 2w + 1 are the children of w."""
    return [(w // 2, w) for w in range(1, n)]


def grid(n: int, wrap: bool) -> Edges:
    rows = max(r for r in range(1, n + 1) if n % r == 0 and r * r <= n)
    columns = n // rows
    place = {(r, c): r * columns + c for r in range(rows) for c in range(columns)}
    pairs = []
    for (r, c), worker in place.items():
        for below in ((r + 1, c), (r, c + 1)):
            if wrap:
                below = (below[0] % rows, below[1] % columns)
            if below in place:
                pairs.append((worker, place[below]))
    return both_ways(pairs)


def graph(name: str, n: int) -> Edges:
    """The undirected graphs of the specification, and `exponential`, which is directed."""
    bits = range((n - 1).bit_length())
    return {
        "chain": lambda: both_ways((i, i + 1) for i in range(n - 1)),
        "ring": lambda: both_ways((i, (i + 1) % n) for i in range(n)),
        "star": lambda: both_ways((0, i) for i in range(1, n)),
        "complete": lambda: both_ways(itertools.combinations(range(n), 2)),
        "bt": lambda: both_ways(heap(n)),
        "grid": lambda: grid(n, wrap=False),
        "torus": lambda: grid(n, wrap=True),
        "hypercube": lambda: both_ways((i, i ^ 2**k) for i in range(n) for k in bits),
        "social": social,
        "exponential": lambda: {(i, (i + 2**k) % n) for i in range(n) for k in bits},
    }[name]()


def social() -> Edges:
    women = nx.davis_southern_women_graph()
    number = {vertex: i for i, vertex in enumerate(women.nodes)}
    return both_ways((number[a], number[b]) for a, b in women.edges)


def spanning_tree(edges: Edges, n: int, root: int) -> Edges:
    """For every worker the smallest (as a list of numbers) of all shortest paths from the root; their union."""
    undirected = nx.Graph(sorted(edges))
    pairs = set()
    for worker in range(n):
        path = min(nx.all_shortest_paths(undirected, root, worker))
        pairs |= set(itertools.pairwise(path))
    return both_ways(pairs)


def hops(edges: Edges, n: int) -> Array:
    """tau[i, j] of an undirected graph."""
    undirected = nx.Graph(sorted(edges))
    return np.array([[nx.shortest_path_length(undirected, i, j) for j in range(n)] for i in range(n)])


# --- weights --------------------------------------------------------------------------------------------------------


def metropolis(edges: Edges, n: int) -> Array:
    degree = [sum(source == i for source, _ in edges) for i in range(n)]
    W = np.zeros((n, n))
    for j, i in edges:
        W[i, j] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(n):
        W[i, i] = 1 - W[i].sum()
    return W


def push(edges: Edges, n: int) -> Array:
    """Every worker splits what it has equally among itself and those it sends to."""
    W = np.eye(n)
    for j, i in edges:
        W[i, j] = 1
    return W / W.sum(axis=0)


@dataclass
class Piece:
    """A part of the coordinates with its own graph: its mixing matrix by round, or its edges to relay over."""

    coordinates: Array
    matrices: list[Array]
    edges: Edges = field(default_factory=set)


def pieces(
    name: str, n: int, d: int, *, split: str = "contiguous", edges: Edges | None = None, root: int = 0
) -> list[Piece]:
    """A topology of the program. `edges` belongs to `file`; spanning trees are those of `social`."""
    everything = np.arange(d)
    if name == "dbt":
        mirror = [(n - 1 - a, n - 1 - b) for a, b in heap(n)]
        halves = {
            "interleaved": (everything[0::2], everything[1::2]),
            "contiguous": (everything[: (d + 1) // 2], everything[(d + 1) // 2 :]),
        }[split]
        trees = (both_ways(heap(n)), both_ways(mirror))
        return [Piece(half, [metropolis(tree, n)], tree) for half, tree in zip(halves, trees, strict=True)]
    if name == "one_peer_exponential":
        rounds = [{(i, (i + 2**k) % n) for i in range(n)} for k in range(max(1, (n - 1).bit_length()))]
        return [Piece(everything, [push(one, n) for one in rounds])]
    if name == "spanning_tree":
        edges = spanning_tree(social(), n, root)
    edges = graph(name, n) if edges is None else edges
    two_way = all((i, j) in edges for j, i in edges)
    return [Piece(everything, [(metropolis if two_way else push)(edges, n)], edges)]
