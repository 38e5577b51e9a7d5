"""The arithmetic of the verbs on rows, in place and in blocks of columns that stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from decentral.topology.mixing_matrix import MixingMatrix

_BLOCK_BYTES = 8 << 20  # of a block of rows on a CPU: for smaller ones, calls cost more than the cache saves
_LEAST_COLUMNS = 1 << 14  # of a block: with fewer, calls take longer than what they do, however many rows there are
_BLOCK_BYTES_GPU = 1 << 28  # launching a kernel costs more than memory does


class Scratch:
    """Memory for one block that is used again in every step."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def rows(self, like: Tensor, *shape: int) -> Tensor:
        """A tensor of this shape, with whatever is in it; what was taken before is overwritten."""
        key, size = (like.device, like.dtype), math.prod(shape)
        if key not in self._memory or len(self._memory[key]) < size:
            self._memory[key] = like.new_empty(size)
        return self._memory[key][:size].view(shape)

    def copy(self, block: Tensor) -> Tensor:
        """The block as it is now."""
        return self.rows(block, *block.shape).copy_(block)


def blocks(num_columns: int, num_rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of range(num_columns), such that `num_rows` rows of a slice stay in the cache, unless there are many."""
    limit = _BLOCK_BYTES if like.device.type == "cpu" else _BLOCK_BYTES_GPU
    size = max(_LEAST_COLUMNS, limit // max(1, num_rows * like.element_size()))
    for start in range(0, num_columns, size):
        yield slice(start, min(start + size, num_columns))


def weighted_sum(terms: Sequence[tuple[Tensor, float]], out: Tensor) -> None:
    """Write the sum of weight * row over the terms, in order, to `out`, which is no row but possibly the first."""
    if not terms:
        out.zero_()
        return
    (row, weight), *rest = terms
    if weight != 1 or row.data_ptr() != out.data_ptr():
        torch.mul(row, weight, out=out)
    for row, weight in rest:
        out.add_(row, alpha=weight)


class Terms(NamedTuple):
    """What the rows of some workers take."""

    first: int  # of the workers, which are consecutive
    rows: list[list[tuple[int, float]]]  # for each: (j, W_ij) of its entries, its own first, then j ascending
    apart: bool  # whether they take nothing from each other

    @classmethod
    def of(cls, W: MixingMatrix, workers: range) -> Terms:
        """From a matrix."""
        rows = [sorted(W.row(i), key=lambda term: term[0] != i) for i in workers]
        apart = all(j == i or j not in workers for i, row in zip(workers, rows, strict=True) for j, _ in row)
        return cls(workers.start, rows, apart)


def mix(x: Tensor, terms: Terms, remote: dict[int, Tensor], scratch: Scratch) -> None:
    """x_i <- sum_j W_ij x_j in place, for the local rows x [k, ..., P'] and copies of remote rows [..., P'].

    With d terms a row takes 3 d - 1 passes, and 2 more if local rows are mixed with each other.
    """
    here = range(terms.first, terms.first + len(x))
    for columns in blocks(x.shape[-1], 2 * x[..., :1].numel(), x):
        block = x[..., columns]
        before = dict(zip(here, (block if terms.apart else scratch.copy(block)).unbind(0), strict=True))
        before |= {j: row[..., columns] for j, row in remote.items()}
        for out, weights in zip(block.unbind(0), terms.rows, strict=True):
            weighted_sum([(before[j], weight) for j, weight in weights], out)


@cache
def places(degree: int) -> tuple[int, ...]:
    """Where `relay_from` may write outgoing message j if it goes in place: over incoming message places[j]."""
    if degree <= 2:
        return tuple(range(degree))[::-1]
    half = degree // 2
    return *places(half), *(half + place for place in places(degree - half))


def relay_from(
    y: Tensor, incoming: Sequence[Tensor], outgoing: Sequence[Tensor], scratch: Sequence[Tensor] | Tensor
) -> None:
    """outgoing_j <- y + the sum of all incoming messages but the j-th, by halves: 3 d log2(d) passes for degree d.

    Nothing is ever subtracted: "everything minus what j sent" would keep an inf or nan of j's alive for ever.
    Outgoing message j may lie where incoming message places(d)[j] is, or where y is if it is the only one. `scratch`
    has `scratch_rows(d)` rows.
    """
    if len(incoming) == 1:
        if outgoing[0].data_ptr() != y.data_ptr():
            outgoing[0].copy_(y)
    elif len(incoming) == 2:
        torch.add(y, incoming[1], out=outgoing[0])
        torch.add(y, incoming[0], out=outgoing[1])
    else:
        half = len(incoming) // 2
        left, right = incoming[:half], incoming[half:]
        with_left = sum_of(y, left, scratch[0])
        with_right = sum_of(y, right, outgoing[0] if half == 1 else scratch[1])
        relay_from(with_right, left, outgoing[:half], scratch[2:])
        relay_from(with_left, right, outgoing[half:], scratch[2:])


def scratch_rows(degree: int) -> int:
    """How many rows `relay_from` needs for so many messages."""
    return 0 if degree <= 2 else 2 + scratch_rows(degree - degree // 2)


def sum_of(y: Tensor, messages: Sequence[Tensor], out: Tensor) -> Tensor:
    """y + the sum of the messages. `out` may be where none of them is."""
    torch.add(y, messages[0], out=out)
    for message in messages[1:]:
        out.add_(message)
    return out


def total_rows(x: Tensor) -> None:
    """x_0 <- sum_i x_i, in place."""
    for columns in blocks(x.shape[-1], len(x), x):
        for row in x[1:, ..., columns]:
            x[0, ..., columns].add_(row)


def average_rows(x: Tensor) -> None:
    """x_i <- 1/n sum_j x_j in place, for all n rows."""
    for columns in blocks(x.shape[-1], 1, x):
        block = x[..., columns]
        block.copy_(block.mean(0, keepdim=True))
