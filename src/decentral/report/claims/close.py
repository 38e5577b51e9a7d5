"""Two cells are about as good."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import at_most, combined, missing, number, told, weighed


@dataclass
class Close(Claim):
    """The means of `first` and `second` differ by at most `within` (or at most by `factor`, the larger of the two)."""

    name: str = "close"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    within: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        if not self.first or not self.second:
            raise ConfigError(f"the claim '{self.says}' needs both `first` and `second`, each with labels of a cell.")
        if (self.within is None) == (self.factor is None):
            raise ConfigError(f"the claim '{self.says}' needs either `within` or `factor`.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two means; a cell whose runs have no value is close to nothing."""
        first, second = cells.find(self.first, self.says), cells.find(self.second, self.says)
        absent = missing((self.first, first), (self.second, second), cells=cells)
        if absent or first is None or second is None:
            return absent or Finding(NOT_MET)
        below, above = sorted((first, second), key=lambda entry: entry.level(larger_is_better))
        low, high = below.level(larger_is_better), above.level(larger_is_better)
        finite = math.isfinite(low) and math.isfinite(high)
        gap = high - low if finite else math.inf
        ratio = high / low if finite and low > 0 else math.inf
        why = f"{told(first)} against {told(second)}"
        if self.within is not None:
            held, tolerance, ours = at_most(gap, self.within), f"within {self.within:g}", gap
            why += f": a difference of {number(gap)}" if finite else ""
            margin, error = self.within - gap, combined((1, above), (-1, below))
        else:
            factor = self.factor or 1.0
            held, tolerance, ours = at_most(ratio, factor), f"within a factor of {factor:g}", ratio
            why += f": {number(ratio)} times" if finite else ""
            margin, error = factor * low - high, combined((1, above), (-factor, below))
        why = weighed(why, margin, error, [first, second], always=False) if finite else why
        verdict = MET if held else NOT_MET
        return Finding(verdict, ours if math.isfinite(ours) else None, error, tolerance, why)
