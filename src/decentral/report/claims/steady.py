"""A cell changes little, or less than another, along a label."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import at_most, combined, missing, number, told, weighed
from decentral.report.entries import Entry, plain


class _Change(NamedTuple):
    """The difference of two means along a label."""

    size: float
    ratio: float
    low: Entry
    high: Entry
    words: str


def _change(claim: Steady | Steadier, cell: dict[str, Any], cells: Cells, larger: bool) -> _Change | Finding:
    """How a cell changes along `across`: the largest mean against the smallest, or the first against the worst of the
    others (a gain is no change). A Finding says what was not run."""
    ((label, values),) = claim.across.items()
    found: list[Entry] = []
    for value in values:
        entry = cells.find({**cell, label: value}, claim.says)
        absent = missing(({**cell, label: value}, entry), cells=cells)
        if absent or entry is None:
            return absent or Finding(NOT_MET)
        found.append(entry)
    levels = [entry.level(larger) for entry in found]
    low, high = levels.index(min(levels)), levels.index(max(levels))
    if claim.loss:
        others = levels[1:]
        worst = levels.index(min(others) if larger else max(others), 1)
        low, high = (worst, 0) if larger else (0, worst)
    finite = all(math.isfinite(levels[place]) for place in (low, high))
    size = max(0.0, levels[high] - levels[low]) if finite else math.inf
    ratio = max(1.0, levels[high] / levels[low]) if finite and levels[low] > 0 else math.inf
    words = ", ".join(f"{told(entry)} at {label}={plain(value)}" for value, entry in zip(values, found, strict=True))
    return _Change(size, ratio, found[low], found[high], words)


def _check_across(across: dict[str, list[Any]], says: str) -> None:
    if len(across) != 1 or any(len(values) < 2 for values in across.values()):
        raise ConfigError(f"the claim '{says}' needs `across` with one label and at least two of its values.")


@dataclass
class Steady(Claim):
    """The largest mean along `across` is at most `within` above the smallest (or at most `factor` times it).

    With `loss`, only what is worse than at the first value of `across` counts; a gain is no loss.
    """

    name: str = "steady"
    cell: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    loss: bool = False
    within: float | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        _check_across(self.across, self.says)
        if (self.within is None) == (self.factor is None):
            raise ConfigError(f"the claim '{self.says}' needs either `within` or `factor`.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Look at the change of the mean over seeds."""
        change = _change(self, self.cell, cells, larger_is_better)
        if isinstance(change, Finding):
            return change
        low, high = change.low.level(larger_is_better), change.high.level(larger_is_better)
        if self.within is not None:
            held, tolerance = at_most(change.size, self.within), f"within {self.within:g}"
            margin, error = self.within - change.size, combined((1, change.high), (-1, change.low))
        else:
            factor = self.factor or 1.0
            held, tolerance = at_most(change.ratio, factor), f"within a factor of {factor:g}"
            margin, error = factor * low - high, combined((1, change.high), (-factor, change.low))
        why = f"{change.words}: a {_noun(self)} of {number(change.size)}"
        if math.isfinite(change.size) and change.size > 0:  # a gain, where a loss is asked for, is beyond doubt
            why = weighed(why, margin, error, [change.low, change.high], always=False)
        ours = change.size if math.isfinite(change.size) else None
        return Finding(MET if held else NOT_MET, ours, error, tolerance, why)


@dataclass
class Steadier(Claim):
    """The mean of `first` changes less along `across` than that of `second`; with `loss`, it loses less."""

    name: str = "steadier"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    loss: bool = False

    def __post_init__(self) -> None:
        _check_across(self.across, self.says)
        if not self.first or not self.second:
            raise ConfigError(f"the claim '{self.says}' needs both `first` and `second`, each with labels of a cell.")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two changes."""
        first = _change(self, self.first, cells, larger_is_better)
        second = _change(self, self.second, cells, larger_is_better)
        if isinstance(first, Finding):
            return first
        if isinstance(second, Finding):
            return second
        gap = second.size - first.size if math.isfinite(first.size) else -math.inf
        signs = (1, second.high), (-1, second.low), (-1, first.high), (1, first.low)
        error = combined(*signs)
        noun = _noun(self)
        why = f"a {noun} of {number(first.size)} ({first.words}) against {number(second.size)} ({second.words})"
        why = weighed(why, gap, error, [entry for _, entry in signs]) if math.isfinite(gap) else why
        ours = gap if math.isfinite(gap) else None
        return Finding(MET if gap > 0 else NOT_MET, ours, error, f"a smaller {noun}", why)


def _noun(claim: Steady | Steadier) -> str:
    return "loss" if claim.loss else "change"
