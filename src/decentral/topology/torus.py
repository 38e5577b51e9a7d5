"""The two-dimensional torus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import Graph, undirected
from decentral.topology.grid import Grid


@dataclass
class Torus(Grid):
    """A two-dimensional mesh with wrap-around, as square as the number of workers allows.

    Same places and shape as `grid`, and an edge from the end of every row and column to its beginning. It is a simple
    graph: where a side has length 1 or 2 no loops or double edges arise, so a prime n gives a ring.
    """

    name: str = "torus"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Neighbours in a row and in a column, modulo their lengths."""
        place = np.arange(num_workers).reshape(self._rows(num_workers), -1)
        right, down = np.roll(place, -1, axis=1), np.roll(place, -1, axis=0)
        return [(undirected(num_workers, place, right) | undirected(num_workers, place, down),)]
