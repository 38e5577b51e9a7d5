"""Push-sum between processes by windows: one for each piece of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decentral.network.rounds import Exchange, Terms
from decentral.network.settings import NetworkSettings
from decentral.network.windows.choose import open_window
from decentral.network.windows.edges import Edges
from decentral.topology.graph import support
from decentral.topology.schedule import Schedule


class Pushes:
    """Shares of rows [k, P] and of their weights p [k, d] that wait for their receivers; see `Network.push`.

    To be made by all processes at once. With d = 1 the rows that a call returns lie in the window: given to the next
    call, they need not be copied.
    """

    def __init__(self, settings: NetworkSettings, schedule: Schedule, layout: Sequence[range], x: Tensor) -> None:
        """`layout` are the workers of each process; x [k, P] are rows like those that will come."""
        self.pieces = schedule.slices(x.shape[-1])
        self.windows = [
            open_window(settings, _edges(schedule, h), layout, x[:, piece]) for h, piece in enumerate(self.pieces)
        ]

    def push(self, x: Tensor, p: Tensor, shares: Exchange) -> tuple[Tensor, Tensor]:
        """Leave the shares of the local workers with their receivers, then take what has been left for them.

        A share whose receiver has not taken the one before stays with its sender.
        """
        if "columns" not in shares.memo:
            shares.memo["columns"] = [_columns(terms) for terms in shares.pieces]
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


def _edges(schedule: Schedule, piece: int) -> Edges:
    """Wherever something is sent in some round."""
    rounds = range(schedule.period)
    return Edges.of(np.logical_or.reduce([support(schedule.matrices(r)[piece]) for r in rounds]))


def _columns(terms: Terms) -> list[tuple[dict[int, float], float]]:
    """For each sender j, the shares W_ij of its receivers i, and what it keeps."""
    columns: list[tuple[dict[int, float], float]] = [({}, dict(row).get(j, 0.0)) for j, row in enumerate(terms)]
    for i, row in enumerate(terms):
        for j, weight in row:
            if j != i:
                columns[j][0][i] = weight
    return columns
