"""How long gradients of a run take on this machine, for a virtual cluster of such machines."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import numpy as np

from decentral.config.identity import run_directory
from decentral.store.files import csv_text, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.cluster.compute import GradientTimes
    from decentral.config.schema import Config
    from decentral.tasks.task import Problem

FILE = "gradient_times.csv"
_WARM_UP = 3
"""Passes at first that are not counted."""


def with_measured(times: GradientTimes, config: Config, problem: Problem, x: Tensor) -> GradientTimes:
    """The times, of which nothing is left to be measured; x [n, P] are the models at the beginning.

    What is measured lies in the directory of the run, if there is one, so that a run that goes on has the same times.
    """
    times = kept(times, config)
    if not times.passes:
        return times
    seconds = measure(problem, x, times.passes)
    directory = run_directory(config)
    if directory.is_dir():
        write_text(directory / FILE, csv_text(["seconds"], [[repr(value)] for value in seconds.tolist()]))
    return times.measured(seconds)


def kept(times: GradientTimes, config: Config) -> GradientTimes:
    """The times, with what the run has measured before, if it has."""
    path = run_directory(config) / FILE if times.passes else None
    return times if path is None or not path.is_file() else times.measured(np.loadtxt(path, skiprows=1, ndmin=1))


def measure(problem: Problem, x: Tensor, passes: int) -> np.ndarray:
    """Seconds of so many gradients, one worker after the other, each at its own model in x [n, P]: float64 [passes].

    The problem is as it was before: batches are addressed, and what workers remember is put back.
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
