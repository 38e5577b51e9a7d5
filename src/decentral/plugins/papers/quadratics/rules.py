"""The problems of an ensemble, and searches for their learning rates, as the RelaySum paper's appendix C.4 does them.

A search is a generator: it yields the rate to try next and is sent the `Trial`, what came of it; it returns the best.
A trial is a run that is looked at at some steps; the rule's `judge` says at each of them whether it has ended.
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
    """What tells one problem of an ensemble from the others."""

    seed: int
    """Draws the problem (unless task.problem_seed does) and the noise of its gradients."""
    zeta2: float
    """Heterogeneity 1/n sum_i ||grad f_i(x*)||^2."""


class Rated(NamedTuple):
    """A member with its learning rate."""

    seed: int
    zeta2: float
    lr: float


class Outcome(StrEnum):
    """How a trial ended."""

    reached = "reached"  # the target
    plateau = "plateau"  # the error stays where it is
    diverged = "diverged"  # not a number, or above the first error seen
    rising = "rising"  # the error rises while it is above the target
    late = "late"  # ten times as many steps as the best trial
    unfinished = "unfinished"  # none of these within the largest number of steps


class Trial(NamedTuple):
    """A learning rate that was tried."""

    lr: float
    outcome: Outcome
    step: int
    error: float
    """f(mean x) - f(x*) at this step; of a plateau, the mean of its points."""


class Proposal(NamedTuple):
    """What a search tries next."""

    lr: float
    best_step: int | None
    """Of the best trial so far: a trial that takes ten times as long is given up."""


Searching = Generator[Proposal, Trial, "Trial | None"]


@dataclass(frozen=True)
class Rule(ABC):
    """What is looked for.

    start_lr      first learning rate (fastest: twice this one)
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
        """The search for one member: yields a `Proposal`, is sent its `Trial`, returns the best trial or None."""

    def parameters(self) -> dict[str, Any]:
        """What tells it from other rules, as JSON values: part of a search's id."""
        return {"rule": type(self).__name__.lower(), **asdict(self)}

    @abstractmethod
    def judge(self, step: int, errors: Sequence[float], best_step: int | None) -> Trial | None:
        """How a trial ends at this step (its lr left nan), or None if it goes on; `errors` are all seen up to here."""

    def _ended(self, step: int, errors: Sequence[float], best_step: int | None, tolerance: float) -> Trial | None:
        """Too late to be the best; diverged; rising though it is above the target; or on a plateau: the last points are
        within `tolerance` of their mean."""
        error, last = errors[-1], errors[-_PLATEAU_POINTS:]
        level = sum(last) / _PLATEAU_POINTS
        if best_step is not None and step > 10 * best_step:
            return Trial(math.nan, Outcome.late, step, error)
        if math.isnan(error) or error > errors[0]:
            return Trial(math.nan, Outcome.diverged, step, error)
        if len(errors) > 1 and error > errors[-2] and error > self.target:
            return Trial(math.nan, Outcome.rising, step, error)
        if len(last) == _PLATEAU_POINTS and all(abs(one - level) < tolerance for one in last):
            return Trial(math.nan, Outcome.plateau, step, level)
        return None

    def grid(self) -> list[int]:
        """The steps that are looked at."""
        top = math.log2(self.max_steps)
        points = [2 ** (top * i / (self.test_points - 1)) for i in range(self.test_points)]
        return sorted({round(point) for point in points if round(point) < self.max_steps})


@dataclass(frozen=True)
class Fastest(Rule):
    """The rate that reaches the target in the fewest steps: for methods that converge linearly.

    Halve the rate until the target is reached, go on as long as that is faster, then bisect. The error has to fall
    until it is at the target. (The authors' code returns half of the rate that it found best: their step counts are
    right, curves drawn with their "tuned" rate use half of it.)
    """

    def parameters(self) -> dict[str, Any]:
        """With `allow_rising`: it once was a choice, and the ids of searches stay."""
        return {**super().parameters(), "allow_rising": False}

    def search(self) -> Searching:
        """Halve while that is faster, then bisect between the fastest known and the slower rate below it."""
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
        """Reached as soon as an error is below the target."""
        if errors[-1] < self.target:
            return Trial(math.nan, Outcome.reached, step, errors[-1])
        return self._ended(step, errors, best_step, self.target / 10)


@dataclass(frozen=True)
class Plateau(Rule):
    """The rate whose plateau is just below the target: for methods that stop short of the optimum.

    Bisect for the largest rate whose plateau is from target / 1.1 to the target; errors that rise above the target
    count as too large. Of all rates with a plateau below the target, the one that is there first.
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
        """A plateau is one where the last points are within target / 100 of their mean."""
        return self._ended(step, errors, best_step, self.target / 100)


class Tuning:
    """The search of one member: the rate that it proposes, the trials that are known already, and its answer."""

    def __init__(self, rule: Rule, known: dict[float, Trial]) -> None:
        self.rule, self.known = rule, known
        """By learning rate."""
        self.proposal: Proposal | None = None
        self.best: Trial | None = None
        self._search: Any = rule.search()
        self.answer(None)

    def answer(self, trial: Trial | None) -> None:
        """Go on to the next rate that is not known, with what came of the one that it proposed (None: it begins); at
        the end `proposal` is None."""
        if trial is not None:
            self.known[trial.lr] = trial
        try:
            self.proposal = self._search.send(trial)
            while self.proposal.lr in self.known:
                self.proposal = self._search.send(self.known[self.proposal.lr])
        except StopIteration as ended:
            self.proposal, self.best = None, ended.value


RULES: dict[str, type[Rule]] = {"fastest": Fastest, "plateau": Plateau}
