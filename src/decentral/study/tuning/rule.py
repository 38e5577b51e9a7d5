"""The contract of a rule that chooses a learning rate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import NamedTuple

Scores = Mapping[float, float]
"""Learning rate -> score, larger is better; nan where a run diverged."""


class Choice(NamedTuple):
    """A learning rate, and whether a better one may lie outside of what was tried."""

    lr: float
    at_edge: bool


class Rule(ABC):
    """A dataclass whose fields are its configuration."""

    @abstractmethod
    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The rates to try next, knowing the scores of those tried; empty when the search is over.

        `start` is the cell's own rate, which the rule may begin with.
        """

    def beyond(self, rates: Collection[float]) -> list[float]:
        """Rates that it may still try, when it has begun with these: as many as it may be. By default none."""
        return []

    def chosen(self, tried: Scores) -> Choice | None:
        """The best of the rates tried, the smallest of equals; None if all diverged."""
        best = best_of(tried)
        if best is None:
            return None
        rates = sorted(tried)
        return Choice(best, len(rates) > 1 and best in (rates[0], rates[-1]))


def best_of(tried: Scores) -> float | None:
    """The rate with the highest score, the smallest of equals; None if none has a score."""
    finite = sorted(lr for lr, score in tried.items() if not math.isnan(score))
    return max(finite, key=lambda lr: tried[lr], default=None)
