"""A cell changes little, or less than another, along a label."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import combined, doubt, level, missing, number, told
from decentral.report.entries import Entry, plain


class _Change(NamedTuple):
    """The largest mean less the smallest, along a label."""

    size: float
    ratio: float
    error: float | None
    words: str


def _change(cell: dict[str, Any], across: dict[str, list[Any]], cells: Cells, says: str, larger: bool) -> Any:
    """The change of a cell along `across`, or a Finding that says what was not run."""
    ((label, values),) = across.items()
    found: list[Entry] = []
    for value in values:
        entry = cells.find({**cell, label: value}, says)
        absent = missing(({**cell, label: value}, entry))
        if absent or entry is None:
            return absent
        found.append(entry)
    levels = [level(entry, larger) for entry in found]
    low, high = levels.index(min(levels)), levels.index(max(levels))
    size = levels[high] - levels[low] if math.isfinite(levels[high]) and math.isfinite(levels[low]) else math.inf
    if size == math.inf and levels[high] == levels[low]:
        size = math.inf  # all diverged: nothing is steady about that
    ratio = levels[high] / levels[low] if levels[low] > 0 and math.isfinite(size) else math.inf
    words = ", ".join(f"{told(entry)} at {label}={plain(value)}" for value, entry in zip(values, found, strict=True))
    return _Change(size, ratio, combined([found[low], found[high]]), words)


def _check_across(across: dict[str, list[Any]], says: str) -> None:
    if len(across) != 1 or any(len(values) < 2 for values in across.values()):
        raise ConfigError(f"the claim '{says}' needs `across` with one label and at least two of its values.")


@dataclass
class Steady(Claim):
    """The largest mean along `across` is at most `within` above the smallest (or at most `factor` times it)."""

    name: str = "steady"
    cell: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    within: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        _check_across(self.across, self.says)
        if (self.within is None) == (self.factor is None):
            raise ConfigError(f"the claim '{self.says}' needs either `within` or `factor`.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Look at the change of the mean over seeds."""
        change = _change(self.cell, self.across, cells, self.says, larger_is_better)
        if isinstance(change, Finding):
            return change
        if self.within is not None:
            held, tolerance = change.size <= self.within, f"within {self.within:g}"
        else:
            held, tolerance = change.ratio <= (self.factor or 1.0), f"within a factor of {self.factor:g}"
        why = f"{change.words}: a change of {number(change.size)}"
        ours = change.size if math.isfinite(change.size) else None
        return Finding(MET if held else NOT_MET, ours, change.error, tolerance, why)


@dataclass
class Steadier(Claim):
    """The mean of `first` changes less along `across` than that of `second`."""

    name: str = "steadier"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_across(self.across, self.says)
        if not self.first or not self.second:
            raise ConfigError(f"the claim '{self.says}' needs both `first` and `second`, each with labels of a cell.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two changes."""
        first = _change(self.first, self.across, cells, self.says, larger_is_better)
        second = _change(self.second, self.across, cells, self.says, larger_is_better)
        for change in (first, second):
            if isinstance(change, Finding):
                return change
        gap = second.size - first.size if math.isfinite(first.size) else -math.inf
        known = first.error is not None and second.error is not None
        error = math.hypot(first.error, second.error) if known else None
        why = f"a change of {number(first.size)} ({first.words}) against {number(second.size)} ({second.words})"
        ours = gap if math.isfinite(gap) else None
        why += doubt(gap, error) if ours is not None else ""
        return Finding(MET if gap > 0 else NOT_MET, ours, error, "a smaller change", why)
