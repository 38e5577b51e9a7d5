"""What a paper says of its numbers, as something that can be checked: bound, close, order, steady, steadier."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.report.claims.claim import MET, NOT_MET, Cells, Claim, Finding
from decentral.report.claims.weighing import at_most, combined, number, told, weighed
from decentral.report.entries import Entry, plain


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
        (entry,) = cells.find(self.says, self.cell)
        ours = entry.level(larger_is_better)
        if self.at_most is not None:
            limit, held, tolerance = self.at_most, at_most(ours, self.at_most), f"at most {self.at_most:g}"
        else:
            limit = self.at_least or 0.0
            held, tolerance = at_most(limit, ours), f"at least {limit:g}"
        if not math.isfinite(ours):
            return Finding(NOT_MET, None, entry.std, tolerance, told(entry))
        why = weighed(told(entry), ours - limit, combined((1, entry)), [entry], always=False)
        return Finding(MET if held else NOT_MET, ours, entry.std, tolerance, why)


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
        better, worse = cells.find(self.says, self.better, self.worse)
        above, below = (better, worse) if larger_is_better else (worse, better)
        high, low = above.level(larger_is_better), below.level(larger_is_better)
        gap, times = high - low, 1.0 if self.factor is None else self.factor
        if self.factor is not None:
            held, tolerance = at_most(self.factor * low, high), f"at least {self.factor:g} times"
            margin = high - self.factor * low
        else:
            held = at_most(self.by, gap) if self.by else gap > 0
            tolerance = f"by at least {self.by:g}" if self.by else "any difference"
            margin = gap - self.by
        held = held and math.isfinite(better.level(larger_is_better))
        error = combined((1, better), (-1, worse))
        why = f"{told(better)} against {told(worse)}"
        if not math.isfinite(gap):
            return Finding(MET if held else NOT_MET, None, error, tolerance, why)
        ratio = f", {number(high / low)} times" if self.factor is not None and low > 0 else ""
        why += f": a difference of {number(gap)}{ratio}"
        spread = combined((1.0, above), (-times, below))
        # with a factor below 1, no difference at all is good enough
        why = weighed(why, margin, spread, [better, worse], always=times >= 1)
        return Finding(MET if held else NOT_MET, gap, error, tolerance, why)


class _Change(NamedTuple):
    """The difference of two means: infinite where one of them is not known, and never below zero."""

    low: Entry
    high: Entry
    size: float
    ratio: float

    @classmethod
    def between(cls, low: Entry, high: Entry, larger_is_better: bool) -> _Change:
        """From the level of `low` up to that of `high`."""
        least, most = low.level(larger_is_better), high.level(larger_is_better)
        finite = math.isfinite(least) and math.isfinite(most)
        size = max(0.0, most - least) if finite else math.inf
        ratio = max(1.0, most / least) if finite and least > 0 else math.inf
        return cls(low, high, size, ratio)

    def held(self, limit: _Limited, larger_is_better: bool) -> tuple[bool, str, float, float | None]:
        """Whether it is within the limit of a claim; the limit in words, the margin, and its standard error."""
        if limit.within is not None:
            margin, error = limit.within - self.size, combined((1, self.high), (-1, self.low))
            return at_most(self.size, limit.within), f"within {limit.within:g}", margin, error
        factor = limit.factor or 1.0
        margin = factor * self.low.level(larger_is_better) - self.high.level(larger_is_better)
        error = combined((1, self.high), (-factor, self.low))
        return at_most(self.ratio, factor), f"within a factor of {factor:g}", margin, error


@dataclass
class _Limited(Claim):
    """A claim that a change is at most `within`, or at most by `factor`."""

    within: float | None = field(default=None, kw_only=True)
    factor: float | None = field(default=None, kw_only=True)

    def _check_limits(self) -> None:
        if (self.within is None) == (self.factor is None):
            raise ConfigError(f"the claim '{self.says}' needs either `within` or `factor`.")


@dataclass
class Close(_Limited):
    """The means of `first` and `second` differ by at most `within` (or at most by `factor`, the larger of the two)."""

    name: str = "close"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.first or not self.second:
            raise ConfigError(f"the claim '{self.says}' needs both `first` and `second`, each with labels of a cell.")
        self._check_limits()

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two means; a cell whose runs have no value is close to nothing."""
        first, second = cells.find(self.says, self.first, self.second)
        low, high = sorted((first, second), key=lambda entry: entry.level(larger_is_better))
        change = _Change.between(low, high, larger_is_better)
        held, tolerance, margin, error = change.held(self, larger_is_better)
        ours = change.ratio if self.within is None else change.size
        why = f"{told(first)} against {told(second)}"
        if math.isfinite(change.size):
            why += f": {number(ours)} times" if self.within is None else f": a difference of {number(ours)}"
            why = weighed(why, margin, error, [first, second], always=False)
        return Finding(MET if held else NOT_MET, ours if math.isfinite(ours) else None, error, tolerance, why)


def _along(cells: Cells, cell: dict[str, Any], claim: Steady | Steadier, larger_is_better: bool) -> tuple[_Change, str]:
    """How a cell changes along `across`: the largest mean against the smallest, or the first against the worst of the
    others; and all means in words."""
    ((label, values),) = claim.across.items()
    found = cells.find(claim.says, *[{**cell, label: value} for value in values])
    levels = [entry.level(larger_is_better) for entry in found]
    low, high = levels.index(min(levels)), levels.index(max(levels))
    if claim.loss:
        others = levels[1:]
        worst = levels.index(min(others) if larger_is_better else max(others), 1)
        low, high = (worst, 0) if larger_is_better else (0, worst)
    words = ", ".join(f"{told(entry)} at {label}={plain(value)}" for value, entry in zip(values, found, strict=True))
    return _Change.between(found[low], found[high], larger_is_better), words


def _check_across(across: dict[str, list[Any]], says: str) -> None:
    if len(across) != 1 or any(len(values) < 2 for values in across.values()):
        raise ConfigError(f"the claim '{says}' needs `across` with one label and at least two of its values.")


def _noun(loss: bool) -> str:
    return "loss" if loss else "change"


@dataclass
class Steady(_Limited):
    """The largest mean along `across` is at most `within` above the smallest (or at most `factor` times it).

    With `loss`, only what is worse than at the first value of `across` counts; a gain is no loss.
    """

    name: str = "steady"
    cell: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    loss: bool = False

    def __post_init__(self) -> None:
        _check_across(self.across, self.says)
        self._check_limits()

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Look at the change of the mean over seeds."""
        change, words = _along(cells, self.cell, self, larger_is_better)
        held, tolerance, margin, error = change.held(self, larger_is_better)
        why = f"{words}: a {_noun(self.loss)} of {number(change.size)}"
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
        first, ours = _along(cells, self.first, self, larger_is_better)
        second, theirs = _along(cells, self.second, self, larger_is_better)
        signs = (1, second.high), (-1, second.low), (-1, first.high), (1, first.low)
        gap, error, noun = second.size - first.size, combined(*signs), _noun(self.loss)
        why = f"a {noun} of {number(first.size)} ({ours}) against {number(second.size)} ({theirs})"
        if not math.isfinite(first.size):
            gap = -math.inf
        if not math.isfinite(gap):
            return Finding(MET if gap > 0 else NOT_MET, None, error, f"a smaller {noun}", why)
        why = weighed(why, gap, error, [entry for _, entry in signs])
        return Finding(MET if gap > 0 else NOT_MET, gap, error, f"a smaller {noun}", why)
