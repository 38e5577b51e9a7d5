"""The search of MSTopk for a threshold, among the entries that can reach it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from decentral.compression.arithmetic.selection import as_integer, at_least, block_size, floors, where
from decentral.compression.scratch import Scratch


def moments(e: Tensor, scratch: Scratch) -> tuple[float, float]:
    """The mean and the largest of |e|, e [P]; no number if e has an entry that is none. One pass."""
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
    """The k < P indices of e [P] that MSTopk chooses, ascending; where the run begins is drawn from `generator`.

    Entries below a floor that more than k reach are not looked at: a threshold below it is known to be too low.
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
    """t1 and t2, as integers; magnitudes are those of all entries that reach `floor`, more than k."""
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
