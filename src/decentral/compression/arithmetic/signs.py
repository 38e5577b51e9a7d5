"""Signs as bits, eight to a byte."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from decentral.compression.arithmetic.selection import block_size
from decentral.compression.scratch import Scratch

_GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1, read as one number with the first byte lowest: its highest byte has the eight bits."""


def pack(e: Tensor, signs: Tensor, scratch: Scratch) -> None:
    """Bit i % 8 of signs[i // 8] <- (e_i >= 0), for e [P] and signs [ceil(P / 8)], uint8; the bits left over are 0."""
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
    """||e||_1 / P of e [P], one number; 0 for none."""
    total = e.new_zeros(())
    for block in e.split(block_size(e)):
        total += torch.abs(block, out=scratch.take("block", len(block), e)).sum()
    return total.div_(max(1, len(e)))


def add_signs(signs: Tensor, scales: Tensor, layers: list[slice], out: Tensor, weight: float, scratch: Scratch) -> None:
    """out <- out + weight s_l (1 or -1), in place, for the layers l of out [P]."""
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
    """The eight signs of each byte: [256, 8]."""
    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    return (2 * bits - 1).to(device, dtype)
