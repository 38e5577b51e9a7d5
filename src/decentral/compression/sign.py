"""One bit for each coordinate."""

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
class Sign(Encoder):
    """The sign of every coordinate, and the mean magnitude of each layer (EF-SignSGD: Karimireddy et al., ICML 2019).

        for each parameter of P_l numbers:  s_l = ||e_l||_1 / P_l,   C(e_l) = s_l sign(e_l),   sign(0) = 1

    A contraction: ||C(e_l) - e_l||^2 = (1 - ||e_l||_1^2 / (P_l ||e_l||^2)) ||e_l||^2. It is biased and needs error
    feedback.

    Bytes: ceil(P / 8) + 4 for each parameter, float32 rows (8 with float64). The residual is e - C(e), rounded once.
    A layer with an entry that is infinite or no number is decoded to such numbers.

    Departures: none; bits are packed across layers.
    """

    name: str = "sign"
    error_feedback: bool = True
    fills: ClassVar[bool] = True

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """P bits, filled up to bytes, and a scale for each layer."""
        import torch

        size = -(-self.layout.num_coordinates // 8)
        return {"signs": (torch.uint8, size), "scales": (dtype, len(self.layout.shapes))}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Bits (1: not negative) and scales."""
        import torch

        from decentral.compression.arithmetic.signs import mean_magnitude, pack
        from decentral.network.payload import Payload

        signs = self.scratch.take(("signs", *at.place), -(-len(e) // 8), e, torch.uint8)
        pack(e, signs, self.scratch)
        scales = self.scratch.take(("scales", *at.place), len(self.layout.shapes), e)
        for number, part in enumerate(self.layout.slices):
            scales[number] = mean_magnitude(e[part], self.scratch)
        return Payload({"signs": signs, "scales": scales})

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out_l <- out_l + weight s_l sign."""
        from decentral.compression.arithmetic.signs import add_signs

        add_signs(payload.tensors["signs"], payload.tensors["scales"], self.layout.slices, out, weight, self.scratch)
