"""Top-k: the largest entries of the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.compression.sparse import SparseRatio

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.address import Address


@dataclass
class TopK(SparseRatio):
    """The k entries of the whole row with the largest magnitude, exactly (Aji & Heafield, EMNLP 2017).

        I = the k indices with the largest |e|,   C(e) = e on I, 0 elsewhere,   k = max(1, floor(keep P))

    Bytes: k (4 + index_bytes) for float32 rows; 8 + index_bytes for float64. Of equal magnitudes those with smaller
    indices are sent. An entry that is infinite or no number is larger than all others.

    Departures: the authors of "Flexible Communication for Optimal Distributed Learning" (BigData 2023) start from an
    uninitialised residual and send indices of 8 bytes: here residuals start at 0, and `index_bytes=4`. Their padding,
    which can drop entry 0, is not needed: all payloads have the same length.
    """

    name: str = "topk"

    def places(self, e: Tensor, at: Address) -> Tensor:
        """The largest k."""
        from decentral.compression.arithmetic.selection import largest

        return largest(e, self.count(len(e), at.step), self.scratch)
