"""Compressors that send every coordinate: uncompressed, in 16 bits, in 8 bits, or its sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.compressor import Encoder
from decentral.compression.quantization import add_quantized, add_signs, mean_magnitude, pack, quantize
from decentral.compression.rows import Address, payload_of
from decentral.compression.selection import block_size
from decentral.host.machine import Lazy
from decentral.randomness import torch_generator
from decentral.settings import setting

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from decentral.network.network import Network
    from decentral.network.payload import Payload, Sizes
else:
    torch = Lazy("torch")


@dataclass
class NoCompression(Encoder):
    """No compression: C(e) = e. Bytes: 4 P for float32 rows, 8 P for float64."""

    name: str = "none"
    fills: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    error_feedback = False  # without error; not a setting

    @property
    def smallest_row(self) -> int:
        """Return two numbers."""
        return 2

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return P numbers."""
        return {"values": (dtype, self.layout.num_coordinates)}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return a copy."""

        return payload_of(values=self.scratch.take(("values", *at.place), len(e), e).copy_(e))

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out <- out + weight * values."""
        out.add_(payload.tensors["values"], alpha=weight)

    def compression_stats(self, x: Tensor) -> Tensor:
        """Return None: there is no error."""
        return x.new_zeros(len(x), 0)

    def mix(self, x: Tensor, net: Network, t: int) -> Tensor:
        """Compute x_i <- sum_j W_ij x_j."""
        return net.mix(x, t)

    def begin_mix(self, x: Tensor, net: Network, t: int) -> Callable[[], Tensor]:
        """Begin x_i <- sum_j W_ij x_j and return a function that completes it."""
        return net.begin_mix(x, t)

    def relay(self, y: Tensor, m: Tensor, net: Network, t: int, later: bool = False) -> Tensor:
        """Compute m_{i->j} <- y_i + sum_{l in N_i, l != j} m_{l->i}."""
        return net.relay(y, m, t, later)

    def combine(
        self, g: Tensor, r: Tensor, memory: Tensor, net: Network, t: int, of_senders: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All-reduce g."""
        return net.mean(g), r, memory


@dataclass
class BFloat16(Encoder):
    """Numbers rounded to bfloat16, 8 bits of mantissa, to nearest, ties to even: C(e) = bf16(e).

        |C(e)_i - e_i| <= 2^-8 |e_i|,  with the range of float32

    Bytes: 2 P. The mean is an all-reduce of bfloat16 numbers, rounded to bfloat16. Error feedback keeps the exact
    residual. `error_feedback=false` is the usual mixed-precision all-reduce and saves the memory of the residuals.
    Infinity and NaN are preserved.
    """

    name: str = "bf16"
    error_feedback: bool = True
    fills: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return P numbers of 2 bytes."""
        return {"values": (torch.bfloat16, self.layout.num_coordinates)}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return bf16(e)."""
        values = self.scratch.take(("values", *at.place), len(e), e, torch.bfloat16)
        return payload_of(values=values.copy_(e))

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out <- out + weight * values, block by block in the cache."""
        size = block_size(out)
        for values, block in zip(payload.tensors["values"].split(size), out.split(size), strict=True):
            block.add_(self.scratch.take("block", len(block), out).copy_(values), alpha=weight)


@dataclass
class Int8(Encoder):
    """Stochastically rounded integers from -127 to 127 times a scale per block (QSGD: Alistarh et al., 2017).

        s_b = max_{i in b} |e_i| / 127,   q_i = floor(e_i / s_b + U_i),   U_i uniform on [0, 1),   C(e)_i = s_b q_i

    block  number of coordinates that share a scale: the largest of them sets the resolution

    Unbiased: E C(e) = e, and |C(e)_i - e_i| < s_b. U is addressed by (seed, worker, step).

    Bytes: P + 4 ceil(P / block) for float32 rows (8 per scale for float64). The residual is e - C(e), rounded once. A
    block with a non-finite entry decodes to non-finite numbers. A block of zeros has s_b = 0.

    Departures: QSGD scales by the 2-norm of a block and uses Elias coding for the integers; the maximum uses all 255
    levels (as in TernGrad, and in the paper's experiments), and message sizes are known in advance.
    """

    name: str = "int8"
    error_feedback: bool = True
    block: int = setting(2048, at_least=1)
    fills: ClassVar[bool] = True

    @property
    def smallest_row(self) -> int:
        """Return the length of two blocks."""
        return 2 * self.block

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return P integers of 8 bits and a scale for each block."""
        size = self.layout.num_coordinates
        return {"values": (torch.int8, size), "scales": (dtype, -(-size // self.block))}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return q and s."""
        values = self.scratch.take(("values", *at.place), len(e), e, torch.int8)
        scales = self.scratch.take(("scales", *at.place), -(-len(e) // self.block), e)
        generator = torch_generator(e.device, self.seed, "int8", *at)
        quantize(e, self.block, values, scales, generator, self.scratch)
        return payload_of(values=values, scales=scales)

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out <- out + weight s_b q."""
        add_quantized(payload.tensors["values"], payload.tensors["scales"], self.block, out, weight, self.scratch)


@dataclass
class Sign(Encoder):
    """The sign of every coordinate and the mean magnitude of each layer (EF-SignSGD: Karimireddy et al., ICML 2019).

        for each parameter of P_l numbers:  s_l = ||e_l||_1 / P_l,   C(e_l) = s_l sign(e_l),   sign(0) = 1

    A contraction: ||C(e_l) - e_l||^2 = (1 - ||e_l||_1^2 / (P_l ||e_l||^2)) ||e_l||^2. It is biased and needs error
    feedback.

    Bytes: ceil(P / 8) + 4 per parameter for float32 rows (8 for float64). The residual is e - C(e), rounded once. A
    layer with a non-finite entry decodes to non-finite numbers.

    Departures: none; bits are packed across layers.
    """

    name: str = "sign"
    error_feedback: bool = True
    fills: ClassVar[bool] = True
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """Return P bits, padded to bytes, and a scale for each layer."""
        size = -(-self.layout.num_coordinates // 8)
        return {"signs": (torch.uint8, size), "scales": (dtype, len(self.layout.shapes))}

    def encode(self, e: Tensor, at: Address) -> Payload:
        """Return bits (1: not negative) and scales."""
        signs = self.scratch.take(("signs", *at.place), -(-len(e) // 8), e, torch.uint8)
        pack(e, signs, self.scratch)
        scales = self.scratch.take(("scales", *at.place), len(self.layout.shapes), e)
        for number, part in enumerate(self.layout.slices):
            scales[number] = mean_magnitude(e[part], self.scratch)
        return payload_of(signs=signs, scales=scales)

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """Compute out_l <- out_l + weight s_l sign."""
        add_signs(payload.tensors["signs"], payload.tensors["scales"], self.layout.slices, out, weight, self.scratch)
