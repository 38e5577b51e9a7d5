"""The one-peer exponential graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.topology.graph import Graph, directed
from decentral.topology.topology import GraphTopology


@dataclass
class OnePeerExponential(GraphTopology):
    """Directed, changing: in round k worker i sends to the single worker i + 2^(k mod D) modulo n, D = ceil(log2 n).

    Worker i keeps one half and takes one half from i - 2^(k mod D). D rounds in a row, starting anywhere, give the
    exact average if and only if n is a power of two. Assran et al., ICML 2019; Ying et al., NeurIPS 2021.
    """

    name: str = "one_peer_exponential"

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Round k: i -> i + 2^k modulo n, for all 2^k < n."""
        i, period = np.arange(num_workers), max(1, (num_workers - 1).bit_length())
        return [(directed(num_workers, i, (i + 2**k) % num_workers),) for k in range(period)]
