"""Rows as 8-bit integers with a scale per block, and as packed signs, eight per byte."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from decentral.compression.rows import Scratch
from decentral.compression.selection import block_size
from decentral.host.machine import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

_LEVELS = 127


def quantize(
    e: Tensor, block: int, values: Tensor, scales: Tensor, generator: torch.Generator, scratch: Scratch
) -> None:
    """Write s_b = max |e| / 127 of each block to `scales`, and q = floor(e / s_b + U) to `values` [P], int8."""
    for part, blocks, width in _parts(e, block):
        x, s = e[part].view(-1, width), scales[blocks]
        y = torch.abs(x, out=scratch.take("block", x.numel(), e).view(x.shape))
        torch.amax(y, dim=1, out=s)
        s.div_(_LEVELS)
        torch.div(x, s.masked_fill(s == 0, 1).unsqueeze(1), out=y)
        y.add_(scratch.take("uniform", x.numel(), e).view(x.shape).uniform_(generator=generator))
        values[part].copy_(y.floor_().clamp_(-_LEVELS, _LEVELS).view(-1))


def add_quantized(values: Tensor, scales: Tensor, block: int, out: Tensor, weight: float, scratch: Scratch) -> None:
    """Compute out <- out + weight s_b q, in place."""
    for part, blocks, width in _parts(out, block):
        q = scratch.take("block", part.stop - part.start, out).copy_(values[part]).view(-1, width)
        out[part].view(-1, width).addcmul_(q, scales[blocks].unsqueeze(1), value=weight)


def _parts(e: Tensor, block: int) -> Iterator[tuple[slice, slice, int]]:
    """Yield groups of blocks: their position in the row, their indices, and the block length. The last is shorter."""
    full, at_once = len(e) // block, max(1, block_size(e) // block)
    for first in range(0, full, at_once):
        last = min(first + at_once, full)
        yield slice(first * block, last * block), slice(first, last), block
    if len(e) % block:
        yield slice(full * block, len(e)), slice(full, full + 1), len(e) % block


_GATHER = 0x0102040810204080
"""Multiplied by eight bytes of 0 or 1, read as one little-endian number, it collects their bits in the highest byte."""


def pack(e: Tensor, signs: Tensor, scratch: Scratch) -> None:
    """Compute bit i % 8 of signs[i // 8] <- (e_i >= 0), for e [P] and signs [ceil(P / 8)], uint8; padding bits are
    0."""
    size = block_size(e)  # a multiple of 8
    for start in range(0, len(e), size):
        block = e[start : start + size]
        whole = -(-len(block) // 8)
        bits = scratch.take("bits", 8 * whole, e, torch.bool)
        bits[len(block) :] = False
        torch.ge(block, 0, out=bits[: len(block)])
        words = bits.view(torch.int64)
        gathered = torch.mul(words, _GATHER, out=scratch.take("words", whole, words))
        signs[start // 8 : start // 8 + whole].copy_(gathered.bitwise_right_shift_(56).bitwise_and_(255))


def mean_magnitude(e: Tensor, scratch: Scratch) -> Tensor:
    """Return ||e||_1 / P of e [P], one number; 0 for an empty e."""
    total = e.new_zeros(())
    for block in e.split(block_size(e)):
        total += torch.abs(block, out=scratch.take("block", len(block), e)).sum()
    return total.div_(max(1, len(e)))


def add_signs(signs: Tensor, scales: Tensor, layers: list[slice], out: Tensor, weight: float, scratch: Scratch) -> None:
    """Compute out <- out + weight s_l (1 or -1), in place, for the layers l of out [P]."""
    size, table = block_size(out), _table(out.dtype, out.device)
    for start in range(0, len(out), size):
        block = out[start : start + size]
        packed = signs[start // 8 : (start + size) // 8]
        numbers = scratch.take("numbers", len(packed), out, torch.int32).copy_(packed)
        plus_minus = scratch.take("block", 8 * len(packed), out)
        torch.index_select(table, 0, numbers, out=plus_minus.view(-1, 8))
        for number, layer in enumerate(layers):
            first, last = max(layer.start - start, 0), min(layer.stop - start, len(block))
            if first < last:
                block[first:last].addcmul_(plus_minus[first:last], scales[number], value=weight)


@cache
def _table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the eight signs of each byte: [256, 8]."""
    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    return (2 * bits - 1).to(device, dtype)
