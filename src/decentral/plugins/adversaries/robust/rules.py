"""Robust mixing of received models, some of which may be Byzantine: `robust=`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decentral.host.machine import Lazy
from decentral.network.robust import Robust
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

_TOLERANCE = 1e-12  # of sums of weights, such as those of thirds


@dataclass
class Clip(Robust):
    """ClippedGossip: no message moves a worker by more than W_ij tau.

        s_ij = min(1, tau / |m_j - y_i|)

    tau  largest distance that is not clipped

    He, Karimireddy and Jaggi (arXiv:2202.01545), with a fixed radius.
    """

    name: str = "clip"
    tau: float = setting(1.0, at_least=0)

    def shares(self, d: np.ndarray, w: np.ndarray, own: int) -> np.ndarray:
        """See `Robust`."""
        return _clipped(d, self.tau)


def _clipped(d: np.ndarray, tau: float) -> np.ndarray:
    return np.where(d > tau, tau / np.maximum(d, tau) if tau else 0.0, 1.0)


@dataclass
class Tolerant(Robust):
    """A rule for attackers of a total weight b among the neighbors of a worker.

    tolerate  number of attackers that a worker tolerates among its neighbors: b is the sum of that many largest W_ij
    weight    b itself, for every worker (null: from robust.tolerate)
    """

    name: str
    tolerate: int = setting(1, at_least=0)
    weight: float | None = setting(None, at_least=0, at_most=1)

    def ranked(self, d: np.ndarray, w: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the order by distance (ties by number), the cumulative weights in this order, and b."""
        order = np.argsort(d, kind="stable")
        b = float(np.sort(np.delete(w, own))[::-1][: self.tolerate].sum()) if self.weight is None else self.weight
        return order, np.cumsum(w[order]), b


@dataclass
class ClipHe(Tolerant):
    """ClippedGossip with the radius of its analysis, from the smallest distances.

        tau^2 = 1/b sum_{k < k*} w_k d_k^2,   k* the first of those sorted by distance (own first, at 0) with
                                              w_1 + ... + w_k* >= total - b

    He, Karimireddy and Jaggi (arXiv:2202.01545). b = 0: gossip averaging.
    """

    name: str = "clip_he"

    def shares(self, d: np.ndarray, w: np.ndarray, own: int) -> np.ndarray:
        """See `Robust`."""
        order, total, b = self.ranked(d, w, own)
        if b == 0:
            return np.ones_like(d)
        near = order[: int(np.argmax(total >= total[-1] - b - _TOLERANCE))]
        return _clipped(d, float(np.sqrt((w[near] * d[near] ** 2).sum() / b)))


@dataclass
class CSPlus(Tolerant):
    """CS+: messages beyond the nearest of total weight 1 - 2b are clipped to the largest distance among these.

        k* the first of those sorted by distance (own first, at 0) with w_1 + ... + w_k* >= total - 2b
        tau = d_k* if they are equal, else the distance before it (0 if there is none)

    Gaucher, Dieuleveut and Hendrikx, ICML 2025 (arXiv:2410.10418).
    """

    name: str = "cs_plus"

    def shares(self, d: np.ndarray, w: np.ndarray, own: int) -> np.ndarray:
        """See `Robust`."""
        order, total, b = self.ranked(d, w, own)
        wanted = total[-1] - 2 * b
        last = int(np.argmax(total >= wanted - _TOLERANCE))
        last -= abs(total[last] - wanted) > _TOLERANCE
        return _clipped(d, float(d[order[last]]) if last >= 0 else 0.0)


@dataclass
class NearestNeighbors(Tolerant):
    """NNA: weight b is moved from the farthest neighbors, going inward, to the worker itself.

    The neighbor at the margin keeps the rest of its weight. Gaucher, Dieuleveut and Hendrikx (arXiv:2410.10418),
    after Farhadkhani et al. (arXiv:2302.01772). Departure: the released code keeps the other part of the weight at the
    margin, so that with equal weights one neighbor too many is dropped.
    """

    name: str = "nna"

    def shares(self, d: np.ndarray, w: np.ndarray, own: int) -> np.ndarray:
        """See `Robust`."""
        order, total, b = self.ranked(d, w, own)
        kept = np.empty_like(d)
        kept[order] = np.clip(total[-1] - b - (total - w[order]), 0, w[order])
        return np.divide(kept, w, out=np.ones_like(d), where=w != 0)


@dataclass
class Trimmed(Robust):
    """Coordinate-wise trimmed mean of own and received models, without the f largest and f smallest; W is only a graph.

    tolerate  f; a worker with fewer than 2 f messages takes the median

    Yin et al., ICML 2018 (arXiv:1803.01498).
    """

    name: str = "trimmed"
    tolerate: int = setting(1, at_least=0)

    def mixed(self, messages: Tensor, weights: np.ndarray, own: int) -> Tensor:
        """See `Robust`."""
        f, rows = min(self.tolerate, (len(messages) - 1) // 2), list(messages)
        for k in range(f):  # bubble sort: on few rows much faster than sorting all coordinates
            up, down = range(k, len(rows) - 1 - k), reversed(range(k, len(rows) - 2 - k))
            for j in (*up, *down):
                rows[j], rows[j + 1] = torch.minimum(rows[j], rows[j + 1]), torch.maximum(rows[j], rows[j + 1])
        return torch.stack(rows[f : len(rows) - f]).mean(0)
