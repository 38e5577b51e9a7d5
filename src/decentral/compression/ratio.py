"""The share of the coordinates that is sent: given, or decided by costs and by how much of the gradient it carries."""

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
"""Those of the flexible communication paper: divided by 3 each time."""
_WEIGHTS = 0.6, 0.4
_LEAST_GAIN = 1e-12


class Knee:
    """Of the ratios that no other one beats in both of T = seconds and H = 1 / gain, each scaled to [0, 1] over these,
    that with the least max(0.6 T, 0.4 H): the paper's two objectives, and the weights of its authors' code.

    Where all seconds are A + B c, scaling removes A and B: then the network makes no difference to what is chosen.
    """

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """The place of the best ratio on the Pareto front, the first one on ties.

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
    """The least (compute_s + seconds) / gain: time for a step's worth of gradient, GraVAC's compression throughput
    (Tyagi & Swany, IEEE CLOUD 2023) the other way up."""

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """The place of the best ratio, see `Knee.best`."""
        return int(((compute_s + seconds) / gain).argmin())


class Adapt(Enum):
    """How the share of the coordinates that is sent is decided."""

    none = None
    knee = Knee
    throughput = Throughput


class Solver(Enum):
    """Which ratios are compared: those of a grid, or those that a genetic algorithm finds."""

    grid = "grid"
    nsga2 = "nsga2"


Seconds = Callable[[np.ndarray], np.ndarray]
"""Ratios [m] -> seconds of communication in a step [m]."""


def front(candidates: list[float], measured: list[float], seconds: Seconds) -> np.ndarray:
    """The ratios c that NSGA-II has at the end for the two objectives T(c) = seconds and H(c) = 1 / gain: ascending.

    As in the authors' code of the flexible communication paper: 40 ratios between the least and the largest candidate,
    10 new ones in each of 40 generations, by simulated binary crossover (probability 0.9, eta 15) and polynomial
    mutation (eta 20), seed 1. Here with the exact costs, and the gain interpolated (`gains_at`). The problem has one
    unknown, so that a grid does not need it.
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
    """The candidates, and so many ratios at equal distances in log c from the least to the largest: ascending."""
    between = np.geomspace(min(candidates), max(candidates), points) if points else np.empty(0)
    return np.unique(np.concatenate([np.clip(between, min(candidates), max(candidates)), candidates]))


def gains_at(ratios: np.ndarray, candidates: list[float], measured: list[float]) -> np.ndarray:
    """The gain at these ratios, from that of the candidates, linearly in log c.

    It never falls as c grows: what was measured lower at a larger ratio counts as high as at the smaller one. What is
    no number, or 0, counts as next to nothing.
    """
    order = np.argsort(candidates)
    known = np.nan_to_num(np.array(measured)[order], nan=0.0, posinf=0.0, neginf=0.0)
    rising = np.maximum.accumulate(np.maximum(known, _LEAST_GAIN))
    found: np.ndarray = np.interp(np.log(ratios), np.log(np.array(candidates)[order]), rising)
    return found


def changed(now: float, then: float) -> bool:
    """Whether a number is another one by at least a tenth of what it was."""
    return not abs(now - then) < 0.1 * abs(then) * (1 - 1e-9) and now != then


_MOST_COMPARED = 10_000
_LONGEST = 1 << 20
"""Of which a single number is next to nothing."""


@dataclass
class Ratio(Compressor):
    """Sends k of the P coordinates in step t, at least one:

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
                "compress.solver=nsga2 needs pymoo, which is not installed: pip install 'decentral[nsga2]', or use "
                "compress.solver=grid, which is exact."
            )

    @property
    def adapts(self) -> bool:
        """Whether `keep` is decided on the way."""
        return self.adapt is not Adapt.none

    @property
    def warmup_steps(self) -> int:
        """T."""
        return int(self.warmup_epochs * self.steps_per_epoch)

    @property
    def smallest_row(self) -> int:
        """See `Compressor.smallest_row`: k is keep P there, and a thousandth of the row at least, or two numbers."""
        return min(_LONGEST, math.ceil(max(2, math.ceil(1000 * self.keep)) / self.keep))

    def ratio(self, step: int) -> float:
        """keep_t of step t = 0, 1, ..."""
        steps = self.warmup_steps
        return 1 - (1 - self.keep) * step / steps if step < steps else self.keep

    def count(self, num_coordinates: int, step: int) -> int:
        """How many of so many coordinates are sent in this step."""
        return max(1, int(num_coordinates * self.ratio(step)))

    def send_share(self, keep: float) -> None:
        """From now on, and once a warm-up is over, send this share."""
        self.keep = keep

    @abstractmethod
    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """How many seconds `combine` takes in this step by what is known of the links now, for workers who begin
        together with rows of this type."""
