"""What a window of one's own is made of: a tensor, and who writes to whom."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.settings import Carrier
from decentral.network.windows.edges import Edges
from decentral.peers.peers import Peers
from decentral.topology.graph import support


def check(t: object, transport: object) -> None:
    """ConfigError for what no window can be made of."""
    if not isinstance(t, Tensor) or t.layout is not torch.strided:
        found = f"a tensor of layout {t.layout}" if isinstance(t, Tensor) else f"{type(t).__name__}"
        raise ConfigError(f"a window takes a dense tensor, not {found}.")
    if not torch.is_floating_point(t):
        raise ConfigError(f"a window takes a floating-point tensor, not one of {t.dtype}: convert it first.")
    if transport not in list(Carrier.__members__):
        raise ConfigError(f"transport={transport!r} does not exist: use auto, shared_memory or torch.")


def edges_of(peers: Peers) -> list[tuple[int, int]]:
    """(source, destination) wherever some round has an edge."""
    rounds = range(peers.schedule.period)
    union = np.logical_or.reduce([support(W) for r in rounds for W in peers.schedule.matrices(r)])
    return sorted((int(j), int(i)) for i, j in np.argwhere(union))


def weights_of(peers: Peers, edges: Edges) -> tuple[float, dict[int, float]] | None:
    """W_ii and the W_ij of this rank i, for a topology with one matrix."""
    if peers.schedule.period > 1 or peers.schedule.num_pieces > 1:
        return None
    row = peers.schedule.matrices(0)[0][peers.rank]
    return float(row[peers.rank]), {j: float(row[j]) for j in edges.senders(peers.rank)}


def pairs(edges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The edges that a caller gives; ConfigError if they are no edges between ranks."""
    try:
        named = sorted({(int(j), int(i)) for j, i in edges})
    except (TypeError, ValueError, OverflowError):
        raise ConfigError("edges has to be pairs (source, destination) of ranks, such as [(0, 1), (1, 0)].") from None
    wrong = [(j, i) for j, i in named if i == j or not (0 <= i < size and 0 <= j < size)]
    if wrong:
        raise ConfigError(
            f"edges has {wrong[0]}, but an edge leads from one of the ranks 0 to {size - 1} to another one."
        )
    return named
