"""Some coordinates of a row and their places: what the compressors share that leave the others out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from decentral.compression.address import Address
from decentral.compression.compressor import Encoder
from decentral.compression.ratio import Ratio
from decentral.errors import ConfigError
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.cluster.links import Prices
    from decentral.compression.row_layout import RowLayout
    from decentral.network.payload import Payload, Sizes


@dataclass
class Sparse(Encoder):
    """Sends pairs (value, index): C(e) is e at the places that are sent, and 0 elsewhere.

    Error feedback is exact: what is sent leaves the residual, and all else stays in it, bit for bit.

    index_bytes  of an index, 4 or 8
    """

    name: str
    error_feedback: bool = True
    index_bytes: int = setting(4, choices=(4, 8))

    def bound(self, layout: RowLayout, seed: int, steps_per_epoch: float = 1.0) -> Self:
        """See `Compressor.bound`. Raises ConfigError where indices of 4 bytes are too short."""
        check_indices(layout, self.index_bytes)
        return super().bound(layout, seed, steps_per_epoch)

    @abstractmethod
    def places(self, e: Tensor, at: Address) -> Tensor:
        """The indices that are sent of e [P], ascending, each once: [m], int64."""

    def encode(self, e: Tensor, at: Address) -> Payload:
        """The values at these places, [m], and their indices, [m], as integers of `index_bytes`."""
        import torch

        from decentral.network.payload import Payload

        places = self.places(e, at)
        values = self.scratch.take(("values", *at.place), len(places), e)
        indices = self.scratch.take(("indices", *at.place), len(places), e, self._index_type())
        torch.index_select(e, 0, places, out=values)
        return Payload({"values": values, "indices": indices.copy_(places)})

    def add_decoded(self, payload: Payload, out: Tensor, at: Address, weight: float = 1.0) -> None:
        """out[index] <- out[index] + weight * value for each pair: it touches no other places."""
        out.index_add_(0, payload.tensors["indices"], payload.tensors["values"], alpha=weight)

    def subtract_sent(self, payload: Payload, e: Tensor, at: Address) -> None:
        """e[index] <- 0 for each pair."""
        import torch

        indices = payload.tensors["indices"]
        e.index_fill_(0, self.scratch.take("wide", len(indices), e, torch.int64).copy_(indices), 0)

    def sizes_of(self, count: int, dtype: torch.dtype) -> Sizes:
        """Of a payload with so many pairs."""
        return {"values": (dtype, count), "indices": (self._index_type(), count)}

    def squares_of_sent(self, payload: Payload, e: Tensor, at: Address) -> tuple[float, float]:
        """||C(e)||^2, and ||e - C(e)||^2 = ||e||^2 - ||C(e)||^2: what is sent and what is left have no place in
        common."""
        values = payload.tensors["values"]
        sent = float(values.dot(values))
        return sent, max(0.0, float(e.dot(e)) - sent)

    def _index_type(self) -> torch.dtype:
        return index_type(self.index_bytes)


def check_indices(layout: RowLayout, index_bytes: int) -> None:
    """Raises ConfigError where indices of so many bytes are too short."""
    if layout.num_coordinates >= 2 ** (8 * index_bytes - 1):
        raise ConfigError(f"compress.index_bytes=4 is too small for {layout.num_coordinates} parameters: set it to 8.")


def index_type(index_bytes: int) -> torch.dtype:
    """Integers of so many bytes."""
    import torch

    return torch.int32 if index_bytes == 4 else torch.int64


@dataclass
class SparseRatio(Ratio, Sparse):
    """Those that send a given share of the coordinates."""

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """k pairs."""
        return self.sizes_of(self.count(self.layout.num_coordinates, step), dtype)

    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """An all-gather of the pairs."""
        from decentral.network.payload import bytes_of

        return prices.allgather_s(bytes_of(self.sizes(step, dtype)))
