"""The problems of an ensemble, and searches for their learning rates, as in the RelaySum paper's appendix C.4.

A search is a generator: it yields the rate to try next, is sent the resulting `Trial`, and returns the best trial. A
trial is a run that is evaluated at some steps; at each of them the rule's `judge` decides whether it has ended.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

_MAX_TRIALS = 30
_PLATEAU_POINTS = 3


class Member(NamedTuple):
    """The values that distinguish one problem of an ensemble from the others."""

    seed: int
    """Seed of the problem (unless task.problem_seed is set) and of the noise of its gradients."""
    zeta2: float
    """Heterogeneity 1/n sum_i ||grad f_i(x*)||^2."""


class Rated(NamedTuple):
    """A member with its learning rate."""

    seed: int
    zeta2: float
    lr: float


class Outcome(StrEnum):
    """The outcome of a trial."""

    reached = "reached"  # the target
    plateau = "plateau"  # the error stays where it is
    diverged = "diverged"  # not a number, or above the first error seen
    rising = "rising"  # the error rises while it is above the target
    late = "late"  # ten times as many steps as the best trial
    unfinished = "unfinished"  # none of these within the largest number of steps


class Trial(NamedTuple):
    """A learning rate that was tried, with its result."""

    lr: float
    outcome: Outcome
    step: int
    error: float
    """f(mean x) - f(x*) at this step; for a plateau, the mean of its points."""


class Proposal(NamedTuple):
    """The next rate to try."""

    lr: float
    best_step: int | None
    """Steps of the best trial so far: a trial that takes ten times as long is stopped."""


Searching = Generator[Proposal, Trial, "Trial | None"]


@dataclass(frozen=True)
class Rule(ABC):
    """A criterion for the best learning rate.

    start_lr      first learning rate (fastest: twice this value)
    target        suboptimality to reach, or of the plateau
    max_steps     maximum number of steps of a trial
    test_points   number of steps to check, evenly spaced on a logarithmic scale (rounded, each once)
    """

    start_lr: float = 10.0
    target: float = 1e-6
    max_steps: int = 20_000
    test_points: int = 1000

    @abstractmethod
    def search(self) -> Searching:
        """Return the search for one member: it yields a `Proposal`, is sent its `Trial`, and returns the best trial or
        None."""

    def parameters(self) -> dict[str, Any]:
        """Return the values that distinguish it from other rules, as JSON values: part of a search's ID."""
        return {"rule": type(self).__name__.lower(), **asdict(self)}

    @abstractmethod
    def judge(self, step: int, errors: Sequence[float], best_step: int | None) -> Trial | None:
        """Return how a trial ends at this step (its lr left nan), or None if it continues; `errors` are all values so
        far."""

    def _ended(self, step: int, errors: Sequence[float], best_step: int | None, tolerance: float) -> Trial | None:
        """Return the trial if it ends without success: too late to be the best, diverged, rising above the target, or
        on a plateau, where the last points are within `tolerance` of their mean."""
        error, last = errors[-1], errors[-_PLATEAU_POINTS:]
        level = sum(last) / _PLATEAU_POINTS
        if best_step is not None and step > 10 * best_step:
            return Trial(math.nan, Outcome.late, step, error)
        if math.isnan(error) or error > errors[0]:
            return Trial(math.nan, Outcome.diverged, step, error)
        if len(errors) > 1 and error > errors[-2] and error > self.target:
            return Trial(math.nan, Outcome.rising, step, error)
        if len(last) == _PLATEAU_POINTS and all(abs(point - level) < tolerance for point in last):
            return Trial(math.nan, Outcome.plateau, step, level)
        return None

    def grid(self) -> list[int]:
        """Return the steps at which trials are evaluated."""
        top = math.log2(self.max_steps)
        points = [2 ** (top * i / (self.test_points - 1)) for i in range(self.test_points)]
        return sorted({round(point) for point in points if round(point) < self.max_steps})


@dataclass(frozen=True)
class Fastest(Rule):
    """The rate that reaches the target in the fewest steps: for methods that converge linearly.

    Halve the rate until the target is reached, continue while that is faster, then bisect. The error has to fall until
    it reaches the target. (The authors' code returns half of the best rate: their step counts are right, but curves
    drawn with their "tuned" rate use half of it.)
    """

    def parameters(self) -> dict[str, Any]:
        """Return the parameters with `allow_rising`, a former setting that keeps the IDs of searches unchanged."""
        return {**super().parameters(), "allow_rising": False}

    def search(self) -> Searching:
        """Halve while that is faster, then bisect between the fastest known rate and the slower rate below it."""
        low: float | None = None
        lr = high = 2 * self.start_lr
        best: Trial | None = None
        for _ in range(_MAX_TRIALS):
            if low is not None:
                if high - low <= 1e-4:
                    break
                lr = (low + high) / 2
            trial = yield Proposal(lr, best.step if best else None)
            if trial.outcome in (Outcome.diverged, Outcome.rising, Outcome.plateau):
                high = max(lr, low or 0.0)
                lr /= 2
            elif trial.outcome is Outcome.reached and (best is None or trial.step < best.step):
                best = trial
                lr /= 2
            else:
                low = min(lr, high)
                if trial.outcome is Outcome.reached:
                    high = min(4 * lr, high)
        return best

    def judge(self, step: int, errors: Sequence[float], best_step: int | None) -> Trial | None:
        """Return the trial as reached once an error is below the target."""
        if errors[-1] < self.target:
            return Trial(math.nan, Outcome.reached, step, errors[-1])
        return self._ended(step, errors, best_step, self.target / 10)


@dataclass(frozen=True)
class Plateau(Rule):
    """The rate whose plateau is just below the target: for methods that stop short of the optimum.

    Bisect for the largest rate whose plateau is from target / 1.1 to the target; errors that rise above the target
    count as too large. Of all rates with a plateau below the target, the fastest is returned.
    """

    def search(self) -> Searching:
        """Bisect until a plateau lies just below the target."""
        low, high = None, 2 * self.start_lr
        best: Trial | None = None
        for _ in range(_MAX_TRIALS):
            if low is not None and high - low <= 1e-6:
                break
            lr = ((low or 0.0) + high) / 2
            trial = yield Proposal(lr, best.step if best else None)
            level = trial.error if trial.outcome is Outcome.plateau else math.inf
            if level < self.target and (best is None or trial.step < best.step):
                best = trial
            if self.target / 1.1 < level < self.target:
                break
            too_high = trial.outcome is Outcome.plateau and level > self.target
            if too_high or trial.outcome in (Outcome.diverged, Outcome.rising):
                high = max(lr, low or 0.0)
            else:
                low = min(lr, high)
        return best

    def judge(self, step: int, errors: Sequence[float], best_step: int | None) -> Trial | None:
        """Return how the trial ends; a plateau has its last points within target / 100 of their mean."""
        return self._ended(step, errors, best_step, self.target / 100)


class Tuning:
    """The search of one member: its proposed rate, its known trials, and its result."""

    def __init__(self, rule: Rule, known: dict[float, Trial]) -> None:
        self.rule, self.known = rule, known
        """Known trials by learning rate."""
        self.proposal: Proposal | None = None
        self.best: Trial | None = None
        self._search: Any = rule.search()
        self.answer(None)

    def answer(self, trial: Trial | None) -> None:
        """Continue to the next unknown rate, given the trial of the proposed one (None at the beginning); at the end
        `proposal` is None."""
        if trial is not None:
            self.known[trial.lr] = trial
        try:
            self.proposal = self._search.send(trial)
            while self.proposal.lr in self.known:
                self.proposal = self._search.send(self.known[self.proposal.lr])
        except StopIteration as ended:
            self.proposal, self.best = None, ended.value


RULES: dict[str, type[Rule]] = {"fastest": Fastest, "plateau": Plateau}
