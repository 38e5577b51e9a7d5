"""What a worker sends instead of a dense row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Sizes = dict[str, tuple[torch.dtype, int]]
"""Of a payload: for each of its tensors, by name and in order, its type and how many numbers it has."""

_LENGTH_BYTES = 8


class Payload(NamedTuple):
    """Named one-dimensional tensors, whose lengths may change from step to step: values, indices, scales."""

    tensors: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """How many bytes its numbers take."""
        return sum(each.numel() * each.element_size() for each in self.tensors.values())

    @property
    def sizes(self) -> Sizes:
        """Types and lengths of its tensors."""
        return {name: (each.dtype, each.numel()) for name, each in self.tensors.items()}

    @property
    def parts(self) -> list[Tensor]:
        """Its tensors in the order in which they travel: those of wide numbers first, so that all lie aligned."""
        return [self.tensors[name] for name in _order(self.sizes)]


class Known(NamedTuple):
    """What the payloads of a verb look like, known to everybody by now; whether somebody had to say so."""

    each: Sequence[Sizes]
    lengths_travel: bool

    @property
    def num_bytes(self) -> np.ndarray:
        """Of the numbers of each payload: int64."""
        if self.lengths_travel:
            return np.array([bytes_of(sizes) for sizes in self.each], dtype=np.int64)
        return np.full(len(self.each), bytes_of(self.each[0]))

    @property
    def length_bytes(self) -> int:
        """What the lengths add to each message."""
        return _LENGTH_BYTES * len(self.each[0]) if self.lengths_travel else 0


def bytes_of(sizes: Sizes) -> int:
    """How many bytes the numbers of such a payload take."""
    return sum(length * dtype.itemsize for dtype, length in sizes.values())


def unpacked(flat: Tensor, sizes: Sizes) -> Payload:
    """The payload whose `parts` lie in `flat`, uint8 [bytes_of(sizes)], one after the other: views of it."""
    found, start = {}, 0
    for name in _order(sizes):
        dtype, length = sizes[name]
        end = start + length * dtype.itemsize
        found[name], start = flat[start:end].view(dtype), end
    return Payload({name: found[name] for name in sizes})


def check_alike(payloads: Sequence[Payload], sizes: Sizes | None) -> None:
    """Refuse payloads that have not the same names and types, or, where `sizes` are given, are not as they say.

    Raises ValueError, before anything is sent.
    """
    for payload in payloads:
        if any(each.dim() != 1 for each in payload.tensors.values()):
            raise ValueError("the tensors of a payload have one dimension")
        if sizes is not None and (payload.sizes != sizes or list(payload.sizes) != list(sizes)):
            raise ValueError(f"a payload is {payload.sizes}, but all were said to be {sizes}")
    if len({tuple((name, each.dtype) for name, each in payload.tensors.items()) for payload in payloads}) > 1:
        raise ValueError("the payloads of a verb have tensors of the same names and types")


def _order(sizes: Sizes) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name][0].itemsize)
