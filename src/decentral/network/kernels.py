"""The arithmetic of the network's operations on rows.

Long rows are processed in place, in blocks of columns that fit in the cache, with a few calls per worker or edge. For
short rows the calls dominate, so a few indexed operations process all workers at once, with temporaries as large as the
messages. Measured on one core: relaying over `dbt` with n = 64 and P = 10 takes 0.03 ms instead of 2.4 ms; with n = 16
and P = 6,090 the blocks win. Matrices with very many entries use a matrix product: with n = 1024 and P = 1000 a step on
the exponential graph takes 1 ms instead of 50 ms, and on the complete graph 50 ms instead of a million calls. Missing
edges never enter a product as zero weights, so a nan does not spread beyond its receivers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from decentral.topology.mixing_matrix import MixingMatrix
    from decentral.topology.rounds import RelayEdges

_BLOCK_BYTES = 8 << 20  # of a block of rows on a CPU: for smaller blocks, calls cost more than the cache saves
_LEAST_COLUMNS = 1 << 14  # of a block: with fewer, call overhead dominates for any number of rows
_BLOCK_BYTES_GPU = 1 << 28  # launching a kernel costs more than memory does


class Scratch:
    """Reusable memory for one block."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def rows(self, like: Tensor, *shape: int) -> Tensor:
        """Return an uninitialized tensor of this shape; it overwrites the previous one."""
        key, size = (like.device, like.dtype), math.prod(shape)
        if key not in self._memory or len(self._memory[key]) < size:
            self._memory[key] = like.new_empty(size)
        return self._memory[key][:size].view(shape)

    def copy(self, block: Tensor) -> Tensor:
        """Return a copy of the block."""
        return self.rows(block, *block.shape).copy_(block)


def blocks(num_columns: int, num_rows: int, like: Tensor) -> Iterator[slice]:
    """Yield slices of range(num_columns) whose `num_rows` rows fit in the cache, unless there are many.

    Multiples of a power of two: torch sums the last few columns of a block in another order.
    """
    limit = _BLOCK_BYTES if like.device.type == "cpu" else _BLOCK_BYTES_GPU
    size = max(1, limit // max(1, num_rows * like.element_size()) // _LEAST_COLUMNS) * _LEAST_COLUMNS
    for start in range(0, num_columns, size):
        yield slice(start, min(start + size, num_columns))


def wide(x: Tensor) -> Tensor:
    """Return the tensor in the precision of sums: a copy in float32 of 16-bit numbers, otherwise the tensor itself."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def headroom(n: int) -> float:
    """Return the largest power of two <= 1/n. Sums of n numbers times it cannot overflow, and have the bits of the sums
    of the numbers themselves, except below the smallest normal number."""
    return 0.5 ** (n - 1).bit_length()


def weighted_sum(terms: Sequence[tuple[Tensor, float]], out: Tensor, factor: float = 1.0) -> None:
    """Write factor times the sum of weight * row over the terms, in order, to `out`, which may alias only the first
    row. 16-bit numbers are summed in float32."""
    if not terms:
        out.zero_()
        return
    (row, weight), *rest = terms
    total = wide(out)
    if weight != 1 or row.data_ptr() != total.data_ptr():
        torch.mul(wide(row), weight, out=total)
    for row, weight in rest:
        total.add_(row, alpha=weight)
    if factor != 1:
        total.mul_(factor)
    if total is not out:
        out.copy_(total)


class Terms(NamedTuple):
    """The rows of W for some workers."""

    first: int  # of the workers, which are consecutive
    rows: dict[int, list[tuple[int, float]]]  # i -> its (j, W_ij), its own first, then j ascending; no identity rows
    used: list[int]  # which local rows occur, if those of different workers do: their values before are needed

    @classmethod
    def of(cls, W: MixingMatrix, workers: range) -> Terms:
        """Make it from a matrix."""
        found = {i: sorted(W.row(i), key=lambda term: term[0] != i) for i in workers}
        rows = {i: row for i, row in found.items() if row != [(i, 1.0)]}
        local = {(i, j) for i, row in rows.items() for j, _ in row if j in workers}
        apart = all(i == j for i, j in local)
        return cls(workers.start, rows, [] if apart else sorted({j for _, j in local}))


def mix(x: Tensor, terms: Terms, remote: dict[int, Tensor], scratch: Scratch) -> None:
    """x_i <- sum_j W_ij x_j in place, for the local rows x [k, ..., P'] and copies of remote rows [..., P'].

    With d terms a row takes 3 d - 1 passes, and 2 more if local rows are mixed with each other; an identity row, none.
    """
    here = range(terms.first, terms.first + len(x))
    for columns in blocks(x.shape[-1], 2 * x[..., :1].numel(), x):
        whole = x[..., columns]
        block = dict(zip(here, whole.unbind(0), strict=True))
        before = block | {j: row[..., columns] for j, row in remote.items()}
        if len(terms.used) == len(x):
            before |= zip(here, scratch.copy(whole).unbind(0), strict=True)
        elif terms.used:
            kept = scratch.rows(x, len(terms.used), *whole.shape[1:]).unbind(0)
            before |= {j: row.copy_(block[j]) for j, row in zip(terms.used, kept, strict=True)}
        for i, weights in terms.rows.items():
            weighted_sum([(before[j], weight) for j, weight in weights], block[i])


@cache
def in_place_order(degree: int) -> tuple[int, ...]:
    """Return the incoming messages that `relay_from` may overwrite with outgoing messages 0, 1, ... in place."""
    if degree <= 2:
        return tuple(range(degree))[::-1]
    half = degree // 2
    return *in_place_order(half), *(half + place for place in in_place_order(degree - half))


def relay_from(
    y: Tensor, incoming: Sequence[Tensor], outgoing: Sequence[Tensor], scratch: Sequence[Tensor] | Tensor
) -> None:
    """outgoing_j <- y + the sum of all incoming messages but the j-th, by halving: 3 d log2(d) passes for degree d.

    It never subtracts: "the total minus j's message" would keep an inf or nan of j alive forever. Outgoing message j
    may alias incoming message in_place_order(d)[j], or y if it is the only one.
    `scratch` has `scratch_rows(d)` rows.
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
    """Return the number of scratch rows that `relay_from` needs for this degree."""
    return 0 if degree <= 2 else 2 + scratch_rows(degree - degree // 2)


def sum_of(y: Tensor, messages: Sequence[Tensor], out: Tensor) -> Tensor:
    """Return y + the sum of the messages. `out` must not alias a message."""
    torch.add(y, messages[0], out=out)
    for message in messages[1:]:
        out.add_(message)
    return out


def mean_of(x: Tensor) -> Tensor:
    """Return 1/n sum_j x_j of n rows [n, ..., P] as a new row [..., P]; finite if all numbers are."""
    found, down, on_cpu = torch.empty_like(x[0]), headroom(len(x)), x.device.type == "cpu"
    exact = torch.float64 if not on_cpu and x.dtype == torch.float32 else None  # without a look at the result
    for columns in blocks(x.shape[-1], 1, x):
        block = wide(x[..., columns])
        mean = block.mean(0, dtype=exact)
        if on_cpu and not math.isfinite(mean.sum().item()):
            mean = (block * down).mean(0).mul_(1 / down)
        found[..., columns] = mean
    return found


_LIMIT_NUMBERS = 1 << 20
_HUB_DEGREE = 64


def on_gpu(rows: Tensor) -> bool:
    """Return whether these rows are real data on a GPU (unlike fake tensors)."""
    return rows.is_cuda and type(rows) is Tensor


def small(rows: Tensor, copies: int) -> bool:
    """Return whether `copies` temporaries like these rows are cheap. (CPU only: elsewhere indexed sums have no fixed
    order.)"""
    return rows.device.type == "cpu" and 0 < rows.numel() * copies <= _LIMIT_NUMBERS


def mixing_table(W: MixingMatrix) -> tuple[Tensor, Tensor]:
    """Return (j, W_ij) of each row i, j ascending, padded with (i, 0): indices [n, D] and weights [n, D]."""
    entries = np.diff(W.starts)
    width = max(1, int(entries.max()))
    index, weight = np.arange(W.num_workers)[:, None].repeat(width, axis=1), np.zeros((W.num_workers, width))
    place = np.arange(len(W)) - W.starts[W.dst]
    index[W.dst, place], weight[W.dst, place] = W.src, W.weight
    return torch.from_numpy(index), torch.from_numpy(weight)


def mix_small(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Return sum_j W_ij x_j: [n, ..., P'] -> the same shape, new. A row without entries becomes 0 times itself."""
    index, weight = table
    weight = weight.to(wide(x[:0]).dtype).view(*weight.shape, *([1] * (x.dim() - 1)))
    return (x[index] * weight).sum(1)


class RelayTable:
    """Index tables for relaying rows [n, P] over edges, with all workers in this process.

    The table omits hubs, workers with more than 64 neighbors, since all its rows would be as wide as their degree.
    For a hub, the sum of all messages but one is a prefix sum plus a suffix sum.
    """

    def __init__(self, edges: RelayEdges, pieces: Sequence[slice], num_coordinates: int) -> None:
        P, E, d = num_coordinates, len(edges), len(pieces)
        own = [np.arange(P)[piece] for piece in pieces]
        columns = np.full((d, max(map(len, own))), P)  # P: an extra column of zeros
        for h, coordinates in enumerate(own):
            columns[h, : len(coordinates)] = coordinates
        self.y = torch.from_numpy(edges.src[:, None] * (P + 1) + columns[edges.piece])
        into = np.bincount(edges.dst * d + edges.piece)  # the edges into a worker and piece are consecutive
        first, source = np.cumsum(into) - into, edges.src * d + edges.piece
        hub = into > _HUB_DEGREE
        others = np.where(hub, 0, into - 1)[source]
        place = np.arange(others.max(initial=0))[:, None]
        candidate = first[source] + place
        candidate += candidate >= edges.reverse  # all messages to the source, except from this edge's destination
        self.others = torch.from_numpy(np.where(place < others, candidate, E))  # E: an extra row of zeros
        self.hubs = [
            (slice(first[node], first[node] + into[node]), torch.from_numpy(edges.reverse[first[node] :][: into[node]]))
            for node in np.flatnonzero(hub)
        ]

    def relay(self, y: Tensor, m: Tensor) -> Tensor:
        """m_{i->j} <- y_i + sum_{l != j} m_{l->i}, delivered: new rows [E, ceil(P / d)]."""
        fresh = torch.nn.functional.pad(y, (0, 1)).take(self.y)
        below = torch.nn.functional.pad(m, (0, 0, 0, 1))
        for place in self.others:
            fresh += below.index_select(0, place)
        for incoming, outgoing in self.hubs:
            fresh[outgoing] += _sum_of_others(m[incoming])
        return fresh


def _sum_of_others(m: Tensor) -> Tensor:
    """Return sum_{l != j} m_l for each row j, [D, P] -> the same. No subtraction, so that no nan or inf persists."""
    none = m.new_zeros(1, m.shape[1])
    before, after = torch.cat([none, m[:-1]]).cumsum(0), torch.cat([none, m[1:].flip(0)]).cumsum(0).flip(0)
    return before.add_(after)


def collect_small(m: Tensor, x: Tensor, pieces: Sequence[slice], nodes: Tensor) -> Tensor:
    """x_i <- x_i + sum_j m_{j->i} in place; nodes [E] is worker * d + piece of each message's receiver."""
    total = m.new_zeros(len(x) * len(pieces), m.shape[1]).index_add_(0, nodes, m).view(len(x), len(pieces), -1)
    for h, piece in enumerate(pieces):
        row = x[:, piece]
        row += total[:, h, : row.shape[1]]
    return x


_FEW_ENTRIES = 4096
_PRODUCT_BYTES = 64 << 20  # of the rows per product


class Product:
    """W x for the rows `workers` of W, with columns for the local workers and then for `others`.

    A matrix at least a quarter full is dense, others are in CSR format. Zero weights of missing edges multiply finite
    numbers only, so a nan does not spread beyond its receivers.
    """

    def __init__(self, W: MixingMatrix, workers: range, others: Sequence[int] = ()) -> None:
        entries = slice(W.starts[workers.start], W.starts[workers.stop])
        column = np.full(W.num_workers, -1)
        column[workers.start : workers.stop] = np.arange(len(workers))
        column[list(others)] = len(workers) + np.arange(len(others))
        self._shape = len(workers), len(workers) + len(others)
        self._starts = W.starts[workers.start : workers.stop + 1] - W.starts[workers.start]
        self._columns, self._weight = column[W.src[entries]], W.weight[entries]
        self._full = len(self._weight) == math.prod(self._shape)
        self._nearly_full = 4 * len(self._weight) >= math.prod(self._shape)
        self._dense: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._sparse: dict[torch.dtype, csr_array] = {}

    def suits(self, x: Tensor) -> bool:
        """Return whether a product suits these rows. (On a GPU, without reading them: only if no entry is zero.)"""
        if len(self._weight) <= _FEW_ENTRIES or x.dtype not in (torch.float32, torch.float64):
            return False
        return x.device.type == "cpu" or self._full

    def into(self, x: Tensor, remote: Sequence[Tensor] = ()) -> None:
        """x_i <- sum_j W_ij x_j in place, for the local rows x [k, ..., P'] and the remote ones [..., P']."""
        rows = len(x) + len(remote)
        size = max(1, _PRODUCT_BYTES // (rows * x[0, ..., :1].numel() * x.element_size()))
        for start in range(0, x.shape[-1], size):
            block = x[..., start : start + size]
            everything = block
            if remote:
                everything = torch.cat([block, torch.stack([row[..., start : start + size] for row in remote])])
            block.copy_(self._times(everything.reshape(rows, -1)).view(block.shape))

    def _times(self, block: Tensor) -> Tensor:
        if self._full or (self._nearly_full and bool(block.isfinite().all())):
            return self._dense_times(block)
        if block.dtype not in self._sparse:
            from scipy.sparse import csr_array

            weight = self._weight.astype(np.float32 if block.dtype == torch.float32 else np.float64)
            self._sparse[block.dtype] = csr_array((weight, self._columns, self._starts), shape=self._shape)
        return torch.from_numpy(self._sparse[block.dtype] @ block.numpy())

    def _dense_times(self, block: Tensor) -> Tensor:
        key = block.dtype, block.device
        if key not in self._dense:
            W = np.zeros(self._shape)
            W[np.repeat(np.arange(self._shape[0]), np.diff(self._starts)), self._columns] = self._weight
            self._dense[key] = torch.from_numpy(W).to(block)
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False  # an average needs full precision even if training uses TF32
        try:
            return self._dense[key] @ block
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
