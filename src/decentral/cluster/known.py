"""A cluster of which every time is known: those of gradients in a table, and what links cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.cluster.cluster import VirtualCluster, WaitsFor
from decentral.cluster.compute import GradientTimes
from decentral.cluster.costs import LinkCosts
from decentral.cluster.distributions import Known
from decentral.cluster.stragglers import Stragglers


@dataclass(frozen=True)
class KnownCluster(VirtualCluster):
    """Gradient t of worker i takes `table[t, i]` seconds, and links cost this."""

    table: np.ndarray
    links: LinkCosts
    waits_for: WaitsFor = WaitsFor.neighbors
    num_parameters: int | None = None

    def check(self, num_workers: int) -> None:
        """The table has a column for each worker."""
        assert num_workers == self.table.shape[1] == self.links.num_workers

    def gradient_times(self, num_workers: int, seed: int) -> GradientTimes:
        """Those of the table, whatever the seed. Nobody straggles: what a worker's time is made of is not known."""
        return GradientTimes(Known(self.table), Stragglers().open(num_workers), num_workers, seed)

    def costs(self, num_workers: int) -> LinkCosts:
        """Those that are known."""
        return self.links
