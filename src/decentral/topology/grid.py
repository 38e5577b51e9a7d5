"""The two-dimensional grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class Grid(GraphTopology):
    """A two-dimensional mesh without wrap-around, as square as the number of workers allows.

    Worker r * columns + c sits in row r and column c. Without `rows`, the shape is the closest pair of factors of n
    with rows <= columns; a prime n gives a path.
    """

    name: str = "grid"
    rows: int | None = setting(None, at_least=1)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Neighbours in a row, and neighbours in a column; ConfigError if `rows` does not divide n."""
        place = np.arange(num_workers).reshape(self._rows(num_workers), -1)
        right, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        return [(undirected(num_workers, *right) | undirected(num_workers, *down),)]

    def _rows(self, num_workers: int) -> int:
        """The number of rows: as configured, else the largest factor of n that is not above its square root."""
        factors = [f for f in range(1, num_workers + 1) if num_workers % f == 0]
        if self.rows is None:
            return max(f for f in factors if f * f <= num_workers)
        if self.rows not in factors:
            raise ConfigError(
                f"topology.rows={self.rows} does not divide num_workers={num_workers}: "
                f"choose one of {', '.join(map(str, factors))}, or leave it out."
            )
        return self.rows
