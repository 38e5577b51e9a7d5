"""Checkable claims of a paper about its numbers, with their certainty."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

from decentral.errors import ConfigError, suggest
from decentral.report.entries import Entry, plain

MET, NOT_MET, NOT_RUN = "met", "not met", "not run"
WITHIN_NOISE = "within the noise"
"""How the reason of a verdict begins whose difference may be chance: it is smaller than `noise`."""
ONE_SIGMA = 0.8413447
"""The share of a normal distribution that is below its mean plus one standard deviation."""


class Finding(NamedTuple):
    """The result of a claim: one line of verdicts.csv."""

    verdict: str
    ours: float | None = None
    spread: float | None = None
    tolerance: str = ""
    why: str = ""


class NotRun(Exception):
    """A cell has no values yet, or is incomplete; says which one and why."""


@dataclass(frozen=True)
class Cells:
    """The entries of a study, to be found by some of their labels."""

    entries: list[Entry]
    study: str

    def find(self, says: str, *wanted: Mapping[str, Any]) -> list[Entry]:
        """Return for each of `wanted` the one entry with these labels, of the first metric unless `metric` is given.

        A metric may be a pattern, such as `simulated_s to *`, for numbers that are called differently from scale to
        scale. Raises ConfigError if a label does not exist or several entries have them, NotRun while one of them is
        not complete.
        """
        found = [self._find(one, says) for one in wanted]  # a label that does not exist is refused first
        for entry, labels in zip(found, wanted, strict=True):
            words = ", ".join(f"{name}={plain(value)}" for name, value in labels.items())
            if entry is None:
                raise NotRun(f"no run of {words} has ended")
            if entry.unfinished:
                raise NotRun(f"{entry.unfinished} of {words}")
        return [entry for entry in found if entry is not None]

    def _find(self, wanted: Mapping[str, Any], says: str) -> Entry | None:
        """Return the entry with these labels; None if no run of it has ended."""
        if not self.entries:
            return None
        where = f"study {self.study}: the claim '{says}'"
        known = [*dict.fromkeys(name for entry in self.entries for name in entry.labels), "metric"]
        for name in wanted:
            if name not in known:
                raise ConfigError(f"{where} names a label '{name}'.{suggest(name, known)}")
        labels = {name: plain(value) for name, value in wanted.items()}
        metric = labels.pop("metric", self.entries[0].metric)
        alike = [one for one in self.entries if labels.items() <= one.labels.items()]
        exact = any(one.metric == metric for one in self.entries)
        found = [one for one in alike if (one.metric == metric if exact else fnmatchcase(one.metric, metric))]
        if len(found) > 1:
            both = ({**entry.labels, "metric": entry.metric} for entry in found[:2])
            first, second = (", ".join(f"{name}={value}" for name, value in one.items()) for one in both)
            raise ConfigError(f"{where} matches both {first} and {second}: give it more labels.")
        return found[0] if found and (found[0].values or found[0].lost) else None


@dataclass
class Claim(ABC):
    """A dataclass whose fields are its keys; the subclass has a `name`, which is its `kind`."""

    says: str = ""
    larger_is_better: bool | None = field(default=None, kw_only=True)
    """Null: as in the report."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Keys that say which cells it is about."""

    def __post_init__(self) -> None:
        across: dict[str, list[Any]] | None = getattr(self, "across", None)
        if across is not None and (len(across) != 1 or any(len(values) < 2 for values in across.values())):
            raise ConfigError(f"the claim '{self.says}' needs `across` with one label and at least two of its values.")
        for key in self.needs:
            if not getattr(self, key):
                raise ConfigError(f"the claim '{self.says}' needs `{key}`, the labels of a cell.")

    @property
    def metric(self) -> str:
        """The metric that its cells name; '' if they mean the study's first."""
        named = [value["metric"] for value in vars(self).values() if isinstance(value, dict) and "metric" in value]
        return str(named[0]) if named else ""

    @abstractmethod
    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Return whether our numbers agree. Raises NotRun if some of them are missing."""

    def _need_one_of(self, first: str, second: str) -> None:
        if (getattr(self, first) is None) == (getattr(self, second) is None):
            raise ConfigError(f"the claim '{self.says}' needs either `{first}` or `{second}`.")


@dataclass
class Bound(Claim):
    """The mean of `cell` is `at_most` or `at_least` a number; where a run has no value, the median, in which it is the
    worst there is."""

    name: str = "bound"
    cell: dict[str, Any] = field(default_factory=dict)
    at_most: float | None = None
    at_least: float | None = None
    needs: ClassVar = ("cell",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need_one_of("at_most", "at_least")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the mean over seeds with the bound."""
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
    needs: ClassVar = ("better", "worse")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two means."""
        better, worse = cells.find(self.says, self.better, self.worse)
        above, below = (better, worse) if larger_is_better else (worse, better)
        high, low = above.level(larger_is_better), below.level(larger_is_better)
        gap, times = high - low, 1.0 if self.factor is None else self.factor
        if self.factor is not None:
            held, tolerance = at_most(times * low, high), f"at least {times:g} times"
        else:
            held = at_most(self.by, gap) if self.by else gap > 0
            tolerance = f"by at least {self.by:g}" if self.by else "any difference"
        held = held and math.isfinite(better.level(larger_is_better))
        error = combined((1, better), (-1, worse))
        why = f"{told(better)} against {told(worse)}"
        if not math.isfinite(gap):
            return Finding(MET if held else NOT_MET, None, error, tolerance, why)
        ratio = f", {high / low:.4g} times" if self.factor is not None and low > 0 else ""
        why += f": a difference of {gap:.4g}{ratio}"
        margin = gap - self.by if self.factor is None else high - times * low
        # with a factor below 1, no difference at all is good enough
        why = weighed(why, margin, combined((1.0, above), (-times, below)), [better, worse], always=times >= 1)
        return Finding(MET if held else NOT_MET, gap, error, tolerance, why)


def _change(low: Entry, high: Entry, larger_is_better: bool) -> tuple[float, float]:
    """Return the increase from the level of `low` to that of `high`, as a difference and a ratio; infinite if one of
    them is unknown, and never negative."""
    least, most = low.level(larger_is_better), high.level(larger_is_better)
    finite = math.isfinite(least) and math.isfinite(most)
    ratio = max(1.0, most / least) if finite and least > 0 else math.inf
    return max(0.0, most - least) if finite else math.inf, ratio


@dataclass
class _Limited(Claim):
    """A claim that a change is at most `within`, or at most by `factor`."""

    within: float | None = field(default=None, kw_only=True)
    factor: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need_one_of("within", "factor")

    def held(self, low: Entry, high: Entry, why: str, always: bool, larger_is_better: bool) -> Finding:
        """Return whether a change is within the limit; `why` adds an explanation if the certainty is `always` known."""
        size, ratio = _change(low, high, larger_is_better)
        if self.within is not None:
            held, tolerance, times = at_most(size, self.within), f"within {self.within:g}", 1.0
            margin = self.within - size
        else:
            times = self.factor or 1.0
            held, tolerance = at_most(ratio, times), f"within a factor of {times:g}"
            margin = times * low.level(larger_is_better) - high.level(larger_is_better)
        error = combined((1, high), (-times, low))
        if math.isfinite(size) and always:
            why = weighed(why, margin, error, [low, high], always=False)
        return Finding(MET if held else NOT_MET, None, error, tolerance, why)


@dataclass
class Close(_Limited):
    """The means of `first` and `second` differ by at most `within` (or at most by `factor`, the larger of the two)."""

    name: str = "close"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    needs: ClassVar = ("first", "second")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two means; a cell whose runs have no value is close to nothing."""
        first, second = cells.find(self.says, self.first, self.second)
        low, high = sorted((first, second), key=lambda entry: entry.level(larger_is_better))
        size, ratio = _change(low, high, larger_is_better)
        ours = ratio if self.within is None else size
        why = f"{told(first)} against {told(second)}"
        if math.isfinite(size):
            why += f": {ours:.4g} times" if self.within is None else f": a difference of {ours:.4g}"
        found = self.held(low, high, why, True, larger_is_better)
        return found._replace(ours=ours if math.isfinite(ours) else None)


@dataclass
class Steady(_Limited):
    """The largest mean along `across` is at most `within` above the smallest (or at most `factor` times it).

    With `loss`, only what is worse than at the first value of `across` counts; a gain is no loss.
    """

    name: str = "steady"
    cell: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    loss: bool = False

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Check the change of the mean over seeds."""
        low, high, words = _along(cells, self.cell, self, larger_is_better)
        size, _ = _change(low, high, larger_is_better)
        why = f"{words}: a {'loss' if self.loss else 'change'} of {size:.4g}"
        # a gain where a loss is claimed is certain
        found = self.held(low, high, why, size > 0, larger_is_better)
        return found._replace(ours=size if math.isfinite(size) else None)


@dataclass
class Steadier(Claim):
    """The mean of `first` changes less along `across` than that of `second`; with `loss`, it loses less."""

    name: str = "steadier"
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)
    loss: bool = False
    needs: ClassVar = ("first", "second")

    def check(self, cells: Cells, larger_is_better: bool) -> Finding:
        """Compare the two changes."""
        low, high, ours = _along(cells, self.first, self, larger_is_better)
        least, most, theirs = _along(cells, self.second, self, larger_is_better)
        size, other = (_change(*pair, larger_is_better)[0] for pair in ((low, high), (least, most)))
        signs = (1, most), (-1, least), (-1, high), (1, low)
        gap, error, noun = other - size, combined(*signs), "loss" if self.loss else "change"
        why = f"a {noun} of {size:.4g} ({ours}) against {other:.4g} ({theirs})"
        if not math.isfinite(size):
            gap = -math.inf
        if math.isfinite(gap):
            why = weighed(why, gap, error, [entry for _, entry in signs])
        shown = gap if math.isfinite(gap) else None
        return Finding(MET if gap > 0 else NOT_MET, shown, error, f"a smaller {noun}", why)


def _along(
    cells: Cells, cell: dict[str, Any], claim: Steady | Steadier, larger_is_better: bool
) -> tuple[Entry, Entry, str]:
    """Return the two entries between which a cell changes along `across` (the smallest and the largest mean, or the
    first and the worst of the others), and all means in words."""
    ((label, values),) = claim.across.items()
    found = cells.find(claim.says, *[{**cell, label: value} for value in values])
    levels = [entry.level(larger_is_better) for entry in found]
    low, high = levels.index(min(levels)), levels.index(max(levels))
    if claim.loss:
        others = levels[1:]
        worst = levels.index(min(others) if larger_is_better else max(others), 1)
        low, high = (worst, 0) if larger_is_better else (0, worst)
    words = ", ".join(f"{told(entry)} at {label}={plain(value)}" for value, entry in zip(values, found, strict=True))
    return found[low], found[high], words


# -- how sure it is ----------------------------------------------------------------------------------------------------


def told(entry: Entry) -> str:
    """Format an entry, for example '84.6 ± 0.3 (1 of 3 diverged)', with four digits."""
    if not entry.values:
        return "never" if entry.never else "diverged"
    text = f"{entry.mean:.4g}" + (f" ± {entry.std:.2g}" if entry.std is not None else "")
    notes = [f"{entry.diverged} of {entry.runs} diverged"] if entry.diverged else []
    notes += [f"{entry.never} of {entry.runs} never"] if entry.never else []
    return f"{text} ({', '.join(notes)})" if notes else text


def combined(*terms: tuple[float, Entry]) -> float | None:
    """Return the standard error of a sum of means, each times its factor: (1, a), (-1, b) for a difference.

    Where all have the same seeds, that of the sums seed by seed, since a seed gives all methods the same data, models
    and delays; otherwise as of independent means. None if a spread is not known. Of runs without a value it knows
    nothing.
    """
    entries = [entry for _, entry in terms]
    if any(entry.error is None for entry in entries):
        return None
    seeds = entries[0].by_seed.keys()
    if seeds and all(entry.by_seed.keys() == seeds for entry in entries):
        sums = [math.fsum(factor * entry.by_seed[seed] for factor, entry in terms) for seed in seeds]
        return statistics.stdev(sums) / math.sqrt(len(sums))
    return math.hypot(*[factor * (entry.error or 0.0) for factor, entry in terms])


def noise(error: float, entries: Sequence[Entry], sure: float = ONE_SIGMA) -> float:
    """Return what a difference with this standard error has to exceed: the error itself if there are many seeds.

    Few seeds need more, as Student's t says (1.8 times the error for 2, 1.3 times for 3). Where there is no difference,
    chance exceeds it to one side in 16 % of cases, or 1 - `sure`.
    """
    from scipy.special import stdtrit

    freedom = min(len(entry.values) for entry in entries) - 1
    return error * float(stdtrit(freedom, sure)) if error else 0.0


def weighed(why: str, margin: float, error: float | None, entries: Sequence[Entry], always: bool = True) -> str:
    """`why`, with a remark where the margin by which a claim is met or missed is within the noise, or it is not known
    whether it is: in a study without any spread only if `always`."""
    if error is None:
        stochastic = any(entry.runs > 1 for entry in entries)
        words = f"{why}; the spread over seeds is unknown"
        return f"{WITHIN_NOISE}: {words}" if stochastic else words if always else why
    if abs(margin) < noise(error, entries):
        seeds = min(len(entry.values) for entry in entries)
        return f"{WITHIN_NOISE}: {why}, with a standard error of {error:.4g} from {seeds} seeds"
    return why


def at_most(value: float, limit: float) -> bool:
    """Return whether a value is at most a limit, up to rounding."""
    return value <= limit or math.isclose(value, limit, rel_tol=1e-9)
