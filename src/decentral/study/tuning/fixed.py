"""No search: the learning rate is given."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.study.tuning.rule import Rule, Scores


@dataclass
class Fixed(Rule):
    """The rate of the cell's own settings, as published or as decided by the user."""

    name: str = "fixed"

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """The given rate."""
        return [] if tried else [start]
