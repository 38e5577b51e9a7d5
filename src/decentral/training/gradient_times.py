"""The times of a step's gradients: of a cluster, measured on this machine, and of workers with different steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from decentral.cluster.compute import MEASURED, GradientTimes
from decentral.network.local import LocalNetwork
from decentral.store.files import csv_text, write_text

if TYPE_CHECKING:
    from decentral.cluster.cluster import VirtualCluster
    from decentral.config.prepared import Prepared
    from decentral.network.network import Network
    from decentral.tasks.task import Problem
    from decentral.topology.communication import LocalSteps

_MEASURED = "gradient_times.csv"
_WARM_UP = 3
"""Number of initial passes not counted."""
_STEPS_AVERAGED = 256


class Sleep(NamedTuple):
    """The time a worker sleeps before its gradients, in seconds: a straggler's `delays`, or a whole simulated time."""

    times: GradientTimes
    all: bool = False

    def seconds(self, workers: Sequence[int], t: int) -> float:
        """Return the sleep before gradient t of these workers, which sleep simultaneously."""
        found = self.times.seconds(t, t + 1) if self.all else self.times.delays(t, t + 1)
        return float(found[0, list(workers)].max(initial=0.0))


def times_of_steps(run: Prepared, cluster: VirtualCluster, net: Network, problem: Problem, x: Tensor) -> GradientTimes:
    """Return the times of a run's steps in this cluster.

    In one process they may be measured, at the initial models x [n, P]. Measurements are stored in the run's directory,
    if there is one, so that a resumed run has the same times.
    """
    times = cluster.gradient_times(net.n, run.config.seed)
    if isinstance(net, LocalNetwork) and (times := _kept(times, run.directory)).passes:
        seconds = measure(problem, x, times.passes)
        if run.directory.is_dir():
            rows = [[repr(value)] for value in seconds.tolist()]
            write_text(run.directory / _MEASURED, csv_text(["seconds"], rows))
        times = times.measured(seconds)
    return uneven(times, run)


def known_times(run: Prepared) -> GradientTimes:
    """Return the times of a run's steps in its cluster, with its stored measurements, if any."""
    times: GradientTimes = run.config.cluster.gradient_times(run.config.num_workers, run.config.seed)
    return uneven(_kept(times, run.directory), run)


def _kept(times: GradientTimes, directory: Path) -> GradientTimes:
    path = directory / _MEASURED
    if not (times.passes and path.is_file()):
        return times
    return times.measured(np.loadtxt(path, skiprows=1, ndmin=1))


def mean_seconds(times: GradientTimes) -> float:
    """Return the mean time of a gradient, from the first ones."""
    return float(times.seconds(0, _STEPS_AVERAGED).mean())


def mean_seconds_each(times: GradientTimes) -> list[float]:
    """Return the mean time of a gradient of each worker [n], from the first ones."""
    return times.seconds(0, _STEPS_AVERAGED).mean(axis=0).tolist()


class UnevenTimes(GradientTimes):
    """The gradient times of workers with different batch sizes, accumulated gradients and idle steps, in seconds by the
    step of the run.

    The m accumulated gradients of a step take m sizes[i] / usual times the time of `times`, plus unscaled straggler
    delays, and 0 s for an idle worker; their draw is addressed by the steps that the worker has taken.
    """

    def __init__(self, times: GradientTimes, scale: np.ndarray, local_steps: LocalSteps | None, start: int = 0) -> None:
        """`scale` [n]: factor on each worker's gradient time; `start`: the step that counts as 0."""
        self.times, self.scale, self.local_steps, self.start = times, scale, local_steps, start
        self.num_workers, self.passes = times.num_workers, times.passes

    def seconds(self, first: int, last: int) -> np.ndarray:
        """See `GradientTimes`."""
        delays = self.delays(first, last)
        return (self._steps(first, last, 0) - delays) * self.scale + delays

    def after(self, number: int) -> UnevenTimes:
        """See `GradientTimes`."""
        return UnevenTimes(self.times, self.scale, self.local_steps, self.start + number)

    def _steps(self, first: int, last: int, which: int) -> np.ndarray:
        read = (self.times.seconds, self.times.delays)[which]
        steps = np.arange(first + self.start, last + self.start)[:, None]
        if self.local_steps is None or not len(steps):
            return read(first + self.start, last + self.start)
        taken = self.local_steps.taken(steps)
        table = read(int(taken.min()), int(taken.max()) + 1)
        found = table[taken - taken.min(), np.arange(self.num_workers)]
        return np.where(self.local_steps.active(steps), found, 0.0)


def uneven(times: GradientTimes, run: Prepared) -> GradientTimes:
    """Return the times of a step's gradients for each worker's batches and steps: see `UnevenTimes`."""
    config = run.config
    if not {"batch_size", "steps"} & {*run.own} and config.accumulate == 1:
        return times
    of_steps = getattr(getattr(config.cluster, "compute", None), "distribution", None) in MEASURED
    sizes = run.own.get("batch_size", np.full(times.num_workers, config.batch_size))
    scale = np.ones(times.num_workers) if of_steps else config.accumulate * sizes / config.batch_size
    return UnevenTimes(times, scale, run.local_steps)


def measure(problem: Problem, x: Tensor, passes: int) -> np.ndarray:
    """Return the seconds of `passes` gradients, by workers in turn, each at its model in x [n, P]: float64 [passes].

    The problem is unchanged: batches are addressed, and the workers' state is restored.
    """
    remembered = copy.deepcopy(problem.state())
    seconds = []
    for number in range(_WARM_UP + passes):
        worker = number % len(x)
        began = time.perf_counter()
        loss, _ = problem.gradient(x[worker : worker + 1], np.full(1, number // len(x)), [worker])
        loss.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - began)
    if remembered:
        problem.load_state(remembered)
    return np.array(seconds[_WARM_UP:])
