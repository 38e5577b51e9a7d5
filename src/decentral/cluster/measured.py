"""Times of gradients that are measured on this machine when a run begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.cluster.distributions import Durations, places
from decentral.errors import ConfigError, check_at_least
from decentral.randomness import uniform

_PURPOSE = "cluster: measured"


@dataclass(frozen=True)
class Measured(Durations):
    """Times that are still to be measured: so many `passes` of the run's own gradients."""

    passes: int

    def check(self, where: str, num_workers: int) -> None:
        """At least one pass."""
        check_at_least(f"{where}.passes", self.passes)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Nothing is known yet. Raises ConfigError: only where a run trains something there are gradients."""
        raise ConfigError(
            "cluster.compute.distribution=measured is for training in one process, which has gradients to measure: "
            "elsewhere give times, such as distribution=trace with the directory of a run that recorded its operations."
        )

    def known(self, seconds: np.ndarray) -> Resampled:
        """The distribution, once they have been measured."""
        return Resampled(tuple(seconds.tolist()))


@dataclass(frozen=True)
class Resampled(Durations):
    """One of these times, each as likely, for every worker and step anew."""

    seconds: tuple[float, ...]

    def check(self, where: str, num_workers: int) -> None:
        """They were measured: nothing can be wrong."""

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Seconds [last - first, n]."""
        drawn = uniform(seed, _PURPOSE, *places(first, last, num_workers)) * len(self.seconds)
        return np.asarray(self.seconds, dtype=np.float64)[drawn.astype(np.int64)]
