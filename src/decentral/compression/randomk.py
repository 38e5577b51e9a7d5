"""Random-k: coordinates that are drawn, the same for all workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.compressor import Encoder
from decentral.compression.ratio import Ratio
from decentral.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.address import Address
    from decentral.network.payload import Payload, Sizes


@dataclass
class RandomK(Ratio, Encoder):
    """k coordinates drawn without replacement, the same for all workers in a step (Stich et al., NeurIPS 2018).

        I = k of the P indices, by (seed, step),   C(e) = c e on I, 0 elsewhere,   c = 1, or P / k if unbiased

    unbiased  c = P / k, so that E C(e) = e: for runs without error feedback. With c = 1 it is a contraction,
              E ||C(e) - e||^2 = (1 - k / P) ||e||^2, as error feedback and CHOCO need it.

    Bytes: 4 k for float32 rows: everybody draws the indices, none is sent. Values of different workers belong to the
    same places and add up, so that an all-reduce of k numbers carries them.

    A row with an entry that is infinite or no number sends k times no number, whether it was drawn or not.

    Departures: the paper's workers draw for themselves; sharing the seed is what makes the all-reduce possible.
    """

    name: str = "randomk"
    unbiased: bool = False
    adds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unbiased and self.error_feedback:
            raise ConfigError(
                "compress.unbiased=true sends P / k times the value, more than error feedback can take back: set "
                "compress.error_feedback=false with it."
            )

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """k numbers."""
        return {"values": (dtype, self.count(self.layout.num_coordinates, step))}

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """An all-reduce of k numbers."""
        return prices.mean_s(self.count(self.layout.num_coordinates, step) * dtype.itemsize)

    def encode(self, e: Tensor, at: Address) -> Payload:
        """c e on I, in the order of `places`."""
        import torch

        from decentral.network.payload import Payload

        places = self.places(e, at.step)
        values = self.scratch.take(("values", *at.place), len(places), e)
        torch.index_select(e, 0, places, out=values)
        if self.unbiased:
            values.mul_(len(e) / len(places))
        low, high = torch.aminmax(e)
        return Payload({"values": values.add_(low.mul_(0) + high.mul_(0))})  # 0, or no number

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out[I] <- out[I] + weight * values, with I of this step."""
        out.index_add_(0, self.places(out, at.step), payload.tensors["values"], alpha=weight)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """e <- 0 on I; or what the formula says, if unbiased."""
        if self.unbiased:
            super().subtract_sent(payload, e, at)
        else:
            e.index_fill_(0, self.places(e, at.step), 0)

    def places(self, like: Tensor, step: int) -> Tensor:
        """I [k], int64, in no order: drawn once in a step, on the CPU, for rows like this one."""
        from decentral.compression.arithmetic.draws import distinct

        size = self.layout.num_coordinates
        k, address = self.count(size, step), (self.seed, "randomk", step)
        return self.scratch.remember(
            "drawn", (step, k), lambda: distinct(size, k, address, self.scratch).to(like.device)
        )
