"""Trees: chain, star, binary trees, and spanning trees of other topologies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decentral.errors import ConfigError
from decentral.topology.graph import Graph, breadth_first, is_connected, is_undirected, undirected
from decentral.topology.rounds import Rounds, Split
from decentral.topology.topology import GraphTopology, check_choice, graphs_of


@dataclass
class Chain(GraphTopology):
    """A path: worker i exchanges with workers i-1 and i+1, each end with one worker only."""

    name: str = "chain"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return 0 -- 1 -- ... -- n-1."""
        i = np.arange(num_workers - 1)
        return [(undirected(num_workers, i, i + 1),)]


@dataclass
class Star(GraphTopology):
    """A star: the worker `center` exchanges with all others, and they exchange with it only.

    With metropolis weights all edges and the center's diagonal entry are 1/n and a leaf's is 1 - 1/n; |lambda_2| is
    1 - 1/n for n > 2.
    """

    name: str = "star"
    center: int = field(default=0, metadata={"older": 0})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return center -- i for all i != center. Raise ConfigError if there is no such worker."""
        if not 0 <= self.center < num_workers:
            raise ConfigError(
                f"topology.center={self.center} is not a worker: with num_workers={num_workers} "
                f"use 0 to {num_workers - 1}."
            )
        i = np.arange(num_workers)
        return [(undirected(num_workers, np.full_like(i, self.center), i),)]


def binary_tree(num_workers: int) -> Graph:
    """Return a heap on the workers 1 .. n-1 with worker 0 above its root: the parent of w >= 1 is floor(w / 2)."""
    w = np.arange(1, num_workers)
    return undirected(num_workers, w, w // 2)


@dataclass
class BinaryTree(GraphTopology):
    """A binary tree: worker w >= 1 exchanges with its parent floor(w/2) and its children 2w and 2w+1.

    Worker 0 has the single neighbor 1, so the tree is a heap on 1 .. n-1 with one more leaf above its root. It exists
    for every number of workers. Vogels et al., NeurIPS 2021 (authors' code; the paper only says "binary
    tree").
    """

    name: str = "bt"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return w -- floor(w / 2) for all w >= 1."""
        return [(binary_tree(num_workers),)]


@dataclass
class DoubleBinaryTrees(GraphTopology):
    """Two binary trees for the two halves of the model: `bt`, and its mirror image w -> n-1-w.

    A worker that is internal in one tree is (for even n) a leaf in the other, so every worker sends about two models
    per step. `split` selects the coordinates of each half. contiguous: the first half on `bt` and the second on the
    mirror; interleaved: the even and the odd ones, as in the authors' code, which is the same algorithm up to a
    permutation of the coordinates, and slower (memory access with stride two). Vogels et al., NeurIPS 2021 (authors'
    code). This is not the construction of Sanders et al. that NCCL uses.
    """

    name: str = "dbt"
    split: Split = Split.contiguous

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return bt and its mirror image. Raise ConfigError for n = 1."""
        if num_workers < 2:
            raise ConfigError(
                f"topology=dbt with num_workers={num_workers} is too small: use num_workers=2 or more, or topology=bt."
            )
        tree = binary_tree(num_workers)
        mirrored = undirected(num_workers, num_workers - 1 - tree.src, num_workers - 1 - tree.dst)
        return [(tree, mirrored)]

    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` workers, with coordinates cut by `split`."""
        rounds = super().schedule(num_workers)
        rounds.split = self.split
        return rounds


@dataclass
class SpanningTree(GraphTopology):
    """The shortest-path tree of another topology (`graph`, with its own defaults) from the worker `root`.

    The tree is the union of one shortest path from the root to each worker: the one with the lexicographically smallest
    sequence of worker numbers. `path` is for graph=file. Vogels et al., NeurIPS 2021, section 5.2: the tree that
    Ethernet's spanning tree protocol finds.
    """

    name: str = "spanning_tree"
    graph: str = "social"
    root: int = 0
    path: str | None = field(default=None, metadata={"content": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, self.graph, {"path": self.path})

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the tree. Raise ConfigError if there is no such root or no spanning tree."""
        if not 0 <= self.root < num_workers:
            raise ConfigError(
                f"topology.root={self.root} is not a worker: with num_workers={num_workers} use 0 to {num_workers - 1}."
            )
        return [(shortest_path_tree(self._base(num_workers), self.root),)]

    def _base(self, num_workers: int) -> Graph:
        """Return the graph to span, after checking that it has spanning trees."""
        rounds = graphs_of(self.graph, {"path": self.path}, num_workers)
        wrong = None
        if len(rounds) > 1:
            wrong = "changes with the round"
        elif len(rounds[0]) > 1:
            wrong = f"is {len(rounds[0])} graphs"
        elif not is_undirected(rounds[0][0]):
            wrong = "is directed"
        elif not is_connected(rounds[0][0]):
            wrong = "is not connected"
        if wrong:
            raise ConfigError(
                f"topology=spanning_tree needs one connected undirected graph, but topology.graph={self.graph} {wrong} "
                f"for num_workers={num_workers}: choose another topology.graph, for example social, grid or ring."
            )
        return rounds[0][0]


def shortest_path_tree(A: Graph, root: int) -> Graph:
    """Return the union of the lexicographically smallest shortest paths from `root` in a connected undirected graph A.

    A breadth-first search that visits neighbors in increasing order keeps its queue sorted by smallest path: paths of
    equal length compare first by the parent's path, then by their last worker. So the first worker to discover another
    is the parent on its smallest path.
    """
    _, parent = breadth_first(A, root)
    return undirected(A.num_workers, np.arange(A.num_workers), parent)
