"""Top-k in every layer by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.compression.sparse import SparseRatio

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.compression.address import Address
    from decentral.network.payload import Sizes


@dataclass
class LayerwiseTopK(SparseRatio):
    """The largest entries of each parameter tensor, exactly ("LWTopk" of Tyagi & Swany, BigData 2023).

        for each parameter of P_l numbers:  k_l = max(1, floor(keep P_l)),   C(e_l) = the k_l largest of |e_l|

    Bytes: sum_l k_l (4 + index_bytes) for float32 rows. Each parameter sends at least one entry, so that many small
    ones (biases, normalisation) make it more than `topk` sends. Equal magnitudes, and what is no number: as `topk`.

    Departure: the authors gather sizes, values and indices of each layer, three collectives for every layer, with
    padding to the largest. The sizes are known here, so that all layers are one payload, with indices into the row.
    """

    name: str = "lwtopk"

    def sizes(self, step: int, dtype: torch.dtype) -> Sizes:
        """sum_l k_l pairs."""
        return self.sizes_of(sum(self._counts(step)), dtype)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """The largest k_l of every layer, layer by layer."""
        import torch

        from decentral.compression.arithmetic.selection import largest

        counts, start = self._counts(at.step), 0
        found = self.scratch.take("layers", sum(counts), e, torch.int64)
        for part, k in zip(self.layout.slices, counts, strict=True):
            torch.add(largest(e[part], k, self.scratch), part.start, out=found[start : start + k])
            start += k
        return found

    def _counts(self, step: int) -> list[int]:
        sizes = (part.stop - part.start for part in self.layout.slices)
        return [self.count(size, step) if size else 0 for size in sizes]
