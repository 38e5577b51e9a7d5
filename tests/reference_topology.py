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
    """Every worker sends to its out-neighbors in turn, in clockwise order from itself."""
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


# --- exact agreement in finitely many rounds --------------------------------------------------------------------------


def average_in(W: Array, group: Any) -> None:
    for i, j in itertools.product(group, group):
        W[i, j] = 1 / len(group)


def hyper_hypercube(nodes: list[int], B: int) -> list[list[list[int]]]:
    """The groups of every round, by mixed-radix digits of the place; one round of nothing for a single node."""
    m, radices = len(nodes), []
    for radix in range(B, 1, -1):
        while m % radix == 0:
            radices.append(radix)
            m //= radix
    assert m == 1
    found, stride = [], 1
    for radix in sorted(radices):
        starts = [place for place in range(len(nodes)) if place // stride % radix == 0]
        found.append([[nodes[start + digit * stride] for digit in range(radix)] for start in starts])
        stride *= radix
    return found or [[]]


def is_smooth(n: int, B: int) -> bool:
    for factor in range(2, B + 1):
        while n % factor == 0:
            n //= factor
    return n == 1


def simple_base(n: int, k: int) -> list[Array]:
    """The matrices of the simple Base-(k+1) graph, one node after the other."""
    B, matrices = k + 1, []
    if is_smooth(n, B):
        for groups in hyper_hypercube(list(range(n)), B):
            matrices.append(np.eye(n))
            for group in groups:
                average_in(matrices[-1], group)
        return matrices
    digits = []
    while n // B ** len(digits):
        digits.append(n // B ** len(digits) % B)
    blocks, first = [], 0
    for power in reversed(range(len(digits))):
        if digits[power]:
            parts = [list(range(first + a * B**power, first + (a + 1) * B**power)) for a in range(digits[power])]
            blocks.append(parts)
            first += digits[power] * B**power
    whole = [[node for part in parts for node in part] for parts in blocks]
    cycles = [hyper_hypercube(V, B) for V in whole]
    m1, ends, done, m = len(cycles[0]), len(hyper_hypercube(blocks[0][0], B)), [0] * len(blocks), 0
    while done[0] < ends:
        W, r, used = np.eye(n), m - m1, set()
        for number in reversed(range(len(blocks))):
            V, parts = whole[number], blocks[number]
            if r < 0:
                for group in cycles[number][m % len(cycles[number])]:
                    average_in(W, group)
            elif number > r:
                w = len(whole[r]) / sum(len(later) for later in whole[r:])
                for i in V:
                    W[i, i] = 1 - w
                    for part in blocks[r]:
                        j = max(node for node in part if node not in used)
                        used.add(j)
                        W[i, j] = W[j, i] = w / len(blocks[r])
                        W[j, j] = 1 - W[i, j]
            elif number == r < len(blocks) - 1:
                free = [node for node in V if node not in used]
                for start in range(0, len(free), B):
                    average_in(W, free[start : start + B])
            else:
                for part in [V] if len(V) < B else parts:
                    cycle = hyper_hypercube(part, B)
                    for group in cycle[done[number] % len(cycle)]:
                        average_in(W, group)
                done[number] += 1
        matrices.append(W)
        m += 1
    return matrices


def base(n: int, k: int) -> list[Array]:
    """The matrices of the Base-(k+1) graph."""
    p = max(p for p in range(1, n + 1) if n % p == 0 and is_smooth(p, k + 1))
    q = n // p
    found = [np.kron(np.eye(p), W) for W in simple_base(q, k)] if q > 1 else []
    across = hyper_hypercube(list(range(p)), k + 1) if p > 1 else []
    for groups in across:
        W = np.eye(n)
        for group, j in itertools.product(groups, range(q)):
            average_in(W, [block * q + j for block in group])
        found.append(W)
    whole = simple_base(n, k)
    return whole if len(whole) < len(found) or not found else found


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
    if name in ("base_graph", "simple_base_graph"):
        averagings = {"base_graph": base, "simple_base_graph": simple_base}[name](n, place.get("neighbors", 1))
        return [Piece(everything, averagings)]
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
