"""The largest DCT coefficients of each chunk of a parameter, or the largest entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from decentral.compression.rows import payload_of
from decentral.compression.sparse import Placed
from decentral.host.machine import Lazy
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.compression.rows import Address, RowLayout
    from decentral.network.payload import Payload, Sizes
else:
    torch = Lazy("torch")


class Transform(Enum):
    """The transform of a chunk before its largest entries are selected."""

    dct = "dct"
    none = "none"


class _Chunks(NamedTuple):
    """A parameter as a matrix [r, c], cut into chunks [h, w]."""

    part: slice
    """Its position in a row."""
    r: int
    c: int
    h: int
    w: int
    k: int
    """Numbers sent per chunk."""
    width: int
    """Bytes of an index."""

    @property
    def num_sent(self) -> int:
        """Return the count of numbers sent for the parameter."""
        return self.r * self.c // (self.h * self.w) * self.k

    def of(self, row: Tensor) -> Tensor:
        """Return the chunks [r c / (h w), h w] in a row [P]."""
        cut = row[self.part].view(self.r // self.h, self.h, self.c // self.w, self.w)
        return cut.transpose(1, 2).reshape(-1, self.h * self.w)

    def places(self, indices: Tensor) -> Tensor:
        """Convert indices into each chunk [r c / (h w), k] to positions in a row: [num_sent]."""
        down = torch.arange(0, self.r * self.c, self.h * self.c, device=indices.device)
        first = self.part.start + down[:, None] + torch.arange(0, self.c, self.w, device=indices.device)
        return (first.view(-1, 1) + indices // self.w * self.c + indices % self.w).flatten()


class _Cut(Placed):
    """The chunking of each parameter; no setting."""

    _parts: list[_Chunks]


@dataclass
class DCTTopK(_Cut):
    """The k largest DCT coefficients of every chunk of a parameter, DeMo's compressor (Peng et al., arXiv:2411.19870).

        a parameter with two dimensions or more is a matrix [a, b] (a: its first dimension), any other one a line;
        chunks [h, w] (a line: [w]): h, w are the largest divisors of the sides that are at most `chunk`
        Q = D_h B D_w^T of a chunk B,   D[0, j] = 1 / sqrt(h),   D[i, j] = sqrt(2 / h) cos(pi (2 j + 1) i / (2 h))
        C(B) = D_h^T S D_w,   S = Q at its min(k, h w) largest |Q|, 0 elsewhere

    chunk        longest side of a chunk
    k            number of coefficients sent per chunk
    transform    dct; none: Q = B, the chunked top-k of SparseLoCo (with k=64)
    index_bytes  bytes per index. 0: 1 for chunks of at most 256 numbers, else 2; 8: as in the released code

    Bytes: for each chunk min(k, h w) (4 + index_bytes) for float32 rows. A parameter whose size is a prime above
    `chunk` has chunks of 1 and is sent whole. Ties are broken by `torch.topk`. A non-finite entry makes its whole chunk
    non-finite.

    Departures. The released code fails for parameters with more than two dimensions, the authors' DisTrO cuts the last
    two; here they are matrices as in PowerSGD. Bases are exact to the type of the row, not to float32.
    """

    name: str = "dct_topk"
    error_feedback: bool = True
    chunk: int = setting(64, at_least=1, at_most=256)
    k: int = setting(32, at_least=1)
    transform: Transform = Transform.dct
    index_bytes: int = setting(0, choices=(0, 8))
    by_length: ClassVar[bool] = False

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`."""
        bound = super().bound(layout, seed, steps_per_epoch)
        bound._parts = [
            self._chunks(shape, part)
            for shape, part in zip(layout.shapes, layout.slices, strict=True)
            if 0 not in shape
        ]
        return bound

    def _chunks(self, shape: tuple[int, ...], part: slice) -> _Chunks:
        r, c = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        h, w = (max(d for d in range(1, self.chunk + 1) if side % d == 0) for side in (r, c))
        return _Chunks(part, r, c, h, w, min(self.k, h * w), self.index_bytes or (1 if h * w <= 256 else 2))

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return the sizes of the coefficients of all chunks, and of their indices by width."""
        found: Sizes = {"values": (dtype, sum(part.num_sent for part in self._parts))}
        for width in sorted({part.width for part in self._parts}):
            found[f"indices{width}"] = _integers(width), sum(p.num_sent for p in self._parts if p.width == width)
        return found

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return the largest coefficients, chunk by chunk, and their indices into chunks."""
        q, values = self.transformed(e), []
        indices: dict[str, list[Tensor]] = {}
        for part in self._parts:
            chunks = part.of(q)
            found = torch.topk(chunks.abs(), part.k, dim=1, sorted=False).indices
            values.append(chunks.gather(1, found).flatten())
            indices.setdefault(f"indices{part.width}", []).append(found.flatten().to(_integers(part.width)))
        return payload_of(values=torch.cat(values), **{name: torch.cat(indices[name]) for name in sorted(indices)})

    def sent_places(self, payload: Payload) -> Tensor:
        """See `Placed`."""
        left, found = dict(payload.tensors), []
        for part in self._parts:
            name = f"indices{part.width}"
            own, left[name] = left[name][: part.num_sent], left[name][part.num_sent :]
            found.append(part.places(own.to(torch.int64).bitwise_and(0xFFFF).view(-1, part.k)))
        return torch.cat(found)

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out <- out + weight * C(e)."""
        q = torch.zeros_like(out).index_add_(0, self.sent_places(payload), payload.tensors["values"])
        out.add_(self.restored(q), alpha=weight)

    def restored(self, q: Tensor) -> Tensor:
        """Return D_h^T Q D_w of every chunk of the coefficients q [P]."""
        return self.transformed(q, inverse=True)

    def transformed(self, row: Tensor, inverse: bool = False) -> Tensor:
        """Replace every chunk B of a row [P] by D_h B D_w^T (inverse: D_h^T B D_w), in new memory."""
        if self.transform is Transform.none:
            return row
        out = torch.empty_like(row)
        for part in self._parts:
            down, across = (self._basis(side, row) for side in (part.h, part.w))
            if inverse:
                down, across = down.t(), across.t()
            half = torch.matmul(down, row[part.part].view(-1, part.h, part.c))
            torch.mm(half.view(-1, part.w), across.t(), out=out[part.part].view(-1, part.w))
        return out

    def _basis(self, side: int, like: Tensor) -> Tensor:
        """Return D [side, side], an orthonormal DCT-II."""

        def cosines() -> Tensor:
            places = torch.arange(side, dtype=torch.float64)
            D = torch.cos(math.pi / (2 * side) * torch.outer(places, 2 * places + 1)) * math.sqrt(2 / side)
            D[0] = math.sqrt(1 / side)
            return D.to(like)

        return self.scratch.remember(f"basis of {side}", (like.dtype, like.device), cosines)


def _integers(width: int) -> torch.dtype:
    """Return the type that stores an index of `width` bytes; int16 holds the bits of numbers up to 65535."""
    return {1: torch.uint8, 2: torch.int16, 8: torch.int64}[width]
