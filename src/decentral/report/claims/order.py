"""One cell is better than another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import at_most, combined, missing, number, told, weighed


@dataclass
class Order(Claim):
    """`better` has a better mean over seeds than `worse`, by at least `by` (or at least `factor` times).

    A cell in which a run has no value, as it diverged or never got to the target, is compared by the median, in which
    such a run is the worst there is.
    """

    name: str = "order"
    better: dict[str, Any] = field(default_factory=dict)
    worse: dict[str, Any] = field(default_factory=dict)
    by: float = 0.0
    factor: float | None = None

    def __post_init__(self) -> None:
        if not self.better or not self.worse:
            raise ConfigError(f"the claim '{self.says}' needs both `better` and `worse`, each with labels of a cell.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two means."""
        better, worse = cells.find(self.better, self.says), cells.find(self.worse, self.says)
        absent = missing((self.better, better), (self.worse, worse), cells=cells)
        if absent or better is None or worse is None:
            return absent or Finding(NOT_MET)
        first, second = better.level(larger_is_better), worse.level(larger_is_better)
        high, low = (first, second) if larger_is_better else (second, first)
        gap = high - low
        if self.factor is not None:
            held, tolerance = at_most(self.factor * low, high), f"at least {self.factor:g} times"
            margin, weights = high - self.factor * low, (1.0, -self.factor)
        else:
            held = at_most(self.by, gap) if self.by else gap > 0
            tolerance = f"by at least {self.by:g}" if self.by else "any difference"
            margin, weights = gap - self.by, (1.0, -1.0)
        held = held and math.isfinite(first)
        error = combined((1, better), (-1, worse))
        why = f"{told(better)} against {told(worse)}"
        if math.isfinite(gap):
            ratio = f", {number(high / low)} times" if self.factor is not None and low > 0 else ""
            why += f": a difference of {number(gap)}{ratio}"
            asks = self.factor is None or self.factor >= 1  # below 1, no difference at all is good enough
            above, below = (better, worse) if larger_is_better else (worse, better)
            spread = combined((weights[0], above), (weights[1], below))
            why = weighed(why, margin, spread, [better, worse], always=asks)
        return Finding(MET if held else NOT_MET, gap if math.isfinite(gap) else None, error, tolerance, why)
