"""Who is slower than usual, in which steps, and by how much: `cluster.stragglers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from decentral.cluster import settings
from decentral.cluster.settings import check_seconds
from decentral.cluster.slowness import Drifting, Exactly, Fixed, Independent, Nobody, Persistent, Slowness
from decentral.errors import ConfigError

_WHERE = "cluster.stragglers"
_EFFECTS = ("delay_s", "slowdown")
_SLOWEST = 1e6
"""More than that is a worker that is gone."""


class Mode(Enum):
    """Who straggles when."""

    none = Nobody
    exactly = Exactly
    independent = Independent
    persistent = Persistent
    fixed = Fixed
    drifting = Drifting


@dataclass
class Stragglers:
    """Who is slower than usual, in which steps. A mode needs its own keys, and one of delay_s and slowdown.

    mode             none; exactly: count of them, drawn anew in every step; independent: each worker with
                     probability, in every step anew; persistent: a worker becomes slow with probability in a step and
                     stays slow for residence_steps on average; fixed: workers; drifting: every worker's slowness is a
                     random walk of step size drift between 0 (as usual) and 1 (delay_s, slowdown in full)
    delay_s          how many seconds a slow worker's gradient takes longer
    slowdown         or: how many times as long it takes
    count            how many are slow in every step
    probability      to be slow, or to become it
    residence_steps  mean number of steps in a row in which a worker is slow, which is geometrically distributed
    workers          numbers of those that are always slow
    drift            standard deviation of a step of the walk, for example 0.01
    """

    mode: Mode = Mode.none
    delay_s: float | None = field(default=None, metadata={"older": None})
    slowdown: float | None = field(default=None, metadata={"older": None})
    count: int | None = field(default=None, metadata={"older": None})
    probability: float | None = field(default=None, metadata={"older": None})
    residence_steps: float | None = field(default=None, metadata={"older": None})
    workers: list[int] | None = field(default=None, metadata={"older": None})
    drift: float | None = field(default=None, metadata={"older": None})

    def open(self, num_workers: int) -> Delays:
        """The delays. Raises ConfigError for what is missing, out of place or makes no sense for n workers."""
        straggle = self.mode is not Mode.none
        slowness: Slowness = settings.chosen(self.mode.value, self, _WHERE, "mode", _EFFECTS if straggle else ())
        slowness.check(_WHERE, num_workers)
        if straggle:
            self._check_effect()
        return Delays(slowness, self.delay_s, self.slowdown)

    def _check_effect(self) -> None:
        said = f"{_WHERE}.mode={self.mode.name}"
        if self.delay_s is None and self.slowdown is None:
            raise ConfigError(
                f"{said} needs {_WHERE}.delay_s or {_WHERE}.slowdown, of which none is given: say how many seconds "
                "longer a slow worker takes, or how many times as long."
            )
        if self.delay_s is not None and self.slowdown is not None:
            raise ConfigError(
                f"{_WHERE}.delay_s={self.delay_s:g} and {_WHERE}.slowdown={self.slowdown:g} contradict each other: "
                "give one of them, and set the other one to null."
            )
        check_seconds(f"{_WHERE}.delay_s", self.delay_s, zero=False)
        if self.slowdown is not None and not 1 < self.slowdown <= _SLOWEST:
            raise ConfigError(
                f"{_WHERE}.slowdown={self.slowdown:g} makes no sense: it has to be above 1 and at most {_SLOWEST:g}, "
                "such as 10 for a worker that takes ten times as long."
            )


@dataclass(frozen=True)
class Delays:
    """What slowness s in [0, 1] adds to the usual time of a gradient: s delay_s, or slowdown^s - 1 times that time."""

    slowness: Slowness
    delay_s: float | None
    slowdown: float | None

    def draw(self, seed: int, first: int, last: int, usual: np.ndarray) -> np.ndarray:
        """By how many seconds gradients t = first ... last - 1 take longer than `usual`: both [last - first, n]."""
        slowness = self.slowness.draw(seed, first, last, usual.shape[1])
        if self.slowdown is not None:
            return usual * (np.power(self.slowdown, slowness) - 1)
        return slowness * (self.delay_s or 0.0)
