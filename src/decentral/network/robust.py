"""The interface of robust mixing (`robust=`), and mixing among attackers."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.host.machine import Lazy
from decentral.network.attacks import Attack, Seen
from decentral.settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.topology.mixing_matrix import MixingMatrix
else:
    torch = Lazy("torch")


class Robust(Settings, ABC, where="robust"):
    """A data-dependent row of W, computed by the receiver from its messages:

        x_i <- y_i + sum_j W_ij s_ij (m_j - y_i)

    with j's message m_j (y_j if it is honest) and s_ij from 0 to 1, from the distances |m_j - y_i|.
    """

    name: str

    def mixed(self, messages: Tensor, weights: np.ndarray, own: int) -> Tensor:
        """Return x_i [P] from m_j [r, P] and W_ij [r] of i and its neighbors, workers ascending; row `own` is y_i."""
        y = messages[own]
        v = messages - y
        distances = torch.linalg.vector_norm(v, dim=1, dtype=torch.float64).cpu().numpy()
        return y + torch.from_numpy(weights * self.shares(distances, weights, own)).to(v) @ v

    def shares(self, d: np.ndarray, w: np.ndarray, own: int) -> np.ndarray:
        """Return s_ij [r] from |m_j - y_i| [r] and W_ij [r]."""
        return np.ones_like(d)


@dataclass
class PlainMixing(Robust):
    """Gossip averaging, which trusts every message: s_ij = 1."""

    name: str = "none"


class Adversaries(NamedTuple):
    """The attackers' messages and the receivers' robust mixing."""

    rule: Robust
    attack: Attack
    attackers: frozenset[int]
    """The workers that send other messages than their models."""
    seed: int

    def combine(self, round: int, x: Tensor, others: dict[int, Tensor], W: MixingMatrix, first: int) -> None:
        """Mix the rows x [k, P] of workers first, first + 1, ... in place with the received rows of others.

        The receiver computes an attacker's message, since it has everything that the attack depends on.
        """
        rows = others | {first + place: row for place, row in enumerate(x)}
        mixed = []
        for i in range(first, first + len(x)):
            weights = {j: w for j, w in sorted({i: 0.0, **dict(W.row(i))}.items()) if w or j == i}
            seen = Seen(i, rows, weights, self.attackers, W.num_workers, self.seed, round)
            lies = self.attackers - {i}
            messages = [self.attack.message(j, seen) if j in lies else rows[j] for j in weights]
            heard = torch.stack(messages), np.array([*weights.values()])
            mixed.append(self.rule.mixed(*heard, [*weights].index(i)))
        torch.stack(mixed, out=x)
