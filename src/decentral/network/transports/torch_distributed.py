"""Rows travel point to point over torch.distributed (gloo or nccl)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.transport import CutLink, Row, Shared, Transport


class _Posted(Shared):
    """Sends and receives that have been posted, with the buffers that they use."""

    def __init__(self, transport: TorchDistributed, slot: int, received: list[Tensor], works: list[dist.Work]) -> None:
        self.transport, self.slot, self.received, self.works = transport, slot, received, works

    def rows(self) -> list[Tensor]:
        """See `Shared`. Waits for the sends too."""
        for work in self.works:
            work.wait()
        return self.received

    def release(self) -> None:
        """See `Shared`."""
        self.transport.busy.remove(self.slot)


class TorchDistributed(Transport):
    """In every round all receives are posted first, then all sends, then everything is waited for.

    One message for each row and each process that needs it, or for each cut link. What is contiguous is sent from where
    it lies; what comes lands in buffers that are used again in the next round.
    """

    name: ClassVar[str] = "torch"

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[tuple[object, ...], Tensor] = {}
        self._spare: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._fresh: Tensor | None = None
        self.busy: set[int] = set()
        """The numbers of the sets of buffers that rows on their way use."""

    def share(self, x: Tensor, pieces: Sequence[slice], sends: Sequence[Row], receives: Sequence[Row]) -> Shared:
        """See `Transport`. `Row.worker` of a row that is sent counts from the first local one."""
        slot = next(slot for slot in range(len(self.busy) + 1) if slot not in self.busy)
        self.busy.add(slot)
        outgoing = [
            (self._whole((slot, i), x[row.worker][..., pieces[row.piece]]), row.peer, row.tag)
            for i, row in enumerate(sends)
        ]
        incoming = [
            (self._buffer("received", (slot, i), x[0][..., pieces[row.piece]]), row.peer, row.tag)
            for i, row in enumerate(receives)
        ]
        return _Posted(self, slot, [buffer for buffer, _, _ in incoming], self._post(outgoing, incoming))

    def open(self, m: Tensor, links: Sequence[CutLink]) -> tuple[Tensor, list[Tensor | None]]:
        """See `Transport`. The rows that held the messages of the step before last come back as the new ones."""
        key = m.shape, m.dtype
        fresh = self._spare.get(key)
        if fresh is None or fresh.data_ptr() == m.data_ptr():
            fresh = torch.zeros_like(m)
        self._spare[key], self._fresh = m, fresh
        return fresh, [None] * len(links)

    def deliver(self, links: Sequence[CutLink], outgoing: Sequence[Tensor]) -> None:
        """See `Transport`."""
        assert self._fresh is not None
        incoming = [(self._fresh[link.row, : link.width], link.peer, link.tag) for link in links]
        sends = [(message, link.peer, link.back_tag) for link, message in zip(links, outgoing, strict=True)]
        for work in self._post(sends, incoming):
            work.wait()
        self._fresh = None

    def total(self, x: Tensor, factor: float) -> Tensor:
        """See `Transport`: an all-reduce, not counted as messages."""
        dist.all_reduce(x)
        return x.mul_(factor)

    def _whole(self, number: tuple[int, int], row: Tensor) -> Tensor:
        """The row if it can be sent as it lies, or else a copy."""
        return row if row.is_contiguous() else self._buffer("sent", number, row).copy_(row)

    def _buffer(self, use: str, number: tuple[int, int], like: Tensor) -> Tensor:
        key = use, number, like.shape, like.dtype
        if key not in self._buffers:
            self._buffers[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._buffers[key]

    def _post(
        self, sends: Sequence[tuple[Tensor, int, int]], receives: Sequence[tuple[Tensor, int, int]]
    ) -> list[dist.Work]:
        """Both ends go through their common transfers (tensor, peer, tag) by ascending tag: nccl matches by order."""
        tag = lambda transfer: transfer[2]  # noqa: E731
        operations = [dist.P2POp(dist.irecv, row, peer, tag=tag) for row, peer, tag in sorted(receives, key=tag)]
        operations += [dist.P2POp(dist.isend, row, peer, tag=tag) for row, peer, tag in sorted(sends, key=tag)]
        for row, _, _ in sends:
            self._count(row)
        return dist.batch_isend_irecv(operations) if operations else []
