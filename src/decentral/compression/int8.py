"""Integers of 8 bits, rounded stochastically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.address import Address
from decentral.compression.compressor import Encoder
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.network.payload import Payload, Sizes


@dataclass
class Int8(Encoder):
    """Integers from -127 to 127 times a scale for each block, rounded stochastically (QSGD: Alistarh et al., 2017).

        s_b = max_{i in b} |e_i| / 127,   q_i = floor(e_i / s_b + U_i),   U_i uniform on [0, 1),   C(e)_i = s_b q_i

    block  how many coordinates share a scale: the largest of them says how coarse the others are

    Unbiased: E C(e) = e, and |C(e)_i - e_i| < s_b. U is addressed by (seed, worker, step).

    Bytes: P + 4 ceil(P / block) for float32 rows (8 for each scale with float64). The residual is e - C(e), rounded
    once. A block with an entry that is infinite or no number is decoded to such numbers. A block of zeros has s_b = 0.

    Departures: QSGD scales by the 2-norm of a block and encodes the integers by Elias' code; the maximum uses all 255
    levels (as in TernGrad, and in the paper's experiments), and lengths stay known.
    """

    name: str = "int8"
    error_feedback: bool = True
    block: int = setting(2048, at_least=1)
    fills: ClassVar[bool] = True

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """P integers of 8 bits and a scale for each block."""
        import torch

        size = self.layout.num_coordinates
        return {"values": (torch.int8, size), "scales": (dtype, -(-size // self.block))}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """q and s."""
        import torch

        from decentral.compression.arithmetic.quantisation import quantise
        from decentral.network.payload import Payload
        from decentral.randomness import torch_generator

        values = self.scratch.take(("values", *at.place), len(e), e, torch.int8)
        scales = self.scratch.take(("scales", *at.place), -(-len(e) // self.block), e)
        generator = torch_generator(e.device, self.seed, "int8", *at)
        quantise(e, self.block, values, scales, generator, self.scratch)
        return Payload({"values": values, "scales": scales})

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out <- out + weight s_b q."""
        from decentral.compression.arithmetic.quantisation import add_quantised

        add_quantised(payload.tensors["values"], payload.tensors["scales"], self.block, out, weight, self.scratch)
