"""The static exponential graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import directed
from decentral.topology.topology import GraphTopology


@dataclass
class Exponential(GraphTopology):
    """Directed: worker i sends to the workers i + 1, i + 2, i + 4, ... modulo n, all hops 2^k < n in every round.

    Every entry of W, the diagonal too, is 1 / (1 + number of hops), which is doubly stochastic. Ying et al., NeurIPS
    2021.
    """

    name: str = "exponential"

    def graphs(self, num_workers: int) -> list[tuple[np.ndarray, ...]]:
        """i -> i + 2^k modulo n, for all 2^k < n."""
        i, hop = np.arange(num_workers)[:, None], 1 << np.arange((num_workers - 1).bit_length())
        return [(directed(num_workers, i, (i + hop) % num_workers),)]
