"""Times of gradients that were recorded, in a CSV file or by a finished run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from decentral.cluster.csv_file import Line, check_columns, csv_path, index, read_lines, seconds
from decentral.cluster.distributions import Durations
from decentral.errors import ConfigError
from decentral.store.digests import file_digest
from decentral.store.files import at_home

_KEY = "cluster.compute.trace"
_HEAD = ["step", "worker", "seconds"]
_OPERATIONS = "operations.jsonl"
"""What a run with record_operations=true leaves: see `training.operations`."""


@dataclass(frozen=True)
class Trace(Durations):
    """The times of a file, or of a run, which begins again at its first step when a run has more steps than it.

    Either lines `step,worker,seconds` below these words (in any order), or a line for each step with the seconds of
    worker 0, 1, ... in its columns, which may have names above them. Or the directory of a run between processes, one
    for each worker, that has recorded its operations: how long its gradients took, with what stragglers slept; or of a
    run in one process that trained networks: how long the passes of each took. Where workers took different numbers of
    gradients, as many of each as all have taken.
    """

    trace: str

    def check(self, num_workers: int) -> None:
        """The file, or the run, has exactly n workers, and a time for each of them in every step."""
        self._times(num_workers)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Step t of the run is step t modulo their number of the file."""
        times = self._times(num_workers)
        return times[np.arange(first, last) % len(times)]

    def _times(self, num_workers: int) -> np.ndarray:
        run = at_home(self.trace)
        if run.is_dir() and not (run / _OPERATIONS).is_file():
            raise ConfigError(
                f"{_KEY}={self.trace} is a directory without {_OPERATIONS}: give that of a finished run with "
                f"record_operations=true and processes={num_workers} (or 1, where networks are trained), or a CSV file."
            )
        path = run / _OPERATIONS if run.is_dir() else csv_path(_KEY, self.trace)
        return _read_unchanged(self.trace, path, num_workers, file_digest(path))


@lru_cache(maxsize=2)
def _read_unchanged(name: str, path: Path, num_workers: int, _digest: str) -> np.ndarray:
    if path.name == _OPERATIONS:
        return _recorded(name, path, num_workers)
    lines = read_lines(_KEY, name, path)
    head = lines[0].cells if lines else []
    listed = sorted(head) == sorted(_HEAD)
    if listed or not any(_is_number(cell) for cell in head):
        lines = lines[1:]
    if not lines:
        raise ConfigError(
            f"{_KEY}={name} holds no times: give lines step,worker,seconds below these words, or a line for each step "
            "with a column for each worker."
        )
    if listed:
        return _listed(f"{_KEY}={name}", lines, [head.index(column) for column in _HEAD], num_workers)
    for line in lines:
        if len(line.cells) != num_workers:
            raise ConfigError(
                f"{line.said} has {len(line.cells)} columns, but num_workers={num_workers}: give every worker a column."
            )
    return np.array([[seconds(line, cell) for cell in line.cells] for line in lines])


def _recorded(name: str, path: Path, num_workers: int) -> np.ndarray:
    """How long the gradients of a run took, in the order in which each worker took them."""
    said = f"{_KEY}={name}"
    found: dict[int, list[float]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if one["what"] == "gradient":
                found.setdefault(int(one["worker"]), []).append(float(one["end_s"]) - float(one["begin_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{said}: its {_OPERATIONS} cannot be read ({error}): let the run end first.") from error
    if sorted(found) != list(range(num_workers)):
        raise ConfigError(
            f"{said} is a run with gradients of {len(found)} workers or processes, but num_workers={num_workers}: it "
            f"has to be one with num_workers={num_workers} and processes={num_workers} (or 1, where networks are "
            "trained)."
        )
    steps = min(map(len, found.values()))
    return np.array([found[i][:steps] for i in range(num_workers)]).T


def _listed(said: str, lines: list[Line], places: list[int], num_workers: int) -> np.ndarray:
    """Times of lines with step, worker and seconds at these places."""
    found: dict[tuple[int, int], float] = {}
    for line in lines:
        check_columns(line, _HEAD)
        step, worker, took = (line.cells[place] for place in places)
        key = index(line, step, "step"), index(line, worker, "worker", num_workers)
        if key in found:
            raise ConfigError(f"{line.said} repeats step {step} of worker {worker}: give every step of a worker once.")
        found[key] = seconds(line, took)
    times = np.empty((max(step for step, _ in found) + 1, num_workers))
    for place in np.ndindex(times.shape):
        if place not in found:
            raise ConfigError(f"{said} has a hole: there is no time for step {place[0]} of worker {place[1]}.")
        times[place] = found[place]
    return times


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
