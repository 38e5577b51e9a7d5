"""The binary tree of the RelaySGD authors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


def binary_tree(num_workers: int) -> Graph:
    """A heap on the workers 1 .. n-1 with worker 0 hung above its root: the parent of w >= 1 is floor(w / 2)."""
    w = np.arange(1, num_workers)
    return undirected(num_workers, w, w // 2)


@dataclass
class BinaryTree(GraphTopology):
    """A binary tree: worker w >= 1 talks to its parent floor(w/2) and to its children 2w and 2w+1.

    Worker 0 has the single neighbour 1, so the tree is a heap on 1 .. n-1 with one more leaf above its root; it
    exists for every number of workers. Vogels et al., NeurIPS 2021 (authors' code; the paper only says "binary
    tree").
    """

    name: str = "bt"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """w -- floor(w / 2) for all w >= 1."""
        return [(binary_tree(num_workers),)]
