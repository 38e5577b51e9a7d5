"""No compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.address import Address
from decentral.compression.compressor import Collectives, Encoder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.network.network import Network
    from decentral.network.payload import Payload, Sizes


@dataclass
class NoCompression(Encoder):
    """Rows are sent as they are: C(e) = e. Bytes: 4 P for float32 rows, 8 P for float64."""

    name: str = "none"
    fills: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    error_feedback = False  # there is no error; not a setting

    @property
    def smallest_row(self) -> int:
        """A number."""
        return 1

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """P numbers."""
        return {"values": (dtype, self.layout.num_coordinates)}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """A copy."""
        from decentral.network.payload import Payload

        return Payload({"values": self.scratch.take(("values", *at.place), len(e), e).copy_(e)})

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out <- out + weight * values."""
        out.add_(payload.tensors["values"], alpha=weight)

    def compression_stats(self, x: Tensor) -> Tensor:
        """None: nothing is left out."""
        return x.new_zeros(len(x), 0)

    def mix(self, x: Tensor, net: Network, t: int) -> Tensor:
        """x_i <- sum_j W_ij x_j."""
        return net.mix(x, t)

    def relay(self, y: Tensor, m: Tensor, net: Network, t: int) -> Tensor:
        """m_{i->j} <- y_i + sum_{l in N_i, l != j} m_{l->i}."""
        return net.relay(y, m, t)

    def combine(self, g: Tensor, r: Tensor, memory: Tensor, net: Collectives, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """An all-reduce of g."""
        return net.mean(g), r, memory
