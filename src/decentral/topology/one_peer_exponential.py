"""The one-peer exponential graph, and that with a few peers in each round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.topology.graph import Graph, directed
from decentral.topology.topology import GraphTopology


@dataclass
class OnePeerExponential(GraphTopology):
    """Directed, changing: in round k worker i sends to the single worker i + 2^(k mod D) modulo n, D = ceil(log2 n).

    Worker i keeps one half and takes one half from i - 2^(k mod D). D rounds in a row, starting anywhere, give the
    exact average if and only if n is a power of two. Assran et al., ICML 2019; Ying et al., NeurIPS 2021.

    neighbors    to how many a worker sends in a round: with m of them over the hops 2^(k mod D), 2^(k+1 mod D), ...,
                 2^(k+m-1 mod D), where all weights are 1/(m + 1). The average of D rounds is exact for m = 1 only.
                 SGP with two and four neighbours in the WAGMA paper (Li et al. 2021)
    """

    name: str = "one_peer_exponential"
    neighbors: int = setting(1, at_least=1, older=1)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Round k: i -> i + 2^k, ..., i + 2^(k+m-1) modulo n, exponents modulo the number D of those with 2^k < n.

        Raises ConfigError if a worker has fewer than m different hops.
        """
        hops = (num_workers - 1).bit_length()
        if self.neighbors > max(1, hops):
            raise ConfigError(
                f"topology.neighbors={self.neighbors} is more than the {hops} hops that num_workers={num_workers} has: "
                f"use at most {max(1, hops)}."
            )
        i, period = np.arange(num_workers)[:, None], max(1, hops)
        rounds = (2 ** (np.arange(k, k + self.neighbors) % period) for k in range(period))
        return [(directed(num_workers, i, (i + hop) % num_workers),) for hop in rounds]
