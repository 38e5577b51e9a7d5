"""The largest entries of a row, in a few passes over it that stay in the cache, and in memory that is used again.

Magnitudes are compared as integers: the bits of |e|, read as a number, are in the order of |e|, with infinity above all
finite numbers and what is no number above infinity. So such entries are never overlooked, whatever their sign.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from decentral.compression.scratch import Scratch

_INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16}
_BLOCK = 1 << 17  # numbers, so that a block and what is computed from it stay in the cache
_BLOCK_GPU = 1 << 24
_SAMPLE = 1 << 16  # of a longer row, to guess where its k-th largest entry is
_DEVIATIONS = 3  # by how many standard deviations of the sample the guess is on the safe side


def as_integers(e: Tensor) -> tuple[Tensor, int]:
    """The bits of e [P] as integers, sharing its memory, and the mask that leaves those of |e|."""
    bits = e.view(_INTEGERS[e.dtype])
    return bits, torch.iinfo(bits.dtype).max


def as_integer(magnitude: float, dtype: torch.dtype) -> int:
    """The integer for |e| = magnitude, rounded to a number of this type."""
    return int(torch.tensor(magnitude, dtype=dtype).view(_INTEGERS[dtype]))


def block_size(e: Tensor) -> int:
    """How many numbers of a row to work on at once."""
    return _BLOCK if e.device.type == "cpu" else _BLOCK_GPU


def at_least(e: Tensor, floor: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Where |e| >= floor, ascending [m] (int64), and the magnitudes there [m], as integers like `floor`.

    One pass over e [P]. Both results lie in memory of `scratch`, and are overwritten by the next call.
    """
    bits, mask = as_integers(e)
    size, found = block_size(e), 0
    places = scratch.take("places", 0, bits, torch.int64)
    magnitudes = scratch.take("magnitudes", 0, bits)
    for start in range(0, len(e), size):
        block = bits[start : start + size]
        block = torch.bitwise_and(block, mask, out=scratch.take("block", len(block), bits))
        high = torch.ge(block, floor, out=scratch.take("high", len(block), bits, torch.bool))
        here = where(high, scratch)
        total = found + len(here)
        places = scratch.take("places", total, bits, torch.int64, keep=found)
        magnitudes = scratch.take("magnitudes", total, bits, keep=found)
        torch.add(here, start, out=places[found:])
        torch.index_select(block, 0, here, out=magnitudes[found:])
        found = total
    return places, magnitudes


def where(mask: Tensor, scratch: Scratch) -> Tensor:
    """The places of what is true in mask [m], ascending, int64; overwritten by the next call."""
    found = scratch.take("where", len(mask), mask, torch.int64).view(-1, 1).resize_(0, 1)
    return torch.nonzero(mask, out=found)[:, 0]


def largest(e: Tensor, k: int, scratch: Scratch) -> Tensor:
    """Where the k entries of e [P] with the largest |e| are: [k], int64, ascending; overwritten by the next call.

    Of equal ones that with the smaller index goes first (on a GPU: any). What is no number is the largest of all, then
    infinity. Exact: a sample says which entries can be among them, and whether it was right is known.
    """
    chosen = scratch.take("chosen", k, e, torch.int64)
    if k == len(e):
        return torch.arange(k, out=chosen)
    if e.device.type != "cpu":
        return _largest_on_gpu(e, k, scratch, chosen)
    for floor in floors(e, k, scratch):
        places, magnitudes = at_least(e, floor, scratch)
        if len(places) >= k:
            break
    kth = kth_largest(magnitudes, k, scratch)
    high = torch.ge(magnitudes, kth, out=scratch.take("high", len(magnitudes), e, torch.bool))
    surplus = int(high.sum()) - k
    if surplus:
        equal = torch.eq(magnitudes, kth, out=scratch.take("equal", len(magnitudes), e, torch.bool))
        high[where(equal, scratch)[-surplus:]] = False
    return torch.index_select(places, 0, where(high, scratch), out=chosen)


def floors(e: Tensor, k: int, scratch: Scratch) -> Iterator[int]:
    """Guesses below the k-th largest |e| of e [P], as integers, each lower than the one before; the last is 0."""
    bits, mask = as_integers(e)
    if len(e) > _SAMPLE:
        some = bits[:: -(-len(e) // _SAMPLE)]
        sample = torch.bitwise_and(some, mask, out=scratch.take("sample", len(some), bits))
        share = k / len(e)
        rank = len(some) * share + _DEVIATIONS * (len(some) * share * (1 - share)) ** 0.5 + 2
        while rank < len(some):
            yield kth_largest(sample, int(rank), scratch)
            rank *= 2
    yield 0


def kth_largest(magnitudes: Tensor, k: int, scratch: Scratch) -> int:
    """The k-th largest of integers [m]."""
    if magnitudes.is_cuda:
        return int(torch.topk(magnitudes, k, sorted=False).values.min())
    copied = scratch.take("partitioned", len(magnitudes), magnitudes).copy_(magnitudes).numpy()
    copied.partition(len(copied) - k)  # in place
    return int(copied[len(copied) - k])


def _largest_on_gpu(e: Tensor, k: int, scratch: Scratch, chosen: Tensor) -> Tensor:
    bits, mask = as_integers(e)
    magnitudes = torch.bitwise_and(bits, mask, out=scratch.take("magnitudes", len(e), bits))
    return torch.sort(torch.topk(magnitudes, k, sorted=False).indices, out=(chosen, torch.empty_like(chosen)))[0]
