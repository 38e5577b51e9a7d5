"""A cluster of which every time is known: those of gradients in a table, and what links cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.cluster.cluster import VirtualCluster, WaitsFor
from decentral.cluster.compute import GradientTimes
from decentral.cluster.costs import LinkCosts


class KnownTimes(GradientTimes):
    """Gradient t of worker i takes `table[t, i]` seconds; after the last line the table begins again."""

    def __init__(self, table: np.ndarray) -> None:
        """`table`: float64 [T, n], T at least 1."""
        self.num_workers = table.shape[1]
        self.passes = 0
        self._table = table

    def seconds(self, first: int, last: int) -> np.ndarray:
        """See `GradientTimes`."""
        found: np.ndarray = self._table[np.arange(first, last) % len(self._table)]
        return found

    def delays(self, first: int, last: int) -> np.ndarray:
        """Nobody straggles: what a worker's time is made of is not known."""
        return np.zeros((last - first, self.num_workers))


@dataclass(frozen=True)
class KnownCluster(VirtualCluster):
    """These times, and these costs of links."""

    times: KnownTimes
    links: LinkCosts
    waits_for: WaitsFor = WaitsFor.neighbors
    num_parameters: int | None = None

    def check(self, num_workers: int) -> None:
        """The table has a column for each worker."""
        assert num_workers == self.times.num_workers == self.links.num_workers

    def gradient_times(self, num_workers: int, seed: int) -> KnownTimes:
        """Those of the table, whatever the seed."""
        return self.times

    def costs(self, num_workers: int) -> LinkCosts:
        """Those that are known."""
        return self.links
