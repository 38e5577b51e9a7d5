"""The share of coordinates sent: fixed, or adapted to costs and to the share of the gradient it preserves."""

from __future__ import annotations

import importlib.util
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from decentral.compression.compressor import Compressor
from decentral.errors import ConfigError
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.cluster.links import Prices


CANDIDATES = (0.1, 0.033, 0.011, 0.004, 0.001)
"""The ratios of the flexible communication paper: divided by 3 each time."""
_WEIGHTS = 0.6, 0.4
_LEAST_GAIN = 1e-12


class Knee:
    """The knee of the Pareto front of T = seconds and H = 1 / gain, each scaled to [0, 1] over the front: the ratio
    with the smallest max(0.6 T, 0.4 H), with the paper's two objectives and the weights of its authors' code.

    If all seconds are A + B c, scaling removes A and B: the network then does not affect the choice.
    """

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """Return the index of the best ratio on the Pareto front, the first one on ties.

        seconds    of communication in a step [m], float64
        gain       ||C(e)||^2 / ||e||^2 [m], above 0
        compute_s  of a step's gradients
        """
        both = np.stack([seconds, 1 / gain])
        no_worse = (both[:, :, None] <= both[:, None, :]).all(axis=0)
        better = no_worse & (both[:, :, None] < both[:, None, :]).any(axis=0)
        front = np.flatnonzero(~better.any(axis=0))
        values = both[:, front]
        least, extent = values.min(axis=1), np.ptp(values, axis=1)
        scaled = (values - least[:, None]) / np.where(extent > 0, extent, 1.0)[:, None]
        return int(front[(np.array(_WEIGHTS)[:, None] * scaled).max(axis=0).argmin()])


class Throughput:
    """The ratio with the smallest (compute_s + seconds) / gain: time per step's worth of gradient, the inverse of
    GraVAC's compression throughput (Tyagi & Swany, IEEE CLOUD 2023)."""

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """Return the index of the best ratio, see `Knee.best`."""
        return int(((compute_s + seconds) / gain).argmin())


class Adapt(Enum):
    """The rule for the share of coordinates sent."""

    none = None
    knee = Knee
    throughput = Throughput


class Solver(Enum):
    """The ratios to compare: a grid, or those found by a genetic algorithm."""

    grid = "grid"
    nsga2 = "nsga2"


Seconds = Callable[[np.ndarray], np.ndarray]
"""Ratios [m] -> seconds of communication in a step [m]."""


def front(candidates: list[float], measured: list[float], seconds: Seconds) -> np.ndarray:
    """Return the final ratios c of NSGA-II for the objectives T(c) = seconds and H(c) = 1 / gain, ascending.

    As in the authors' code of the flexible communication paper: 40 ratios between the smallest and the largest
    candidate, 10 new ones in each of 40 generations, by simulated binary crossover (probability 0.9, eta 15) and
    polynomial mutation (eta 20), seed 1. Here with the exact costs, and the gain interpolated (`gains_at`). The problem
    has one unknown, so a grid is enough.
    """
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.sampling.rnd import FloatRandomSampling
    from pymoo.optimize import minimize

    class Both(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(n_var=1, n_obj=2, xl=min(candidates), xu=max(candidates))

        def _evaluate(self, x: np.ndarray, out: dict[str, np.ndarray], *args: object, **kwargs: object) -> None:
            ratios = x[:, 0]
            out["F"] = np.stack([seconds(ratios), 1 / gains_at(ratios, candidates, measured)], axis=1)

    method = NSGA2(
        pop_size=40,
        n_offsprings=10,
        sampling=FloatRandomSampling(),
        crossover=SBX(prob=0.9, eta=15),
        mutation=PM(eta=20),
        eliminate_duplicates=True,
    )
    found = minimize(Both(), method, ("n_gen", 40), seed=1)
    return np.unique(np.clip(found.X[:, 0], min(candidates), max(candidates)))


def grid(candidates: list[float], points: int) -> np.ndarray:
    """Return the candidates and `points` ratios equally spaced in log c between the smallest and largest, ascending."""
    between = np.geomspace(min(candidates), max(candidates), points) if points else np.empty(0)
    return np.unique(np.concatenate([np.clip(between, min(candidates), max(candidates)), candidates]))


def gains_at(ratios: np.ndarray, candidates: list[float], measured: list[float]) -> np.ndarray:
    """Return the gain at these ratios, interpolated linearly in log c between the candidates.

    It is monotone: a lower measurement at a larger ratio is raised to that of the smaller ratio. NaN or 0 counts as a
    tiny gain.
    """
    order = np.argsort(candidates)
    known = np.nan_to_num(np.array(measured)[order], nan=0.0, posinf=0.0, neginf=0.0)
    rising = np.maximum.accumulate(np.maximum(known, _LEAST_GAIN))
    found: np.ndarray = np.interp(np.log(ratios), np.log(np.array(candidates)[order]), rising)
    return found


def changed(now: float, then: float) -> bool:
    """Return whether a number changed by at least a tenth of its former value."""
    return not abs(now - then) < 0.1 * abs(then) * (1 - 1e-9) and now != then


_MOST_COMPARED = 10_000
_LONGEST = 1 << 20
"""Length of a row in which a single number is negligible."""


@dataclass
class Ratio(Compressor):
    """A compressor that sends k of the P coordinates in step t, at least one:

        k = max(1, floor(P keep_t)),   keep_t = 1 - (1 - keep) t / T  for t < T,  then keep

    with T = warmup_epochs in whole steps: the first step of a warm-up sends everything.

    keep           share of the coordinates to send
    warmup_epochs  epochs in which the share falls from 1 to keep
    adapt          none, or how to choose keep after the warm-up, and again when the network or the gain changes (see
                   `training/adaptive.py`): knee, of communication time and of 1 / gain; throughput, the smallest ratio
                   of step time to gain
    candidates     ratios whose gain is measured
    explore_steps  steps per candidate
    solver         grid; or nsga2 as in the authors' code, which needs pymoo and is less exact (`adaptation.front`)
    grid           number of ratios to compare between the smallest and the largest candidate; 0: only the candidates
    """

    name: str
    error_feedback: bool = True
    keep: float = setting(0.1, above=0, at_most=1, hint="such as 0.1 or 0.01")
    warmup_epochs: float = setting(0.0, at_least=0)
    adapt: Adapt = field(default=Adapt.none, metadata={"older": Adapt.none})
    candidates: list[float] = setting(
        list(CANDIDATES), above=0, at_most=1, hint="such as 0.1", older=list(CANDIDATES), when="adapts"
    )
    explore_steps: int = setting(10, at_least=1, older=10, when="adapts")
    solver: Solver = field(default=Solver.grid, metadata={"older": Solver.grid, "when": "adapts"})
    grid: int = setting(100, at_least=0, at_most=_MOST_COMPARED, older=100, when="adapts")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.candidates:
            raise ConfigError("compress.candidates=[] is empty: give shares of the coordinates, such as [0.1,0.01].")
        if self.solver is Solver.nsga2 and importlib.util.find_spec("pymoo") is None:
            raise ConfigError(
                "compress.solver=nsga2 needs pymoo, which is not installed: pip install '.[nsga2]', or use "
                "compress.solver=grid, which is exact."
            )

    @property
    def adapts(self) -> bool:
        """Return whether the run adapts `keep`."""
        return self.adapt is not Adapt.none

    @property
    def warmup_steps(self) -> int:
        """Return T."""
        return int(self.warmup_epochs * self.steps_per_epoch)

    @property
    def smallest_row(self) -> int:
        """Return the length at which k is keep P, and at least a thousandth of the row or two numbers: see
        `Compressor.smallest_row`."""
        return min(_LONGEST, math.ceil(max(2, math.ceil(1000 * self.keep)) / self.keep))

    def ratio(self, step: int) -> float:
        """Return keep_t of step t = 0, 1, ..."""
        steps = self.warmup_steps
        return 1 - (1 - self.keep) * step / steps if step < steps else self.keep

    def count(self, num_coordinates: int, step: int) -> int:
        """Return how many of `num_coordinates` coordinates this step sends."""
        return max(1, int(num_coordinates * self.ratio(step)))

    def send_share(self, keep: float) -> None:
        """Send this share from now on, after any warm-up."""
        self.keep = keep

    @abstractmethod
    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """Return the predicted seconds of `combine` in this step at current link costs, for workers that begin
        simultaneously with rows of this type."""
