"""The learning rates that a comparison chose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from decentral.study.kinds.comparison import Comparison
from decentral.study.kinds.comparison_cell import TunedCell
from decentral.study.study import Curve, Value

RATE, EFFECTIVE = "learning rate", "effective learning rate"


@dataclass
class RateCell(TunedCell):
    """A cell of a comparison whose number is not what its runs reached, but the rate that was chosen for them."""

    def values(self) -> list[Value]:
        """The rate, and the rate over its dilution, once all seeds have run with it; nan if every rate diverged."""
        runs = [value for value in super().values() if value.chosen]
        if len(runs) < len(self.study.seeds):
            return []
        first, all_diverged = runs[0], all(run.status == "diverged" for run in runs)
        lr = math.nan if all_diverged or first.lr is None else first.lr
        config = self.final.config
        assert config.num_workers is not None
        dilution = config.algo.dilution(config.rounds())
        common = first._replace(
            worst=None,
            mean=None,
            averaged=None,
            status="diverged" if all_diverged else "done",
            wall_s=sum(run.wall_s for run in runs),
        )
        return [
            common._replace(metric=RATE, value=lr),
            common._replace(metric=EFFECTIVE, value=lr / dilution, published=""),
        ]

    def wanted(self) -> int:
        """A rate."""
        return 1

    def curves(self) -> list[Curve]:
        """None."""
        return []


@dataclass
class ChosenRates(Comparison):
    """The learning rates that a comparison with the same rows, columns and rule chooses; it has no runs of its own.

    A second number beside each rate is the effective one: divided by the algorithm's dilution (RelaySum paper,
    appendix D.1), the rate with which all-reduce would do the same to the mean model.
    """

    name: str = "chosen_rates"
    cell: ClassVar[type[TunedCell]] = RateCell
