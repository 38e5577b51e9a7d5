"""Rules that choose a learning rate. `tune: {rule: grid}` in a study's YAML chooses `Grid`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.errors import ConfigError
from decentral.settings import Settings, setting

Scores = Mapping[float, float]
"""Learning rate -> score, larger is better; nan where a run diverged."""


class Choice(NamedTuple):
    """A learning rate, and whether a better one may lie outside the tried range."""

    lr: float
    at_edge: bool


class Rule(Settings, ABC, where="tune"):
    """A dataclass whose fields are its configuration."""

    nearest: ClassVar[bool] = False
    """True if a run that misses the target counts by how much it misses it, instead of not at all."""

    @abstractmethod
    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The rates to try next, knowing the scores of those tried; empty when the search is over.

        `start` is the cell's own rate, which the rule may begin with.
        """

    def chosen(self, tried: Scores) -> Choice | None:
        """The best of the rates tried, the smallest of equals; None if all diverged."""
        return best_of(tried)


def best_of(tried: Mapping[Any, float]) -> Choice | None:
    """Return the rate, or other setting, with the highest score, the smallest of equals; None if none has a score."""
    rates = sorted(tried, key=lambda rate: (isinstance(rate, str), rate))
    known = [rate for rate in rates if not math.isnan(tried[rate])]
    if not known:
        return None
    best = max(known, key=lambda rate: tried[rate])
    return Choice(best, len(rates) > 1 and best in (rates[0], rates[-1]))


@dataclass
class Fixed(Rule):
    """The rate of the cell's own settings, as published or as decided by the user."""

    name: str = "fixed"

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The given rate."""
        return [] if tried else [start]


@dataclass
class Grid(Rule):
    """Try all of `values` and take the best, as the thesis does. A best one at either end is reported as such."""

    name: str = "grid"
    values: list[float] = setting([], above=0)

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError(f"tune.values={self.values} must be a list of learning rates > 0.")

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """Return the rates not tried yet."""
        return [lr for lr in self.values if lr not in tried]


@dataclass
class PowersOfTwo(Rule):
    """Begin with start / factor, start and start * factor; go on beyond the best until it lies between two worse ones.

    RelaySum paper, appendix C.1 (factor 2). A rate at which some seed diverges does not count, so a smaller one is then
    taken, as the authors did. The search ends after `at_most` rates: a best one that is not sandwiched by then is
    reported as lying at the edge. `times` moves the start: 0.5 begins around half of it. With `nearest`, a run that
    misses the target counts by how much it misses it; otherwise like one that diverges.
    """

    name: str = "powers_of_two"
    factor: float = setting(2.0, above=1)
    at_most: int = setting(10, at_least=3, hint="to bracket the best one")
    times: float = setting(1.0, above=0)
    nearest: bool = False  # type: ignore[misc]

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The first three, then the neighbors of the best."""
        if not tried:
            return [self.times * rate for rate in (start / self.factor, start, start * self.factor)]
        if len(tried) >= self.at_most:
            return []
        best = best_of(tried)
        if best is None:  # all diverged
            return [min(tried) / self.factor]
        unknown = [lr for lr in self._neighbors(best.lr) if not _known(lr, tried)]
        return unknown[: self.at_most - len(tried)]

    def chosen(self, tried: Scores) -> Choice | None:
        """The best; at the edge if a neighbor of it was not tried."""
        best = best_of(tried)
        if best is None:
            return None
        return Choice(best.lr, not all(_known(lr, tried) for lr in self._neighbors(best.lr)))

    def _neighbors(self, lr: float) -> tuple[float, float]:
        return lr / self.factor, lr * self.factor


def _known(lr: float, tried: Scores) -> bool:
    return any(abs(lr - other) <= 1e-9 * other for other in tried)
