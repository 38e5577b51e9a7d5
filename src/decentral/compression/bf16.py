"""Numbers of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.address import Address
from decentral.compression.compressor import Encoder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.network.payload import Payload, Sizes


@dataclass
class BFloat16(Encoder):
    """Every number rounded to bfloat16, 8 bits of mantissa, to the nearest, ties to even: C(e) = bf16(e).

        |C(e)_i - e_i| <= 2^-8 |e_i|,  the range is that of float32

    Bytes: 2 P. The mean is formed by an all-reduce of bfloat16 numbers, and is rounded to one. What error feedback
    keeps is exact; without it nothing is kept (`error_feedback=false`: the usual mixed-precision all-reduce, which
    saves the memory of the residuals). Infinity and what is no number stay what they are.
    """

    name: str = "bf16"
    error_feedback: bool = True
    fills: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """P numbers of 2 bytes."""
        import torch

        return {"values": (torch.bfloat16, self.layout.num_coordinates)}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """bf16(e)."""
        import torch

        from decentral.network.payload import Payload

        values = self.scratch.take(("values", *at.place), len(e), e, torch.bfloat16)
        return Payload({"values": values.copy_(e)})

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out <- out + weight * values, block by block in the cache."""
        from decentral.compression.arithmetic.selection import block_size

        size = block_size(out)
        for values, block in zip(payload.tensors["values"].split(size), out.split(size), strict=True):
            block.add_(self.scratch.take("block", len(block), out).copy_(values), alpha=weight)
