"""Window matrices of convolutions (unfold and fold), on a GPU by Triton kernels.

Torch's own `unfold` and `fold` do not support examples innermost, and copies and sums of strided tensors take up to ten
times as long as the memory traffic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA, or not on Linux
    triton = None

_BLOCK = 1024  # numbers per kernel program


def unfold(x: Tensor, outputs: tuple[int, int], geometry: Any) -> Tensor:
    """Return the inputs of each output [k, C h w, H' W' B], for x [k, C, H, W, B] and H', W' outputs."""
    k, channels, height, width, batch = x.shape
    if geometry.kernel == (1, 1) and geometry.padding == (0, 0):
        return x[:, :, :: geometry.stride[0], :: geometry.stride[1]].reshape(k, channels, -1)
    if triton is not None and x.is_cuda:
        x = x.contiguous()
        size = outputs[0] * outputs[1] * batch
        columns = x.new_empty(k, channels * geometry.kernel[0] * geometry.kernel[1], size)
        block = min(_BLOCK, triton.next_power_of_2(size))
        _unfold[k * channels, triton.cdiv(size, block)](
            x, columns, height, width, batch, *outputs, *sum(geometry, ()), block
        )
        return columns
    return _windows(x, outputs, geometry).reshape(k, -1, outputs[0] * outputs[1] * batch)


def fold(columns: Tensor, shape: torch.Size, outputs: tuple[int, int], geometry: Any) -> Tensor:
    """Compute the transpose of `unfold`, x [k, C, H, W, B] of this shape: the sum of all columns of each input."""
    k, channels, height, width, batch = shape
    if geometry.kernel == (1, 1) and geometry.padding == (0, 0) and geometry.stride == (1, 1):
        return columns.view(shape)
    if triton is not None and columns.is_cuda:
        x, size = columns.new_empty(shape), height * width * batch
        block = min(_BLOCK, triton.next_power_of_2(size))
        exact = tl.float64 if x.dtype == torch.float64 else tl.float32
        _fold[k * channels, triton.cdiv(size, block)](
            columns, x, height, width, batch, *outputs, *sum(geometry, ()), block, exact
        )
        return x
    above, before = geometry.padding
    x = columns.new_zeros(k, channels, height + 2 * above, width + 2 * before, batch)
    windows = _windows(x, outputs, geometry._replace(padding=(0, 0)))
    parts = columns.view(windows.shape)
    for i in range(geometry.kernel[0]):
        for j in range(geometry.kernel[1]):
            windows[:, :, i, j] += parts[:, :, i, j]
    return x[:, :, above : above + height, before : before + width]


def _windows(x: Tensor, outputs: tuple[int, int], geometry: Any) -> Tensor:
    """Return a view [k, C, h, w, H', W', B]."""
    if any(geometry.padding):
        above, before = geometry.padding
        x = F.pad(x, (0, 0, before, before, above, above))
    of_worker, of_channel, of_row, of_pixel, _ = x.contiguous().stride()
    inside = geometry.dilation[0] * of_row, geometry.dilation[1] * of_pixel
    between = geometry.stride[0] * of_row, geometry.stride[1] * of_pixel
    sizes = (*x.shape[:2], *geometry.kernel, *outputs, x.shape[4])
    return x.contiguous().as_strided(sizes, (of_worker, of_channel, *inside, *between, 1))


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _unfold(
        x, columns, H, W: tl.constexpr, B: tl.constexpr, OH, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
        SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        image = tl.program_id(0).to(tl.int64)
        places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        size = OH * OW * B
        b, column, row = places % B, places // B % OW, places // B // OW
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                h, w = row * SH + (i * DH - PH), column * SW + (j * DW - PW)
                inside = (places < size) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
                value = tl.load(x + image * H * W * B + (h * W + w) * B + b, mask=inside, other=0.0)
                tl.store(columns + (image * (KH * KW) + (i * KW + j)) * size + places, value, mask=places < size)

    @triton.jit  # type: ignore[untyped-decorator]
    def _fold(
        columns, x, H, W: tl.constexpr, B: tl.constexpr, OH, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
        SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
        BLOCK: tl.constexpr, EXACT: tl.constexpr,
    ):  # fmt: skip
        image = tl.program_id(0).to(tl.int64)
        places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        size = OH * OW * B
        b, w, h = places % B, places // B % W, places // B // W
        total = tl.zeros((BLOCK,), dtype=EXACT)
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                down, right = h + (PH - i * DH), w + (PW - j * DW)
                row, column = down // SH, right // SW
                taken = (places < H * W * B) & (down >= 0) & (right >= 0) & (row < OH) & (column < OW)
                taken &= (down % SH == 0) & (right % SW == 0)
                part = columns + (image * (KH * KW) + (i * KW + j)) * size + (row * OW + column) * B + b
                total += tl.load(part, mask=taken, other=0.0).to(EXACT)
        tl.store(x + image * H * W * B + places, total.to(x.dtype.element_ty), mask=places < H * W * B)
