"""All entries above a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.compression.sparse import Sparse
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.compression.address import Address


@dataclass
class Threshold(Sparse):
    """All entries whose magnitude reaches a threshold (Strom, Interspeech 2015; Dutta et al., AAAI 2020).

        I = {i: |e_i| >= threshold},   C(e) = e on I, 0 elsewhere

    threshold  in units of the gradient, above 0

    Bytes: |I| (4 + index_bytes) for float32 rows, and |I| differs from worker to worker and from step to step, so
    that lengths have to travel, too. Nothing is sent where no entry is large enough: error feedback lets it grow until
    it is. An entry that is infinite or no number is always sent.
    """

    name: str = "threshold"
    threshold: float = setting(0.01, above=0, hint="such as 0.01")
    by_length: ClassVar[bool] = False

    def sizes(self, step: int, dtype: torch.dtype) -> None:
        """Not known before the row is."""

    def places(self, e: Tensor, at: Address) -> Tensor:
        """Where |e| reaches the threshold, rounded to the type of e."""
        from decentral.compression.arithmetic.selection import as_integer, at_least

        return at_least(e, as_integer(self.threshold, e.dtype), self.scratch)[0]
