"""Top-k selection in a few cache-friendly passes over a row, in reusable memory.

Magnitudes are compared as integers: the bits of |e|, read as an integer, have the order of |e|, with infinity above all
finite numbers and NaN above infinity. So non-finite entries are never missed, whatever their sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from decentral.compression.rows import Scratch
from decentral.host.machine import Lazy
from decentral.randomness import numpy_generator, torch_generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

_INTEGERS = {8: "int64", 4: "int32", 2: "int16"}  # by bytes
_BLOCK = 1 << 17  # numbers, so that a block and its intermediates fit in the cache
_BLOCK_GPU = 1 << 24
_SAMPLE = 1 << 16  # numbers, to estimate the k-th largest entry of a longer row
_DEVIATIONS = 3  # safety margin of the estimate, in standard deviations of the sample


def as_integers(e: Tensor) -> tuple[Tensor, int]:
    """Return the bits of e [P] as integers, sharing its memory, and the mask that selects the bits of |e|."""
    bits = e.view(getattr(torch, _INTEGERS[e.dtype.itemsize]))
    return bits, torch.iinfo(bits.dtype).max


def as_integer(magnitude: float, dtype: torch.dtype) -> int:
    """Return the integer for |e| = magnitude, rounded to a number of this type."""
    return int(torch.tensor(magnitude, dtype=dtype).view(getattr(torch, _INTEGERS[dtype.itemsize])))


def block_size(e: Tensor) -> int:
    """Return how many numbers of a row to process at once."""
    return _BLOCK if e.device.type == "cpu" else _BLOCK_GPU


def at_least(e: Tensor, floor: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Return the indices of |e| >= floor, ascending [m] (int64), and their magnitudes [m], as integers like `floor`.

    One pass over e [P]. Both results are in memory of `scratch`, which the next call overwrites.
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
    """Return the indices of true entries in mask [m], ascending, int64; the next call overwrites them."""
    indices = scratch.take("where", len(mask), mask, torch.int64).view(-1, 1).resize_(0, 1)
    return torch.nonzero(mask, out=indices)[:, 0]


def largest(e: Tensor, k: int, scratch: Scratch) -> Tensor:
    """Return the indices of the k largest |e| of e [P]: [k], int64, ascending; the next call overwrites them.

    Ties go to the smaller index (on a GPU: any). NaN is largest, then infinity. Exact: a sample suggests the
    candidates, and the result is verified.
    """
    chosen = scratch.take("chosen", k, e, torch.int64)
    if k == len(e):
        return torch.arange(k, out=chosen)
    if e.device.type != "cpu":
        bits, mask = as_integers(e)
        magnitudes = torch.bitwise_and(bits, mask, out=scratch.take("magnitudes", len(e), bits))
        found = torch.topk(magnitudes, k, sorted=False).indices
        return torch.sort(found, out=(chosen, torch.empty_like(chosen)))[0]
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
    """Yield decreasing guesses below the k-th largest |e| of e [P], as integers; the last is 0."""
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
    """Return the k-th largest of integers [m]."""
    if magnitudes.is_cuda:
        return int(torch.topk(magnitudes, k, sorted=False).values.min())
    copied = scratch.take("partitioned", len(magnitudes), magnitudes).copy_(magnitudes).numpy()
    copied.partition(len(copied) - k)  # in place
    return int(copied[len(copied) - k])


def moments(e: Tensor, scratch: Scratch) -> tuple[float, float]:
    """Return the mean and the maximum of |e|, e [P]; NaN if e has a NaN. One pass."""
    total, most = 0.0, 0.0
    for block in e.split(block_size(e)):
        magnitudes = torch.abs(block, out=scratch.take("absolute", len(block), e))
        total += float(magnitudes.sum())
        highest = float(magnitudes.max())
        most = highest if highest != highest else max(most, highest)
        if most != most:
            break
    return total / len(e), most


def sampled(
    e: Tensor, k: int, moments: tuple[float, float], samplings: int, generator: np.random.Generator, scratch: Scratch
) -> Tensor:
    """Return the k < P indices of e [P] that MSTopk selects, ascending; `generator` draws the start of the run.

    Entries below a floor that more than k entries reach are skipped: a lower threshold is known to be too low.
    """
    for floor in floors(e, k, scratch):
        places, magnitudes = at_least(e, floor, scratch)
        if len(places) > k:
            break
    first, second = _thresholds(magnitudes, floor, k, (e.dtype, *moments), samplings, scratch)
    if second < floor:
        places, magnitudes = at_least(e, second, scratch)
    chosen = torch.ge(magnitudes, first, out=scratch.take("high", len(places), e, torch.bool))
    missing = k - int(chosen.sum())
    if missing < 0:  # more than k equal the largest
        chosen.zero_()
        missing = k
    if missing:
        between = torch.ge(magnitudes, second, out=scratch.take("equal", len(places), e, torch.bool))
        others = where(between.logical_and_(torch.logical_not(chosen, out=_mask(scratch, chosen))), scratch)
        start = int(generator.integers(len(others) - missing + 1))
        chosen[others[start : start + missing]] = True
    return torch.index_select(places, 0, where(chosen, scratch), out=scratch.take("chosen", k, e, torch.int64))


def _thresholds(
    magnitudes: Tensor,
    floor: int,
    k: int,
    moments: tuple[torch.dtype, float, float],
    samplings: int,
    scratch: Scratch,
) -> tuple[int, int]:
    """Return t1 and t2, as integers, from the magnitudes of all entries that reach `floor`, more than k."""
    dtype, mean, most = moments
    low, high, reached = 0.0, 1.0, 0
    first, second = as_integer(most, dtype), 0
    for _ in range(samplings):
        middle = (low + high) / 2
        threshold = as_integer(mean + middle * (most - mean), dtype)
        count = int(torch.ge(magnitudes, threshold, out=_mask(scratch, magnitudes)).sum())
        if threshold >= floor and count <= k:
            high = middle
            if count > reached:
                reached, first = count, threshold
        else:
            low, second = middle, threshold
    return first, second


def _mask(scratch: Scratch, like: Tensor) -> Tensor:
    return scratch.take("mask", len(like), like, torch.bool)


_FEW = 20  # below this share numpy's choice tracks the drawn numbers, above it lists all numbers


def distinct(size: int, k: int, address: tuple[int, str, int], scratch: Scratch) -> Tensor:
    """Draw k distinct numbers below `size`, all subsets equally likely: [k], int64, on the CPU, unordered.

    `address` is (seed, purpose, index). The next call overwrites the result.
    """
    like = torch.empty(0, dtype=torch.int64)
    if k <= size // _FEW:
        drawn = numpy_generator(*address).choice(size, k, replace=False, shuffle=False)
        return scratch.take("drawn", k, like).copy_(torch.from_numpy(drawn))
    every = scratch.take("permutation", size, like)
    return torch.randperm(size, generator=torch_generator("cpu", *address), out=every)[:k]
