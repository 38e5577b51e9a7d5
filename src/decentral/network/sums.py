"""A Triton kernel that sums rows on a GPU, reading and writing each number once.

With several torch calls per worker or edge, mixing over a ring takes ten passes over memory instead of two, and
relaying over double trees takes hundreds of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.network import kernels

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA, or not on Linux
    triton = None

_MOST_ROWS, _MOST_TERMS = 128, 16
_TILE = 8192  # numbers per kernel program


def suit(*each: Tensor) -> bool:
    """Return whether the kernel can sum these rows [k, P]."""
    return triton is not None and all(
        kernels.on_gpu(x) and x.dim() == 2 and x.dtype in (torch.float32, torch.float64) for x in each
    )


class Terms(NamedTuple):
    """The rows to sum: for each of R sums, indices [R, D] (-1: none) and weights [R, D]."""

    rows: Tensor
    weights: Tensor

    @classmethod
    def of(cls, terms: Sequence[Sequence[tuple[int, float]]], like: Tensor) -> Terms:
        """Create them from (index, weight) of the terms of each sum."""
        width = max(1, *map(len, terms))
        rows, weights = np.full((len(terms), width), -1, dtype=np.int32), np.zeros((len(terms), width))
        for r, some in enumerate(terms):
            for e, (place, weight) in enumerate(some):
                rows[r, e], weights[r, e] = place, weight
        return cls(torch.from_numpy(rows).to(like.device), torch.from_numpy(weights).to(like))


Plan = tuple[Sequence[int], list[Sequence[Sequence[tuple[int, float]]]]]
"""The rows to write; and for one or two groups of rows, the rows and weights of each sum."""


def written(memo: dict[Any, Any], key: object, plan: Callable[[], Plan], out: Tensor, *groups: Tensor) -> bool:
    """Write the sums of rows of `groups`, which may be those of `out`, to rows of `out`; return whether it could.

    Otherwise nothing changes. `memo` caches the plan.
    """
    if not suit(out, *groups):
        return False
    key = key, out.device, out.dtype
    if key not in memo:
        places, terms = plan()
        found = [Terms.of(each, out) for each in terms]
        few = len(places) <= _MOST_ROWS and all(each.rows.shape[1] <= _MOST_TERMS for each in found)
        memo[key] = (torch.tensor(places, dtype=torch.int32, device=out.device), found) if few and places else None
    if memo[key] is None:
        return False
    places, found = memo[key]
    write(out, places, *zip(groups, found, strict=True))
    return True


def write(out: Tensor, places: Tensor, *sums: tuple[Tensor, Terms]) -> None:
    """out[places[r]] <- the sum of the terms of one or two groups of rows [k, P], which may be those of `out`."""
    (a, of_a), (b, of_b) = sums[0], sums[-1]
    padded = triton.next_power_of_2(len(places))
    block = _TILE // padded
    _write[triton.cdiv(out.shape[1], block),](
        out, places, a, *of_a, b, *of_b, len(places), out.shape[1], *out.stride(), *a.stride(), *b.stride(),
        padded, of_a.rows.shape[1], of_b.rows.shape[1] if len(sums) > 1 else 0, block,
    )  # fmt: skip


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _write(
        out, places, a, rows_a, weights_a, b, rows_b, weights_b, R, P, to_row, to_column,
        a_row, a_column, b_row, b_column,
        PADDED: tl.constexpr, TERMS_A: tl.constexpr, TERMS_B: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        r, column = tl.arange(0, PADDED), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((PADDED, BLOCK), dtype=out.dtype.element_ty)
        for e in tl.static_range(TERMS_A):
            row = tl.load(rows_a + r * TERMS_A + e, mask=r < R, other=-1).to(tl.int64)
            weight = tl.load(weights_a + r * TERMS_A + e, mask=r < R, other=0.0)
            there = (row >= 0)[:, None] & (column < P)[None, :]
            total += weight[:, None] * tl.load(
                a + row[:, None] * a_row + column[None, :] * a_column, mask=there, other=0.0
            )
        for e in tl.static_range(TERMS_B):
            row = tl.load(rows_b + r * TERMS_B + e, mask=r < R, other=-1).to(tl.int64)
            weight = tl.load(weights_b + r * TERMS_B + e, mask=r < R, other=0.0)
            there = (row >= 0)[:, None] & (column < P)[None, :]
            total += weight[:, None] * tl.load(
                b + row[:, None] * b_row + column[None, :] * b_column, mask=there, other=0.0
            )
        tl.debug_barrier()  # read all before any write, in these columns
        place = tl.load(places + r, mask=r < R, other=0).to(tl.int64)
        inside = (r < R)[:, None] & (column < P)[None, :]
        tl.store(out + place[:, None] * to_row + column[None, :] * to_column, total, mask=inside)
