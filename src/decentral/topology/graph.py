"""Graphs as sorted lists of directed edges; dense matrices are for reading only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed edges src[e] -> dst[e] between the vertices 0 ... num_workers-1.

    int64 [E], sorted by (dst, src), without self-loops and repetitions, as `directed` and `undirected` create it.
    """

    num_workers: int
    src: np.ndarray
    dst: np.ndarray

    @classmethod
    def of(cls, A: Graph | np.ndarray) -> Graph:
        """Convert a matrix [n, n]: j sends to i if A[i, j] is nonzero and i != j. A graph is returned as is."""
        if isinstance(A, Graph):
            return A
        dst, src = np.nonzero(A)
        edges = dst != src
        return cls(len(A), src[edges], dst[edges])

    @classmethod
    def of_keys(cls, num_workers: int, keys: np.ndarray) -> Graph:
        """Return the graph with these distinct edges, each dst * num_workers + src, sorted, without self-loops."""
        return cls(num_workers, keys % num_workers, keys // num_workers)

    def __len__(self) -> int:
        """Return the number of directed edges."""
        return len(self.src)

    def __or__(self, other: Graph) -> Graph:
        """Return the union of the edges."""
        return union(self.num_workers, (self, other))

    @cached_property
    def keys(self) -> np.ndarray:
        """Return dst * num_workers + src of each edge: int64 [E], ascending."""
        return self.dst * self.num_workers + self.src

    @cached_property
    def reverse(self) -> Graph:
        """Return the graph with all edges reversed."""
        return Graph.of_keys(self.num_workers, np.sort(self.src * self.num_workers + self.dst))

    @cached_property
    def indegree(self) -> np.ndarray:
        """Return the number of in-neighbors of each worker: int64 [n]."""
        return np.bincount(self.dst, minlength=self.num_workers)

    @cached_property
    def outdegree(self) -> np.ndarray:
        """Return the number of out-neighbors of each worker: int64 [n]."""
        return np.bincount(self.src, minlength=self.num_workers)

    def senders(self) -> list[np.ndarray]:
        """Return the in-neighbors of each worker, ascending: n arrays."""
        return np.split(self.src, np.cumsum(self.indegree)[:-1])

    def dense(self) -> np.ndarray:
        """Return bool [n, n], for reading: entry [i, j] says whether j sends to i."""
        A = np.zeros((self.num_workers, self.num_workers), dtype=bool)
        A[self.dst, self.src] = True
        return A


def directed(num_workers: int, source: np.ndarray, target: np.ndarray) -> Graph:
    """Return the graph with edges source[e] -> target[e], broadcast; self-loops and repetitions are dropped."""
    src, dst = (np.asarray(end, dtype=np.int64).ravel() for end in np.broadcast_arrays(source, target))
    edges = src != dst
    return Graph.of_keys(num_workers, _distinct(dst[edges] * num_workers + src[edges]))


def undirected(num_workers: int, one: np.ndarray, other: np.ndarray) -> Graph:
    """Return the graph with edges one[e] -- other[e], broadcast; self-loops and repetitions are dropped."""
    ends = [np.ravel(end) for end in np.broadcast_arrays(one, other)]
    return directed(num_workers, np.concatenate(ends), np.concatenate(ends[::-1]))


def complete(num_workers: int) -> Graph:
    """Return the complete graph."""
    n = num_workers
    keys = np.arange(n * n)
    return Graph.of_keys(n, keys[keys % (n + 1) != 0])


def union(num_workers: int, graphs: Iterable[Graph]) -> Graph:
    """Return all edges of some graphs on the same workers."""
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
    """Return the distinct numbers, ascending: `np.unique`, which is slow if many are already sorted."""
    keys = np.sort(keys)
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first]


def is_undirected(graph: Graph) -> bool:
    """Return whether every edge has its opposite."""
    return np.array_equal(graph.reverse.keys, graph.keys)


def is_connected(graph: Graph) -> bool:
    """Return whether every worker can reach every other worker (directed graphs: strong connectivity)."""
    if len(graph) < graph.num_workers - 1:
        return False
    reached = len(breadth_first(graph, 0)[0]) == graph.num_workers
    return reached and (is_undirected(graph) or len(breadth_first(graph.reverse, 0)[0]) == graph.num_workers)


def breadth_first(graph: Graph, root: int) -> tuple[np.ndarray, np.ndarray]:
    """Search breadth-first from `root` against the edges, visiting in-neighbors in increasing order.

    Returns the workers in order of discovery, int64 [those that reach the root], and each worker's parent, int64 [n]:
    -1 for workers not found, the root itself for the root.
    """
    senders = graph.senders()
    parent = np.full(graph.num_workers, -1)
    parent[root] = root
    order = [root]
    for at in order:  # grows during the loop
        found = senders[at]
        found = found[parent[found] < 0]
        parent[found] = at
        order.extend(found.tolist())
    return np.array(order), parent


def hops(graph: Graph) -> np.ndarray:
    """Return tau [n, n], for reading: the shortest path from j to i has tau[i, j] edges, -1 if there is none."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n = graph.num_workers
    starts = np.concatenate([[0], np.cumsum(graph.indegree)])
    tau = shortest_path(csr_array((np.ones(len(graph)), graph.src, starts), shape=(n, n)), unweighted=True)
    return np.where(np.isfinite(tau), tau, -1).astype(np.int64)


def sum_of_tree_hops(tree: Graph) -> int:
    """Return sum_ij tau_ij over the ordered pairs of a tree, exactly, without enumerating pairs.

    An edge that separates s workers from n - s lies on the path of s (n - s) pairs in each direction.
    """
    order, parent = breadth_first(tree, 0)
    below = [1] * tree.num_workers
    parents = parent.tolist()
    for worker in order[:0:-1].tolist():  # children before parents
        below[parents[worker]] += below[worker]
    return 2 * sum(s * (tree.num_workers - s) for s in below)  # the root separates no pair: s = n
