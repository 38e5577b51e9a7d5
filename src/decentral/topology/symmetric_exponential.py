"""The symmetric exponential graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.settings import setting
from decentral.topology.exponential import powers
from decentral.topology.graph import Graph, undirected
from decentral.topology.topology import GraphTopology


@dataclass
class SymmetricExponential(GraphTopology):
    """Worker i talks to the workers i +- 1, i +- b, i +- b^2, ... modulo n, all hops b^k <= n/2; b is `base`.

    Every entry of W, the diagonal too, is 1 / (1 + number of neighbours): symmetric and doubly stochastic. BlueFog
    (Ying et al., 2021) has it with b = 4.
    """

    name: str = "symmetric_exponential"
    base: int = setting(4, at_least=2, hint="since hops are its powers")

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """i -- i + b^k modulo n, for all b^k <= n/2; ConfigError unless b >= 2."""
        i, hop = np.arange(num_workers)[:, None], powers(self.base, num_workers // 2 + 1)
        return [(undirected(num_workers, i, (i + hop) % num_workers),)]
