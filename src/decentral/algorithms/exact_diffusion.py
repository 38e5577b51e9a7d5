"""Exact diffusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decentral.algorithms.d2 import D2
from decentral.algorithms.features import Feature
from decentral.topology.rounds import Need


@dataclass
class ExactDiffusion(D2):
    """Exact diffusion: D2 with the lazy matrix (W + I) / 2, stable on every undirected graph.

        x^{t+1} = (W + I)/2 (x^t + u^t + c^t)
        c^{t+1} = x^{t+1} - x^t - u^t                        c^0 = 0: a correction here

    Yuan et al., 2019 (arXiv:1702.05122); the RelaySum paper's Figure 3 uses it on the social network, where D2
    diverges. It needs a symmetric, static W. Lost messages, local steps (LED, ProxSkip with chi = 1) and all settings:
    as D2.
    """

    name: str = "exact_diffusion"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.static, Need.symmetric, Need.doubly_stochastic, Need.connected})
    supports = D2.supports - {Feature.plain_sgd}
    lazy: ClassVar[bool] = True
