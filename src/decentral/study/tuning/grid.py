"""Every rate of a list."""

from __future__ import annotations

from dataclasses import dataclass, field

from decentral.errors import ConfigError
from decentral.study.tuning.rule import Rule, Scores


@dataclass
class Grid(Rule):
    """Try all of `values` and take the best, as the thesis does. A best one at either end is reported as such."""

    name: str = "grid"
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.values or min(self.values) <= 0:
            raise ConfigError(f"tune.values={self.values} has to be a list of learning rates above 0.")

    def wanted(self, tried: Scores, start: float) -> list[float]:
        """Those not tried yet."""
        return [lr for lr in self.values if lr not in tried]
