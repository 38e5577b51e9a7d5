"""Numbers that are drawn without replacement."""

from __future__ import annotations

import torch
from torch import Tensor

from decentral.compression.scratch import Scratch
from decentral.randomness import numpy_generator, torch_generator

_FEW = 20  # below this share numpy's choice remembers what was drawn, above it makes a list of all numbers


def distinct(size: int, k: int, address: tuple[int, str, int], scratch: Scratch) -> Tensor:
    """k different numbers below `size`, all subsets equally likely: [k], int64, on the CPU, in no order.

    `address` is (seed, purpose, index). The result is overwritten by the next call.
    """
    like = torch.empty(0, dtype=torch.int64)
    if k <= size // _FEW:
        drawn = numpy_generator(*address).choice(size, k, replace=False, shuffle=False)
        return scratch.take("drawn", k, like).copy_(torch.from_numpy(drawn))
    every = scratch.take("permutation", size, like)
    return torch.randperm(size, generator=torch_generator("cpu", *address), out=every)[:k]
