"""Exponential graphs: static, symmetric, and with one or a few peers per round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.graph import Graph, directed, undirected
from decentral.topology.topology import GraphTopology


def powers(base: int, below: int) -> np.ndarray:
    """Return 1, base, base^2, ... smaller than `below`, in integers, which avoids rounding errors."""
    found, power = [], 1
    while power < below:
        found.append(power)
        power *= base
    return np.array(found, dtype=np.int64)


@dataclass
class Exponential(GraphTopology):
    """Exponential graph, directed: worker i sends to i + 1, i + b, i + b^2, ... modulo n, for all hops b^k < n.

    b is `base`, 2 in the paper; the graph is the same in every round. Every entry of W, including the diagonal, is 1 /
    (1 + number of hops), which is doubly stochastic. For b = 2 and even n, |lambda_2| = 1 - 2 / (1 + ceil(log2 n)).
    Ying et al., NeurIPS 2021.
    """

    name: str = "exponential"
    base: int = setting(2, at_least=2, hint="hops are its powers", older=2)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return i -> i + b^k modulo n, for all b^k < n. Raise ConfigError unless b >= 2."""
        i, hop = np.arange(num_workers)[:, None], powers(self.base, num_workers)
        return [(directed(num_workers, i, (i + hop) % num_workers),)]


@dataclass
class SymmetricExponential(GraphTopology):
    """Symmetric exponential graph: worker i exchanges with i +- 1, i +- b, ... modulo n, for all hops b^k <= n/2.

    b is `base`. Every entry of W, including the diagonal, is 1 / (1 + number of neighbors): symmetric and doubly
    stochastic. BlueFog (Ying et al., 2021) uses b = 4.
    """

    name: str = "symmetric_exponential"
    base: int = setting(4, at_least=2, hint="hops are its powers")

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return i -- i + b^k modulo n, for all b^k <= n/2. Raise ConfigError unless b >= 2."""
        i, hop = np.arange(num_workers)[:, None], powers(self.base, num_workers // 2 + 1)
        return [(undirected(num_workers, i, (i + hop) % num_workers),)]


@dataclass
class OnePeerExponential(GraphTopology):
    """One-peer exponential graph: in round k worker i sends to i + 2^(k mod D) modulo n only, D = ceil(log2 n).

    Worker i averages its model with that of i - 2^(k mod D). Any D consecutive rounds give the exact average if and
    only if n is a power of two. Assran et al., ICML 2019; Ying et al., NeurIPS 2021.

    neighbors    number of workers to which a worker sends in a round: with m of them over the hops 2^(k mod D), 2^(k+1
                 mod D), ..., 2^(k+m-1 mod D), all weights are 1/(m + 1). The average of D rounds is exact for m = 1
                 only. Two and four neighbors are used for SGP in the WAGMA paper (Li et al. 2021)
    """

    name: str = "one_peer_exponential"
    neighbors: int = setting(1, at_least=1, older=1)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return round k: i -> i + 2^k, ..., i + 2^(k+m-1) modulo n, exponents modulo the number D of those with 2^k <
        n.

        Raises ConfigError if a worker has fewer than m different hops.
        """
        hops = (num_workers - 1).bit_length()
        if self.neighbors > max(1, hops):
            raise ConfigError(
                f"topology.neighbors={self.neighbors} exceeds the {hops} hops of num_workers={num_workers}: use at "
                f"most {max(1, hops)}."
            )
        i, period = np.arange(num_workers)[:, None], max(1, hops)
        rounds = (2 ** (np.arange(k, k + self.neighbors) % period) for k in range(period))
        return [(directed(num_workers, i, (i + hop) % num_workers),) for hop in rounds]
