"""The arithmetic of the verbs on rows, in place and in blocks of columns that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BLOCK_BYTES = 8 << 20  # of scratch memory on a CPU: smaller blocks cost more calls than the cache saves
_BLOCK_BYTES_GPU = 1 << 28  # launching a kernel costs more than memory does


def blocks(num_columns: int, num_rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of range(num_columns), such that `num_rows` rows of a slice fit into the scratch memory."""
    limit = _BLOCK_BYTES if like.device.type == "cpu" else _BLOCK_BYTES_GPU
    size = max(256, limit // max(1, num_rows * like.element_size()))
    for start in range(0, num_columns, size):
        yield slice(start, min(start + size, num_columns))


def weighted_sum(terms: Sequence[tuple[Tensor, float]], out: Tensor) -> None:
    """Write the sum of weight * row over the terms, in their order, to `out`, which is none of the rows."""
    if not terms:
        out.zero_()
        return
    (row, weight), *rest = terms
    torch.mul(row, weight, out=out)
    for row, weight in rest:
        out.add_(row, alpha=weight)


def mix(x: Tensor, rows: Sequence[Sequence[tuple[int, float]]], remote: dict[int, Tensor], first: int) -> None:
    """x_i <- sum_j W_ij x_j in place, for the local rows x [k, ..., P'] and copies of remote rows [..., P'].

    `rows[i]` lists (j, W_ij) with global j; the local rows are those of worker first, ..., first + k - 1. Scratch: one
    block.
    """
    k = len(x)
    lead = x.shape[1:-1].numel()
    for columns in blocks(x.shape[-1], k * lead, x):
        block = x[..., columns]
        before = block.clone()
        for i, weights in enumerate(rows):
            terms = [(before[j - first] if 0 <= j - first < k else remote[j][..., columns], w) for j, w in weights]
            weighted_sum(terms, out=block[i])


def relay_from(y: Tensor, incoming: Sequence[Tensor], outgoing: Sequence[Tensor], rest: Tensor) -> None:
    """outgoing_j <- y + the sum of all incoming messages but the j-th, by sums from both ends.

    Nothing is ever subtracted: "everything minus what j sent" would keep an inf or nan of j's alive for ever.
    `outgoing` and `rest` (scratch, one row) overlap no input.
    """
    degree = len(incoming)
    outgoing[0].copy_(y)
    for j in range(1, degree):
        torch.add(outgoing[j - 1], incoming[j - 1], out=outgoing[j])
    for j in range(degree - 2, -1, -1):
        if j == degree - 2:
            outgoing[j].add_(incoming[degree - 1])
            continue
        torch.add(incoming[j + 2] if j == degree - 3 else rest, incoming[j + 1], out=rest)
        outgoing[j].add_(rest)


def collect_into(x: Tensor, incoming: Sequence[Tensor]) -> None:
    """Add the incoming messages to x, all rows [P']."""
    for columns in blocks(x.shape[-1], 1, x):
        block = x[columns]
        for message in incoming:
            block.add_(message[columns])


def average_rows(x: Tensor) -> None:
    """x_i <- 1/n sum_j x_j in place, for all n rows."""
    for columns in blocks(x.shape[-1], 1, x):
        block = x[..., columns]
        block.copy_(block.mean(0, keepdim=True))
