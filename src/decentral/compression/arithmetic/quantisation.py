"""Rows as integers of 8 bits with a scale for each block, some blocks at a time in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from decentral.compression.arithmetic.selection import block_size
from decentral.compression.scratch import Scratch

_LEVELS = 127


def quantise(
    e: Tensor, block: int, values: Tensor, scales: Tensor, generator: torch.Generator, scratch: Scratch
) -> None:
    """s_b = max |e| / 127 of each block to `scales`, q = floor(e / s_b + U) to `values` [P], int8."""
    for part, blocks, width in _parts(e, block):
        x, s = e[part].view(-1, width), scales[blocks]
        y = torch.abs(x, out=scratch.take("block", x.numel(), e).view(x.shape))
        torch.amax(y, dim=1, out=s)
        s.div_(_LEVELS)
        torch.div(x, s.masked_fill(s == 0, 1).unsqueeze(1), out=y)
        y.add_(scratch.take("uniform", x.numel(), e).view(x.shape).uniform_(generator=generator))
        values[part].copy_(y.floor_().clamp_(-_LEVELS, _LEVELS).view(-1))


def add_quantised(values: Tensor, scales: Tensor, block: int, out: Tensor, weight: float, scratch: Scratch) -> None:
    """out <- out + weight s_b q, in place."""
    for part, blocks, width in _parts(out, block):
        q = scratch.take("block", part.stop - part.start, out).copy_(values[part]).view(-1, width)
        out[part].view(-1, width).addcmul_(q, scales[blocks].unsqueeze(1), value=weight)


def _parts(e: Tensor, block: int) -> Iterator[tuple[slice, slice, int]]:
    """Some blocks at a time: where they lie in the row, their numbers, and how long each is. The last is shorter."""
    full, at_once = len(e) // block, max(1, block_size(e) // block)
    for first in range(0, full, at_once):
        last = min(first + at_once, full)
        yield slice(first * block, last * block), slice(first, last), block
    if len(e) % block:
        yield slice(full * block, len(e)), slice(full, full + 1), len(e) % block
