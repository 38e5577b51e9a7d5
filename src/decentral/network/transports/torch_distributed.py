"""Rows travel point to point over torch.distributed (gloo or nccl)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.network.transports.transport import CutLink, Row, Transport


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

    def share(self, x: Tensor, pieces: Sequence[slice], sends: Sequence[Row], receives: Sequence[Row]) -> list[Tensor]:
        """See `Transport`. `Row.worker` of a row that is sent counts from the first local one."""
        outgoing = [
            (self._whole(i, x[row.worker][..., pieces[row.piece]]), row.peer, row.tag) for i, row in enumerate(sends)
        ]
        incoming = [
            (self._buffer("received", i, x[0][..., pieces[row.piece]]), row.peer, row.tag)
            for i, row in enumerate(receives)
        ]
        self._transfer(outgoing, incoming)
        return [buffer for buffer, _, _ in incoming]

    def release(self) -> None:
        """Nothing to do: what was received is a copy."""

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
        self._transfer(sends, incoming)
        self._fresh = None

    def total(self, x: Tensor, factor: float) -> Tensor:
        """See `Transport`: an all-reduce, not counted as messages."""
        dist.all_reduce(x)
        return x.mul_(factor)

    def _whole(self, number: int, row: Tensor) -> Tensor:
        """The row if it can be sent as it lies, or else a copy."""
        return row if row.is_contiguous() else self._buffer("sent", number, row).copy_(row)

    def _buffer(self, use: str, number: int, like: Tensor) -> Tensor:
        key = use, number, like.shape, like.dtype
        if key not in self._buffers:
            self._buffers[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._buffers[key]

    def _transfer(self, sends: Sequence[tuple[Tensor, int, int]], receives: Sequence[tuple[Tensor, int, int]]) -> None:
        """Both ends go through their common transfers (tensor, peer, tag) by ascending tag: nccl matches by order."""
        tag = lambda transfer: transfer[2]  # noqa: E731
        operations = [dist.P2POp(dist.irecv, row, peer, tag=tag) for row, peer, tag in sorted(receives, key=tag)]
        operations += [dist.P2POp(dist.isend, row, peer, tag=tag) for row, peer, tag in sorted(sends, key=tag)]
        for row, _, _ in sends:
            self._count(row)
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
