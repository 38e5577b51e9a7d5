"""Graphs, weights and pieces of a model, once more: the topologies that `reference` runs on.

Written from the specification; shares no line with `decentral` and imports nothing from it.
"""

from __future__ import annotations

import itertools
import math
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


def is_power(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1


def circulant(n: int, hops: Any) -> Edges:
    return {(i, (i + hop) % n) for i in range(n) for hop in hops if hop % n}


def graph(name: str, n: int, *, base: int = 2, direction: str = "both", center: int = 0) -> Edges:
    """The static graphs of the specification: all undirected but `exponential` and a ring in one direction."""
    bits = range((n - 1).bit_length())
    return {
        "chain": lambda: both_ways((i, i + 1) for i in range(n - 1)),
        "ring": lambda: circulant(n, {"both": (1, -1), "left": (-1,), "right": (1,)}[direction]),
        "star": lambda: both_ways((center, i) for i in range(n)),
        "complete": lambda: both_ways(itertools.combinations(range(n), 2)),
        "bt": lambda: both_ways(heap(n)),
        "grid": lambda: grid(n, wrap=False),
        "torus": lambda: grid(n, wrap=True),
        "hypercube": lambda: both_ways((i, i ^ 2**k) for i in range(n) for k in bits),
        "social": social,
        "exponential": lambda: circulant(n, [d for d in range(1, n) if is_power(d, base)]),
        "symmetric_exponential": lambda: circulant(
            n, [d for d in range(1, n) if is_power(d if d <= n // 2 else n - d, base)]
        ),
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


# --- graphs that change with the round ------------------------------------------------------------------------------


def one_peer(edges: Edges, n: int) -> list[Edges]:
    """Every worker sends to its out-neighbours in turn, in clockwise order from itself."""
    targets = [sorted((j for i, j in edges if i == me), key=lambda j: (j - me) % n) for me in range(n)]
    period = math.lcm(*(len(of_me) for of_me in targets if of_me))
    return [{(me, of_me[t % len(of_me)]) for me, of_me in enumerate(targets) if of_me} for t in range(period)]


def inner_outer(n: int, L: int, exponential: bool) -> list[Edges]:
    """Place t mod L of every machine of L workers sends to another machine, the other places inside, without it."""
    M = n // L
    outer = [2**k for k in range(1 + math.floor(math.log2(M - 1)))] if exponential and M > 1 else [1]
    inner = [2**k for k in range(1 + math.floor(math.log2(L - 2)))] if exponential else [1]
    rounds = []
    for t in range(math.lcm(L, len(outer), len(inner))):
        edges = set()
        for machine, place in itertools.product(range(M), range(L)):
            to_leaver = (t - place) % L
            if to_leaver == 0:
                target = (machine + outer[t % len(outer)]) % M * L + place
            else:
                hop = inner[t % len(inner)]
                target = machine * L + (place + hop + (hop >= to_leaver)) % L
            edges.add((machine * L + place, target))
        rounds.append({(source, target) for source, target in edges if source != target})
    return rounds


def rounds(name: str, n: int, place: dict[str, Any]) -> list[Edges] | None:
    """The edges of every round of a topology that changes; none for a static one."""
    if name == "one_peer":
        settings = {key: place[key] for key in ("base", "direction", "center") if key in place}
        return one_peer(graph(place.get("graph", "exponential"), n, **settings), n)
    if name == "one_peer_exponential":
        period = max(1, (n - 1).bit_length())
        ahead = range(place.get("neighbors", 1))
        return [circulant(n, [2 ** ((k + r) % period) for r in ahead]) for k in range(period)]
    if name.startswith("inner_outer_"):
        return inner_outer(n, place.get("workers_per_machine", 4), name == "inner_outer_exponential")
    return None


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


def pull(edges: Edges, n: int) -> Array:
    """Every worker takes equally from itself and those that send to it."""
    return push({(j, i) for i, j in edges}, n).T


def weigh(edges: Edges, n: int, weights: str) -> Array:
    """A rule of the program; auto is metropolis where every edge goes both ways, and push elsewhere."""
    two_way = all((i, j) in edges for j, i in edges)
    if weights == "auto":
        weights = "metropolis" if two_way else "uniform"
    return {"metropolis": metropolis, "uniform": push, "pull": pull}[weights](edges, n)


@dataclass
class Piece:
    """A part of the coordinates with its own graph: its mixing matrix by round, or its edges to relay over."""

    coordinates: Array
    matrices: list[Array]
    edges: Edges = field(default_factory=set)


def pieces(
    name: str,
    n: int,
    d: int,
    *,
    split: str = "contiguous",
    edges: Edges | None = None,
    root: int = 0,
    weights: str = "auto",
    **place: Any,
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
    changing = rounds(name, n, place)
    if changing is not None:
        if name == "one_peer" and weights == "metropolis":
            changing = [both_ways(one) for one in changing]
        return [Piece(everything, [weigh(one, n, weights) for one in changing])]
    if name == "spanning_tree":
        edges = spanning_tree(social(), n, root)
    if name == "symmetric_exponential":
        place.setdefault("base", 4)
    edges = graph(name, n, **place) if edges is None else edges
    return [Piece(everything, [weigh(edges, n, weights)], edges)]
