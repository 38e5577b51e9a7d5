"""What a compressor's messages cost: the time to encode and decode a row on this machine, and their bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from decentral.compression.address import Address
from decentral.compression.row_layout import RowLayout
from decentral.network.payload import Payload, Sizes
from decentral.randomness import torch_generator

if TYPE_CHECKING:
    from decentral.compression.compressor import Compressor, Encoder

_LARGEST = 32_000_000
"""Coordinates that are encoded; of a larger model the first parameters are, and the rest is taken to be like them."""
_CALLS = 2
_HEARD = 8
_LENGTH_BYTES = 8


class Sent(NamedTuple):
    """A collective, its bytes as the clock wants them, how often each worker sends them."""

    name: str
    num_bytes: float
    times: float


class Coding(NamedTuple):
    """What a step adds to a gradient: seconds of encoding and decoding, and what travels."""

    work_s: float
    sent: tuple[Sent, ...] = ()

    @property
    def bytes_per_worker(self) -> float:
        """That a worker sends in a step, on average."""
        return sum(each.num_bytes * each.times for each in self.sent)


class _Others:
    """n workers, of whom one is here and others send the same: the `Collectives` of a compressor, noting what it sends.

    `heard` is how many payloads it gets to decode.
    """

    def __init__(self, n: int, heard: int) -> None:
        self.n, self.workers, self.heard = n, range(1), heard
        self.sent: list[Sent] = []

    def mean(self, x: Tensor) -> Tensor:
        self.sent.append(Sent("all_reduce", x[0].numel() * x.element_size(), 2 * (self.n - 1) / self.n))
        return x

    def allgather(self, payloads: Sequence[Payload], sizes: Sizes | None = None) -> list[Payload]:
        lengths = 0 if sizes is not None else _LENGTH_BYTES * len(payloads[0].tensors)
        self.sent.append(Sent("allgather", payloads[0].num_bytes + lengths, self.n - 1))
        return list(payloads) * self.heard

    def broadcast(self, payload: Payload | None, root: int, sizes: Sizes | None = None) -> Payload:
        assert payload is not None
        self.sent.append(Sent("broadcast", payload.num_bytes, (self.n - 1) / self.n))
        return payload


def in_means(compressor: Compressor, layout: RowLayout, num_workers: int) -> Coding:
    """The mean of all workers' rows of float32, compressed: measured with one and with several messages to decode, of
    which all others take as long. Raises ConfigError if it cannot compress such rows."""
    part, scale = _beginning(layout)
    alone = _combined(compressor, part, num_workers, 1)
    work_s, sent = alone
    heard = min(num_workers, _HEARD)
    if heard > 1 and any(each.name == "allgather" for each in sent):
        each_s = max(0.0, _combined(compressor, part, num_workers, heard)[0] - work_s) / (heard - 1)
        work_s += (num_workers - 1) * each_s
    return Coding(scale * work_s, tuple(each._replace(num_bytes=scale * each.num_bytes) for each in sent))


def in_messages(compressor: Encoder, layout: RowLayout, num_neighbors: float) -> Coding:
    """A message to so many neighbours, whose own are decoded, and one's own three times (CHOCO-SGD: two sums, and what
    neighbours know). Its bytes are not said here."""
    part, scale = _beginning(layout)
    bound, row = compressor.bound(part, 0), _row(part)
    payload = bound.encode(row, Address(0, 0))
    out = torch.zeros_like(row)
    encode_s = _least(lambda: bound.encode(row, Address(0, 0)))
    decode_s = _least(lambda: bound.add_decoded(payload, out, Address(0, 0)))
    return Coding(scale * (encode_s + (num_neighbors + 2) * decode_s))


def _combined(compressor: Compressor, layout: RowLayout, n: int, heard: int) -> Coding:
    bound, g = compressor.bound(layout, 0), _row(layout)[None]
    r, memory = bound.residual(g), bound.memory(g, n)
    seconds, others = math.inf, _Others(n, heard)
    for call in range(1 + _CALLS):
        rows, others = g.clone(), _Others(n, heard)
        began = time.perf_counter()
        _, r, memory = bound.combine(rows, r, memory, others, call * n)  # type: ignore[arg-type]
        seconds = min(seconds, time.perf_counter() - began if call else math.inf)
    return Coding(seconds, tuple(others.sent))


def _least(work: Callable[[], object]) -> float:
    seconds = math.inf
    for _ in range(_CALLS):
        began = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - began)
    return seconds


def _row(layout: RowLayout) -> Tensor:
    """Normal numbers [P]."""
    return torch.randn(layout.num_coordinates, generator=torch_generator("cpu", 0, "advice"))


def _beginning(layout: RowLayout) -> tuple[RowLayout, float]:
    """The first parameters of a layout, as many as are measured, at least one; and how many times as large it is."""
    count, total = 0, 0
    for shape in layout.shapes:
        if count and total + math.prod(shape) > _LARGEST:
            break
        count, total = count + 1, total + math.prod(shape)
    return RowLayout(layout.names[:count], layout.shapes[:count]), layout.num_coordinates / total
