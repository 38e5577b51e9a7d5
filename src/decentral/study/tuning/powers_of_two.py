"""Multiply and divide until the best rate is sandwiched."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from decentral.errors import ConfigError
from decentral.study.tuning.rule import Choice, Rule, Scores, best_of


@dataclass
class PowersOfTwo(Rule):
    """Begin with start / factor, start and start * factor; go on beyond the best until it lies between two worse ones.

    RelaySum paper, appendix C.1 (factor 2). A rate at which some seed diverges does not count, so a smaller one is then
    taken, as the authors did. The search ends after `at_most` rates: a best one that is not sandwiched by then is
    reported as lying at the edge. `times` moves the start: 0.5 begins around half of it.
    """

    name: str = "powers_of_two"
    factor: float = 2.0
    at_most: int = 10
    times: float = 1.0

    def __post_init__(self) -> None:
        if self.factor <= 1:
            raise ConfigError(f"tune.factor={self.factor:g} makes no sense: it has to be above 1.")
        if self.at_most < 3:
            raise ConfigError(f"tune.at_most={self.at_most} makes no sense: it takes 3 rates to sandwich one.")
        if not (math.isfinite(self.times) and self.times > 0):
            raise ConfigError(f"tune.times={self.times:g} makes no sense: it has to be above 0.")

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The first three, then the neighbours of the best."""
        if not tried:
            return [self.times * rate for rate in (start / self.factor, start, start * self.factor)]
        if len(tried) >= self.at_most:
            return []
        best = best_of(tried)
        if best is None:  # all diverged
            return [min(tried) / self.factor]
        unknown = [lr for lr in self._neighbours(best) if not _known(lr, tried)]
        return unknown[: self.at_most - len(tried)]

    def beyond(self, rates: Collection[float]) -> list[float]:
        """As if the best one were below all of them until the end."""
        return [min(rates) / self.factor**k for k in range(1, self.at_most - len(rates) + 1)]

    def chosen(self, tried: Scores) -> Choice | None:
        """The best; at the edge if a neighbour of it was not tried."""
        best = best_of(tried)
        if best is None:
            return None
        return Choice(best, not all(_known(lr, tried) for lr in self._neighbours(best)))

    def _neighbours(self, lr: float) -> tuple[float, float]:
        return lr / self.factor, lr * self.factor


def _known(lr: float, tried: Scores) -> bool:
    return any(abs(lr - other) <= 1e-9 * other for other in tried)
