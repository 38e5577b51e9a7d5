"""A cell is below or above a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import at_most, combined, missing, told, weighed


@dataclass
class Bound(Claim):
    """The mean of `cell` is `at_most` or `at_least` a number; where a run has no value, the median, in which it is the
    worst there is."""

    name: str = "bound"
    cell: dict[str, Any] = field(default_factory=dict)
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if not self.cell:
            raise ConfigError(f"the claim '{self.says}' needs `cell`, the labels of a cell.")
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(f"the claim '{self.says}' needs either `at_most` or `at_least`.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Look at the mean over seeds."""
        entry = cells.find(self.cell, self.says)
        absent = missing((self.cell, entry), cells=cells)
        if absent or entry is None:
            return absent or Finding(NOT_MET)
        ours = entry.level(larger_is_better)
        if self.at_most is not None:
            held, tolerance = at_most(ours, self.at_most), f"at most {self.at_most:g}"
        else:
            assert self.at_least is not None
            held, tolerance = at_most(self.at_least, ours), f"at least {self.at_least:g}"
        if not math.isfinite(ours):
            return Finding(NOT_MET, None, entry.std, tolerance, told(entry))
        limit = self.at_least if self.at_most is None else self.at_most
        why = weighed(told(entry), ours - (limit or 0.0), combined((1, entry)), [entry], always=False)
        return Finding(MET if held else NOT_MET, ours, entry.std, tolerance, why)
