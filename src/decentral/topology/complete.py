"""The complete graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.topology import GraphTopology


@dataclass
class Complete(GraphTopology):
    """Every worker talks to every other one: one round of mixing is the exact average."""

    name: str = "complete"

    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """i -- j for all i != j."""
        return [(~np.eye(num_workers, dtype=bool),)]
