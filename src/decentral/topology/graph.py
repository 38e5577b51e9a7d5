"""Graphs as sorted lists of directed edges; a dense matrix of one is made for reading only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed edges src[e] -> dst[e] between the vertices 0 ... num_workers-1.

    int64 [E], sorted by (dst, src), without loops and repetitions; `directed` and `undirected` make it so.
    """

    num_workers: int
    src: np.ndarray
    dst: np.ndarray

    @classmethod
    def of(cls, A: Graph | np.ndarray) -> Graph:
        """The graph of a matrix [n, n]: j sends to i where A[i, j] is not zero and i != j. A graph is itself."""
        if isinstance(A, Graph):
            return A
        dst, src = np.nonzero(A)
        edges = dst != src
        return cls(len(A), src[edges], dst[edges])

    @classmethod
    def of_keys(cls, num_workers: int, keys: np.ndarray) -> Graph:
        """The graph with these edges, each given as dst * num_workers + src: sorted, no loop, none twice."""
        return cls(num_workers, keys % num_workers, keys // num_workers)

    def __len__(self) -> int:
        """The number of directed edges."""
        return len(self.src)

    def __or__(self, other: Graph) -> Graph:
        """The edges of both."""
        return union(self.num_workers, (self, other))

    @cached_property
    def keys(self) -> np.ndarray:
        """dst * num_workers + src of each edge: int64 [E], ascending."""
        return self.dst * self.num_workers + self.src

    @cached_property
    def reverse(self) -> Graph:
        """The same edges the other way round."""
        return Graph.of_keys(self.num_workers, np.sort(self.src * self.num_workers + self.dst))

    @cached_property
    def indegree(self) -> np.ndarray:
        """How many send to each worker: int64 [n]."""
        return np.bincount(self.dst, minlength=self.num_workers)

    @cached_property
    def outdegree(self) -> np.ndarray:
        """To how many each worker sends: int64 [n]."""
        return np.bincount(self.src, minlength=self.num_workers)

    def senders(self) -> list[np.ndarray]:
        """Those that send to each worker, ascending: n arrays."""
        return np.split(self.src, np.cumsum(self.indegree)[:-1])

    def dense(self) -> np.ndarray:
        """bool [n, n], for reading: entry [i, j] says whether j sends to i."""
        A = np.zeros((self.num_workers, self.num_workers), dtype=bool)
        A[self.dst, self.src] = True
        return A


def directed(num_workers: int, source: np.ndarray, target: np.ndarray) -> Graph:
    """The graph with the edges source[e] -> target[e], of shapes that broadcast; loops and repetitions are dropped."""
    src, dst = (np.asarray(end, dtype=np.int64).ravel() for end in np.broadcast_arrays(source, target))
    edges = src != dst
    return Graph.of_keys(num_workers, _distinct(dst[edges] * num_workers + src[edges]))


def undirected(num_workers: int, one: np.ndarray, other: np.ndarray) -> Graph:
    """The graph with the edges one[e] -- other[e], of shapes that broadcast; loops and repetitions are dropped."""
    ends = [np.ravel(end) for end in np.broadcast_arrays(one, other)]
    return directed(num_workers, np.concatenate(ends), np.concatenate(ends[::-1]))


def complete(num_workers: int) -> Graph:
    """Every worker sends to every other one."""
    n = num_workers
    keys = np.arange(n * n)
    return Graph.of_keys(n, keys[keys % (n + 1) != 0])


def union(num_workers: int, graphs: Iterable[Graph]) -> Graph:
    """All edges of some graphs on the same workers."""
    keys, pending, size = np.empty(0, dtype=np.int64), list[np.ndarray](), 0
    for number, graph in enumerate(graphs):
        if number == 0:
            keys = graph.keys
            continue
        pending.append(graph.keys)
        size += len(graph)
        if size > max(_PENDING_EDGES, len(keys)):
            keys, pending, size = _distinct(np.concatenate([keys, *pending])), [], 0
    return Graph.of_keys(num_workers, _distinct(np.concatenate([keys, *pending])) if pending else keys)


_PENDING_EDGES = 1 << 18


def _distinct(keys: np.ndarray) -> np.ndarray:
    """The different numbers, ascending: `np.unique`, which is slow where many are sorted already."""
    keys = np.sort(keys)
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first]


def is_undirected(graph: Graph) -> bool:
    """Whether every edge has its opposite."""
    return np.array_equal(graph.reverse.keys, graph.keys)


def is_connected(graph: Graph) -> bool:
    """Whether every worker's messages can reach every other worker (directed graphs: strong connectivity)."""
    if len(graph) < graph.num_workers - 1:
        return False
    reached = len(breadth_first(graph, 0)[0]) == graph.num_workers
    return reached and (is_undirected(graph) or len(breadth_first(graph.reverse, 0)[0]) == graph.num_workers)


def breadth_first(graph: Graph, root: int) -> tuple[np.ndarray, np.ndarray]:
    """A search from `root` against the edges, from a worker to those that send to it, in increasing order.

    The workers in the order in which they are found, int64 [those that reach the root], and the one from which each
    worker was found, int64 [n]: -1 for those that never are, the root's own number for the root.
    """
    senders = graph.senders()
    parent = np.full(graph.num_workers, -1)
    parent[root] = root
    order = [root]
    for at in order:  # grows while it is gone through
        found = senders[at]
        found = found[parent[found] < 0]
        parent[found] = at
        order.extend(found.tolist())
    return np.array(order), parent


def hops(graph: Graph) -> np.ndarray:
    """tau [n, n], for reading: tau[i, j] edges lead from j to i at least, -1 where none do."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n = graph.num_workers
    starts = np.concatenate([[0], np.cumsum(graph.indegree)])
    tau = shortest_path(csr_array((np.ones(len(graph)), graph.src, starts), shape=(n, n)), unweighted=True)
    return np.where(np.isfinite(tau), tau, -1).astype(np.int64)


def sum_of_tree_hops(tree: Graph) -> int:
    """sum_ij tau_ij over the ordered pairs of a tree, exactly, without looking at pairs.

    An edge that parts s workers from n - s lies on the way of s (n - s) pairs in each direction.
    """
    order, parent = breadth_first(tree, 0)
    below = [1] * tree.num_workers
    parents = parent.tolist()
    for worker in order[:0:-1].tolist():  # everybody after all that were found from it
        below[parents[worker]] += below[worker]
    return 2 * sum(s * (tree.num_workers - s) for s in below)  # the root parts nobody: s = n
