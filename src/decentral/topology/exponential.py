"""The static exponential graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.settings import setting
from decentral.topology.graph import Graph, directed
from decentral.topology.topology import GraphTopology


def powers(base: int, below: int) -> np.ndarray:
    """1, base, base^2, ... as far as they are smaller than `below`: integers, so none is missed by rounding."""
    found, power = [], 1
    while power < below:
        found.append(power)
        power *= base
    return np.array(found, dtype=np.int64)


@dataclass
class Exponential(GraphTopology):
    """Directed: worker i sends to the workers i + 1, i + b, i + b^2, ... modulo n, all hops b^k < n in every round.

    b is `base`, 2 in the paper. Every entry of W, the diagonal too, is 1 / (1 + number of hops), which is doubly
    stochastic. For b = 2 and even n, |lambda_2| = 1 - 2 / (1 + ceil(log2 n)). Ying et al., NeurIPS 2021.
    """

    name: str = "exponential"
    base: int = setting(2, at_least=2, hint="since hops are its powers", older=2)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """i -> i + b^k modulo n, for all b^k < n; ConfigError unless b >= 2."""
        i, hop = np.arange(num_workers)[:, None], powers(self.base, num_workers)
        return [(directed(num_workers, i, (i + hop) % num_workers),)]
