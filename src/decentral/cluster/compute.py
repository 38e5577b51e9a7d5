"""Gradient times: `cluster.compute`, and the time of every gradient of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from decentral.cluster.settings import LONGEST_S, Line, as_number, check_choice, duration, optional, read_lines
from decentral.cluster.stragglers import Delays
from decentral.errors import ConfigError
from decentral.randomness import normal, uniform
from decentral.store.files import at_home

_WHERE = "cluster.compute"
_TRACE = f"{_WHERE}.trace"
_PURPOSE, _MEASURED = "cluster: compute", "cluster: measured"
_WIDEST = 10.0
"""Standard deviation of a logarithm: 10 is a factor of 22,000 either way."""
_HEAD = ["step", "worker", "seconds"]
_OPERATIONS = "operations.jsonl"
"""Output of a run with record_operations=true: see `training.operations`."""
_BLOCK = 128
"""Steps that are drawn together."""
_BLOCKS_KEPT = 4
_PARETO = ("floor_s", "index", "scale_s", "cap_s")

Draw = Callable[[np.ndarray], np.ndarray]
"""The seconds of these gradients [T] of each worker, without straggler delays: float64 [T, n]."""


class Distribution(Enum):
    """The distribution of gradient times, and the settings it needs."""

    constant = ("mean_s",)
    lognormal = ("mean_s", "sigma")
    length_bucketed = ("buckets", "seconds_per_token")
    shifted_pareto = _PARETO
    rollouts = (*_PARETO, "mean_s", "rollout_every", "residence")
    trace = ("trace",)
    measured = ("passes",)


MEASURED = Distribution.trace, Distribution.measured
"""Distributions that time a run's own steps, whatever their batches."""


@dataclass
class ComputeTimes:
    """Gradient times in seconds, drawn anew for each worker and step; a distribution's settings are required.

    A time is that of a batch of batch_size; batch_size_per_worker and accumulate scale it, except for trace and
    measured, which have the times of the run's own steps.

    distribution       constant: mean_s; lognormal: mean_s, sigma; length_bucketed: buckets, seconds_per_token;
                       shifted_pareto: floor_s, index, scale_s, cap_s; rollouts: those of shifted_pareto, mean_s,
                       rollout_every and residence; trace: trace; measured: passes
    mean_s             mean time, in seconds
    sigma              standard deviation of the logarithm
    buckets            tokens in a batch of each bucket; in every step, each worker draws a bucket
    seconds_per_token  time per token of a batch in a bucket
    floor_s            minimum time: min(cap, floor + scale ((1 - u)^(-1/index) - 1)) for u uniform in [0, 1)
    index              tail index: smaller means a heavier tail
    scale_s            scale of the part above the floor
    cap_s              maximum time
    rollout_every      gradients of a worker per rollout: the first of them includes the rollout's time
    residence          consecutive rollouts of equal time before a new time is drawn
    trace              path of a CSV file: the header step,worker,seconds and lines below it, or one line per step with
                       one column per worker; or the directory of a finished run of n workers in n processes (or in one
                       process, if networks are trained) with record_operations=true; the times repeat in a longer run
    passes             gradients of the run itself to time on this machine before it begins; every gradient then takes
                       one of these times
    """

    distribution: Distribution = Distribution.constant
    mean_s: float | None = duration()
    sigma: float | None = optional(above=0, at_most=_WIDEST, hint="standard deviation of the logarithm, such as 0.3")
    buckets: list[float] | None = optional(above=0, hint="tokens")
    seconds_per_token: float | None = duration()
    floor_s: float | None = duration()
    index: float | None = optional(above=0, hint="tail index, such as 1.1")
    scale_s: float | None = duration()
    cap_s: float | None = duration()
    rollout_every: int | None = optional(at_least=1)
    residence: int | None = optional(at_least=1)
    trace: str | None = field(default=None, metadata={"older": None, "content": True})
    passes: int | None = optional(at_least=1)

    def open(self, num_workers: int, seed: int) -> Draw:
        """Return the distribution. Raises ConfigError for missing, misplaced or invalid settings for n workers."""
        check_choice(self, _WHERE, "distribution")
        if self.buckets == []:
            raise ConfigError(
                f"{_WHERE}.buckets=[] is empty: list the tokens in a batch of each bucket, such as [512,1024]."
            )
        longest = max(self.buckets or [0.0]) * (self.seconds_per_token or 0.0)
        if longest > LONGEST_S:
            raise ConfigError(
                f"{_WHERE}.seconds_per_token times the longest of {_WHERE}.buckets is {longest:g} s: use at most "
                f"{LONGEST_S:g} seconds."
            )
        if self.cap_s is not None and self.floor_s is not None and self.cap_s < self.floor_s:
            raise ConfigError(
                f"{_WHERE}.cap_s={self.cap_s:g} is below {_WHERE}.floor_s={self.floor_s:g}: use a larger cap."
            )
        if self.trace is not None:
            return repeated(read_trace(self.trace, num_workers))
        return partial(self._draw, seed, num_workers)

    def _draw(self, seed: int, num_workers: int, steps: np.ndarray) -> np.ndarray:
        """Draw times, each a function of (seed, step, worker), see `randomness`."""
        given: Any = self
        place = steps[:, None], np.arange(num_workers)[None, :]
        if self.distribution is Distribution.constant:
            return np.full((len(steps), num_workers), given.mean_s)
        if self.distribution is Distribution.lognormal:
            z = normal(seed, _PURPOSE, *place)
            return np.asarray(given.mean_s * np.exp(given.sigma * z - given.sigma**2 / 2))
        if self.distribution is Distribution.length_bucketed:
            bucket = (uniform(seed, _PURPOSE, *place) * len(given.buckets)).astype(np.int64)
            return np.asarray(given.seconds_per_token * np.asarray(given.buckets, dtype=np.float64)[bucket])
        if self.distribution is Distribution.shifted_pareto:
            return self._pareto(uniform(seed, _PURPOSE, *place))
        if self.distribution is Distribution.rollouts:
            # rollouts of a worker have the same scenes, and take the same time, for a while
            rollouts, after = np.divmod(steps, given.rollout_every)
            times = self._pareto(uniform(seed, _PURPOSE, rollouts[:, None] // given.residence, place[1]))
            return np.asarray(given.mean_s + np.where(after[:, None] == 0, times, 0.0))
        raise ConfigError(
            "cluster.compute.distribution=measured needs training in one process, to measure its gradients: "
            "elsewhere give times, such as distribution=trace with the directory of a run that recorded its "
            "operations."
        )

    def _pareto(self, u: np.ndarray) -> np.ndarray:
        """Return min(cap, floor + scale ((1 - u)^(-1/index) - 1)).

        Floor 1.7 s, index 1.1, scale 0.015 s and cap 43.5 s model the collection of experience in Habitat's
        environments: 1.7 to 43.5 s with a median below 2 s (Li et al. 2021, Figure 9).
        """
        given: Any = self
        with np.errstate(over="ignore"):  # a tail beyond all numbers is at the cap
            tail = np.expm1(-np.log1p(-u) / given.index)
        return np.minimum(given.cap_s, given.floor_s + given.scale_s * tail)


def repeated(table: np.ndarray) -> Draw:
    """Return draws in which gradient t of worker i takes `table[t, i]` seconds; the table repeats."""
    return lambda steps: table[steps % len(table)]


class GradientTimes:
    """The time of gradient t of worker i: a pure function of (seed, t, i), independent of the order of queries."""

    def __init__(
        self, draw: Draw, delays: Delays, num_workers: int, seed: int, passes: int = 0, start: int = 0
    ) -> None:
        """Create the times; `passes` is the number of gradients to measure before any time is known, `start` the
        gradient with the first time."""
        self.num_workers, self.passes = num_workers, passes
        self._draw, self._delays, self._seed, self._start = draw, delays, seed, start
        self._block = lru_cache(_BLOCKS_KEPT)(self._drawn)

    def seconds(self, first: int, last: int) -> np.ndarray:
        """Return the times of gradients t = first ... last - 1, with straggler delays: float64 [last - first, n]."""
        return self._steps(first, last, 0)

    def delays(self, first: int, last: int) -> np.ndarray:
        """Return the straggler delays in them, in seconds: float64 [last - first, n], >= 0."""
        return self._steps(first, last, 1)

    def after(self, number: int) -> GradientTimes:
        """Return the times from this gradient on, renumbered from 0."""
        start = self._start + number
        return GradientTimes(self._draw, self._delays, self.num_workers, self._seed, self.passes, start)

    def measured(self, seconds: np.ndarray) -> GradientTimes:
        """Return the times after a measurement, float64 [passes]: each gradient takes one of these times, drawn
        uniformly for every worker and step."""

        def draw(steps: np.ndarray) -> np.ndarray:
            place = uniform(self._seed, _MEASURED, steps[:, None], np.arange(self.num_workers)[None, :]) * len(seconds)
            return seconds[place.astype(np.int64)]

        return GradientTimes(draw, self._delays, self.num_workers, self._seed)

    def _steps(self, first: int, last: int, which: int) -> np.ndarray:
        if not 0 <= first <= last:
            raise ValueError(f"steps {first} to {last} are invalid: use 0 <= first <= last.")
        first, last = first + self._start, last + self._start
        parts = [np.empty((0, self.num_workers))]
        for number in range(first // _BLOCK, -(-last // _BLOCK)):
            start = number * _BLOCK
            parts.append(self._block(number)[which][max(first - start, 0) : last - start])
        return np.concatenate(parts)

    def _drawn(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds and delays of the steps of a block."""
        usual = self._draw(np.arange(number * _BLOCK, (number + 1) * _BLOCK))
        delays = self._delays.draw(self._seed, number * _BLOCK, usual)
        return usual + delays, delays


def read_trace(name: str, num_workers: int) -> np.ndarray:
    """Read recorded times from a file or a run: float64 [steps, n].

    A file has either a header `step,worker,seconds` (in any order), or a line per step with the seconds of worker 0,
    1, ... in its columns, with an optional header. A run between processes, one per worker, with recorded operations,
    gives its gradient times, including straggler sleep; a run in one process that trained networks gives the time of
    each worker's passes. If workers took different numbers of gradients, the smallest number counts. Raises ConfigError
    for invalid data.
    """
    run, said = at_home(name), f"{_TRACE}={name}"
    if run.is_dir():
        return _recorded(said, run / _OPERATIONS, num_workers)
    lines = read_lines(_TRACE, name)
    head = lines[0].cells if lines else []
    listed = sorted(head) == sorted(_HEAD)
    if listed or all(math.isnan(as_number(cell)) for cell in head):
        lines = lines[1:]
    if not lines:
        raise ConfigError(
            f"{said} holds no times: give the header step,worker,seconds and lines below it, or one line per step "
            "with one column per worker."
        )
    if listed:
        return _listed(said, lines, [head.index(column) for column in _HEAD], num_workers)
    for line in lines:
        if len(line.cells) != num_workers:
            raise ConfigError(
                f"{line.said} has {len(line.cells)} columns, but num_workers={num_workers}: give one column per worker."
            )
    return np.array([[line.seconds(place) for place in range(num_workers)] for line in lines])


def _recorded(said: str, path: Path, num_workers: int) -> np.ndarray:
    """Return the gradient times of a run, in order per worker."""
    times: dict[int, list[float]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if one["what"] == "gradient":
                times.setdefault(int(one["worker"]), []).append(float(one["end_s"]) - float(one["begin_s"]))
    except FileNotFoundError:
        raise ConfigError(
            f"{said} is a directory without {_OPERATIONS}: give the directory of a finished run with "
            f"record_operations=true and processes={num_workers} (or 1, where networks are trained), or a CSV file."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{said}: its {_OPERATIONS} cannot be read ({error}): wait for the run to end.") from error
    if sorted(times) != list(range(num_workers)):
        raise ConfigError(
            f"{said} is a run with gradients of {len(times)} workers or processes, but num_workers={num_workers}: use "
            f"a run with num_workers={num_workers} and processes={num_workers} (or 1, where networks are trained)."
        )
    steps = min(map(len, times.values()))
    return np.array([times[i][:steps] for i in range(num_workers)]).T


def _listed(said: str, lines: list[Line], places: list[int], num_workers: int) -> np.ndarray:
    """Return the times from lines with step, worker and seconds in these columns."""
    step, worker, seconds = places
    listed: dict[tuple[int, int], float] = {}
    for line in lines:
        line.check_columns(_HEAD)
        key = line.integer(step, "step"), line.integer(worker, "worker", num_workers)
        if key in listed:
            raise ConfigError(f"{line.said} repeats step {key[0]} of worker {key[1]}: give each step of a worker once.")
        listed[key] = line.seconds(seconds)
    times = np.empty((1 + max(step for step, _ in listed), num_workers))
    for place in np.ndindex(times.shape):
        if place not in listed:
            raise ConfigError(f"{said} is incomplete: add the time of step {place[0]} of worker {place[1]}.")
        times[place] = listed[place]
    return times
