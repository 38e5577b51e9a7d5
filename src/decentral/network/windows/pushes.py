"""Push-sum between processes by windows: one for each piece of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from decentral.network.settings import NetworkSettings
from decentral.network.windows.open import open_window
from decentral.network.windows.window import Edges
from decentral.topology.delivery import Exchange
from decentral.topology.graph import union
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds


class Pushes:
    """Shares of rows [k, P] and of their weights p [k, d] that wait for their receivers; see `Network.push`.

    To be made by all processes at once. With d = 1 the rows that a call returns lie in the window: given to the next
    call, they need not be copied.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        rounds: Rounds,
        layout: Sequence[range],
        x: Tensor,
        note: Callable[[int, int, str, list[int]], object] | None = None,
    ) -> None:
        """`layout` are the workers of each process; x [k, P] are rows like those that will come."""
        self.pieces = rounds.slices(x.shape[-1])
        self.windows = [
            open_window(settings, _edges(rounds, h), layout, x[:, piece]) for h, piece in enumerate(self.pieces)
        ]
        if note is not None:  # see `ProcessNetwork.note_pushes`
            for h, window in enumerate(self.windows):
                window.note = partial(note, h)

    def push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        """Leave the shares of the local workers with their receivers, then take what has been left for them.

        A share whose receiver has not taken the one before stays with its sender.
        """
        if "columns" not in shares.memo:
            columns = [_columns(W, window.workers) for W, window in zip(shares.pieces, self.windows, strict=True)]
            shares.memo["columns"] = columns
        self._bring(x, p)
        for window, columns in zip(self.windows, shares.memo["columns"], strict=True):
            for sender in window.workers:
                window.push(sender, *columns[sender])
            for owner in window.workers:
                window.collect(owner)
        return self._fetch(x)

    def drain(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Take all that is on its way, together with the other processes. Raises what `Window.drain` raises."""
        self._bring(x, p)
        for window in self.windows:
            window.drain()
        return self._fetch(x)

    def close(self) -> None:
        """Let go of the windows."""
        for window in self.windows:
            window.close()

    @property
    def wire_bytes(self) -> int:
        """What this process has sent to others."""
        return sum(window.wire_bytes for window in self.windows)

    @property
    def wire_messages(self) -> int:
        """In how many messages."""
        return sum(window.wire_messages for window in self.windows)

    def _bring(self, x: Tensor, p: Tensor) -> None:
        for h, (window, piece) in enumerate(zip(self.windows, self.pieces, strict=True)):
            window.p.copy_(p[:, h])
            if x.data_ptr() != window.t.data_ptr():
                window.t.copy_(x[:, piece])

    def _fetch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.stack([window.p for window in self.windows], dim=1)
        if len(self.windows) == 1:
            return self.windows[0].t, p
        for window, piece in zip(self.windows, self.pieces, strict=True):
            x[:, piece] = window.t
        return x, p


def _edges(rounds: Rounds, piece: int) -> Edges:
    """Wherever something is sent in some round."""
    return Edges.of(union(rounds.num_workers, (rounds.mixing(r)[piece].graph for r in range(rounds.period))))


def _columns(W: MixingMatrix, senders: Iterable[int]) -> dict[int, tuple[dict[int, float], float]]:
    """For each of these senders j, the shares W_ij of its receivers i, and what it keeps."""
    order = np.argsort(W.src, kind="stable")
    src, receivers, weights = W.src[order], W.dst[order], W.weight[order]
    columns = {}
    for j in senders:
        entries = slice(*np.searchsorted(src, [j, j + 1]))
        shares = dict(zip(receivers[entries].tolist(), weights[entries].tolist(), strict=True))
        own = shares.pop(j, 0.0)
        columns[j] = shares, own
    return columns
