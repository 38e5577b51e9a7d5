"""Which share of the coordinates to send, given what each costs and how much of the gradient it carries."""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

import numpy as np

from decentral.errors import ConfigError

CANDIDATES = (0.1, 0.033, 0.011, 0.004, 0.001)
"""Those of the flexible communication paper: divided by 3 each time."""
_WEIGHTS = 0.6, 0.4
_LEAST_GAIN = 1e-12


class Rule(ABC):
    """Chooses one of several ratios."""

    @abstractmethod
    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """The place of the best ratio, the first one on ties.

        seconds    of communication in a step [m], float64
        gain       ||C(e)||^2 / ||e||^2 [m], above 0
        compute_s  of a step's gradients
        """


class Keeping(Rule):
    """Nothing is decided."""

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """The first."""
        return 0


class Knee(Rule):
    """Of the ratios that no other one beats in both of T = seconds and H = 1 / gain, each scaled to [0, 1] over these,
    that with the least max(0.6 T, 0.4 H): the paper's two objectives, and the weights of its authors' code.

    Where all seconds are A + B c, scaling removes A and B: then the network makes no difference to what is chosen.
    """

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """On the Pareto front."""
        both = np.stack([seconds, 1 / gain])
        no_worse = (both[:, :, None] <= both[:, None, :]).all(axis=0)
        better = no_worse & (both[:, :, None] < both[:, None, :]).any(axis=0)
        front = np.flatnonzero(~better.any(axis=0))
        values = both[:, front]
        least, extent = values.min(axis=1), np.ptp(values, axis=1)
        scaled = (values - least[:, None]) / np.where(extent > 0, extent, 1.0)[:, None]
        return int(front[(np.array(_WEIGHTS)[:, None] * scaled).max(axis=0).argmin()])


class Throughput(Rule):
    """The least (compute_s + seconds) / gain: time for a step's worth of gradient, GraVAC's compression throughput
    (Tyagi & Swany, IEEE CLOUD 2023) the other way up."""

    def best(self, seconds: np.ndarray, gain: np.ndarray, compute_s: float) -> int:
        """By division."""
        return int(((compute_s + seconds) / gain).argmin())


class Adapt(Enum):
    """How the share of the coordinates that is sent is decided."""

    none = Keeping
    knee = Knee
    throughput = Throughput


class Solver(Enum):
    """Which ratios are compared: those of a grid, or those that a genetic algorithm finds."""

    grid = "grid"
    nsga2 = "nsga2"

    def check(self) -> None:
        """Raise ConfigError if it is not installed."""
        if self is Solver.nsga2 and importlib.util.find_spec("pymoo") is None:
            raise ConfigError(
                "compress.solver=nsga2 needs pymoo, which is not installed: pip install 'decentral[nsga2]', or use "
                "compress.solver=grid, which is exact."
            )


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


def check_candidates(candidates: list[float]) -> None:
    """Raises ConfigError if there are none, or one is no ratio."""
    if not candidates or not all(math.isfinite(each) and 0 < each <= 1 for each in candidates):
        raise ConfigError(
            f"compress.candidates={candidates} makes no sense: give at least one share of the coordinates, above 0 and "
            "at most 1, such as [0.1,0.01]."
        )
