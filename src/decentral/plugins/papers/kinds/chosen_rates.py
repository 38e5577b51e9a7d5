"""The learning rates that a comparison chooses, as a study of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.relaysgd import RelaySGD
from decentral.measurements.values import Meaning, Value
from decentral.study.kinds.comparison import Comparison, TunedCell
from decentral.topology.rounds import Rounds, mean_delay

RATE, EFFECTIVE = "learning rate", "effective learning rate"


def dilution_of(algo: Algorithm, rounds: Rounds) -> float:
    """Return the factor by which a local update counts less in the long run than in all-reduce at equal rate.

    1 + mean_ij max(tau_ij - 1, 0) (overlap: mean tau_ij) of RelaySGD, unless `correct_lr` compensates for it. With an
    outer step an update counts outer_lr (1 + mu + mu^2 + ...) times. 1 with its delay or share of an own model, where
    the value is unknown.
    """
    if isinstance(algo, RelaySGD):
        return 1.0 if algo.correct_lr else 1 + mean_delay(rounds, algo.overlap)
    outer_lr = float(getattr(algo, "outer_lr", 0.0))
    if not outer_lr or any(getattr(algo, key, 0) for key in ("delay_steps", "own_share")):
        return 1.0
    return (1 - float(getattr(algo, "outer_momentum", 0.0))) / outer_lr


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
        dilution = dilution_of(config.algo, config.rounds())
        status, wall_s = "diverged" if all_diverged else "done", sum(run.wall_s for run in runs)
        common = first._replace(worst=None, mean=None, averaged=None, status=status, wall_s=wall_s, meaning=Meaning())
        return [
            common._replace(metric=RATE, value=lr),
            common._replace(metric=EFFECTIVE, value=lr / dilution, published=""),
        ]

    def wanted(self) -> int:
        """A rate."""
        return 1


@dataclass
class ChosenRates(Comparison):
    """The learning rates that a comparison with the same rows, columns and rule chooses; it has no runs of its own.

    A second number beside each rate is the effective one: divided by the algorithm's dilution (RelaySum paper,
    appendix D.1), the rate with which all-reduce would do the same to the mean model.
    """

    name: str = "chosen_rates"
    cell: ClassVar[type[TunedCell]] = RateCell
