"""Point-to-point transport over torch.distributed (gloo or nccl)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.posting import Late, Limits, Message, Work, as_bytes, begin_sum, post, wait
from decentral.network.transports.transport import (
    CPU,
    Buffer,
    CutEdge,
    Expected,
    Transport,
    Underway,
    aligned,
    grown,
)

_EXCHANGE = -1
"""The buffer set of exchanges, besides those of rows."""
_BUFFER_TAG = 1 << 21  # distinct from the tags of rows and windows


class _Posted(Underway):
    """Posted sends and receives, in one of the transport's buffer sets."""

    def __init__(self, transport: TorchDistributed, slot: int, received: list[Tensor], works: list[Work]) -> None:
        self.transport, self.slot, self.received, self.works = transport, slot, received, works

    def wait(self) -> list[Tensor]:
        """See `Underway`. Also waits for the sends."""
        self.transport.wait(self.works)
        return self.received

    def release(self) -> None:
        """See `Underway`."""
        self.transport.busy.remove(self.slot)


class TorchDistributed(Transport):
    """Transport that posts all receives of a round first, then all sends, then waits for everything.

    One message for each row and each process that needs it, or for each cut edge. Contiguous data is sent in place;
    received data goes to reusable buffers.
    """

    name: ClassVar[str] = "torch"

    limits_totals: ClassVar[bool] = False

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._spare: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._fresh: Tensor | None = None
        self._flat: dict[tuple[int, str], Tensor] = {}
        self._going: list[Work] = []
        self._waited_s = 0.0
        self.busy: set[int] = set()
        """The indices of the buffer sets used by rows in flight."""

    @property
    def waited_s(self) -> float:
        """See `Transport`; includes message transfer and whole all-reduces."""
        return self._waited_s

    def begin(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        room: tuple[int, int],
        device: torch.device = CPU,
        note: int = 0,
        what: str = "",
    ) -> Underway:
        """See `Transport`."""
        slot = next(slot for slot in range(len(self.busy) + 1) if slot not in self.busy)
        self.busy.add(slot)
        sends, receives = self._messages(slot, buffers, expected, device, note)
        return _Posted(self, slot, [message.values for message in receives], self._go(sends, receives))

    def open(self, m: Tensor, edges: Sequence[CutEdge]) -> tuple[Tensor, list[Tensor | None]]:
        """See `Transport`. Reuses the rows with the messages of the step before last."""
        key = m.shape, m.dtype
        fresh = self._spare.get(key)
        if fresh is None or fresh.data_ptr() == m.data_ptr():
            fresh = torch.zeros_like(m)
        self._spare[key], self._fresh = m, fresh
        return fresh, [None] * len(edges)

    def deliver(self, edges: Sequence[CutEdge], outgoing: Sequence[Tensor]) -> None:
        """See `Transport`."""
        assert self._fresh is not None
        incoming = [Message(self._fresh[edge.row, : edge.width], edge.peer, edge.tag) for edge in edges]
        sends = [Message(message, edge.peer, edge.back_tag) for edge, message in zip(edges, outgoing, strict=True)]
        self.count(len(sends), sum(message.values.nbytes for message in sends))
        self.wait(self._go(sends, incoming))
        self._fresh = None

    def total(self, x: Tensor, factor: float) -> Tensor:
        """See `Transport`: an all-reduce, not counted as messages."""
        began = time.perf_counter()
        work, total, down = begin_sum(x, dist.get_world_size())
        work.wait()
        self._waited_s += time.perf_counter() - began
        return x.copy_(total.mul_(factor / down))

    def reserve(self, num_bytes: int, num_buffers: int = 1) -> None:
        """See `Transport`; each process manages its own memory."""

    def exchange(
        self,
        buffers: Sequence[Buffer],
        expected: Sequence[Expected],
        device: torch.device = CPU,
        unchanged: bool = False,
    ) -> list[Tensor]:
        """See `Transport`. A buffer of one part is sent in place, of several from a copy.

        Received data is readable until the next exchange that receives.
        """
        sends, receives = self._messages(_EXCHANGE, buffers, expected, device)
        if unchanged and device.type == "cpu" and all(map(_lies, buffers)):
            coming = self._go([], receives)
            self._going += self._go(sends, [])
            self.wait(coming)
        else:
            self.wait(self._go(sends, receives))
        return [message.values for message in receives]

    def done(self) -> None:
        """See `Transport`."""
        self.wait(self._going)
        self._going = []

    def _messages(
        self, slot: int, buffers: Sequence[Buffer], expected: Sequence[Expected], device: torch.device, note: int = 0
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages to send and receive, in this buffer set unless they can be used in place."""
        packed = [buffer for buffer in buffers if not _lies(buffer)]
        copies = iter(self._cut((slot, "packed"), [buffer.num_bytes for buffer in packed], device))
        spare = iter(self._cut((slot, "came"), [each.num_bytes for each in expected if each.place is None], device))
        sends = []
        for buffer in buffers:
            values = as_bytes(buffer.parts[0]) if _lies(buffer) else next(copies)
            if not _lies(buffer):
                buffer.pack(values)
            sends += [Message(values, peer, _BUFFER_TAG + buffer.number ^ note) for peer in buffer.peers]
        receives = [
            Message(next(spare) if each.place is None else each.place, each.peer, _BUFFER_TAG + each.number ^ note)
            for each in expected
        ]
        return sends, receives

    def _cut(self, use: tuple[int, str], lengths: Sequence[int], device: torch.device) -> list[Tensor]:
        """Return tensors of these lengths in reusable, growing memory."""
        total = sum(map(aligned, lengths))
        if use not in self._flat or len(self._flat[use]) < total or self._flat[use].device != device:
            size = grown(total) if use[0] == _EXCHANGE else total  # rows keep their size
            self._flat[use] = torch.empty(size, dtype=torch.uint8, device=device)
        found, start = [], 0
        for length in lengths:
            found.append(self._flat[use][start : start + length])
            start += aligned(length)
        return found

    def wait(self, works: Sequence[Work]) -> None:
        """Wait until all of them are finished."""
        began = time.perf_counter()
        wait(works)
        self._waited_s += time.perf_counter() - began

    def _go(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[Work]:
        if self.limiter is None:
            return post(sends, receives)
        works: list[Work] = [Late(self.limiter, message) for message in sends if message.values.numel()]
        return [*post([], receives), *works]


def _lies(buffer: Buffer) -> bool:
    """Return whether it can be sent in place."""
    return len(buffer.parts) == 1 and buffer.parts[0].is_contiguous()
