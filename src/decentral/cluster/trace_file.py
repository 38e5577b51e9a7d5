"""Times of gradients that were recorded, in a CSV file or by a finished run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from decentral.cluster.csv_file import read_rows
from decentral.cluster.distributions import Durations
from decentral.cluster.settings import LONGEST_S
from decentral.errors import ConfigError
from decentral.store.digests import file_digest
from decentral.store.files import at_home

_HEAD = ["step", "worker", "seconds"]
_OPERATIONS = "operations.jsonl"
"""What a run with record_operations=true leaves: see `training.operations`."""
_Rows = list[tuple[int, list[str]]]


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

    def check(self, where: str, num_workers: int) -> None:
        """The file, or the run, has exactly n workers, and a time for each of them in every step."""
        self._times(num_workers)

    def draw(self, seed: int, first: int, last: int, num_workers: int) -> np.ndarray:
        """Step t of the run is step t modulo their number of the file."""
        times = self._times(num_workers)
        return times[np.arange(first, last) % len(times)]

    def _times(self, num_workers: int) -> np.ndarray:
        path = at_home(self.trace)
        if path.is_dir():
            path /= _OPERATIONS
            if not path.is_file():
                raise ConfigError(
                    f"cluster.compute.trace={self.trace} is a directory without {_OPERATIONS}: give that of a finished "
                    f"run with record_operations=true and processes={num_workers} (or 1, where networks are "
                    "trained), or a CSV file."
                )
        if not path.is_file():
            raise ConfigError(f"cluster.compute.trace={self.trace} is not a file (looked for {path.absolute()}).")
        return _read_unchanged(self.trace, path, num_workers, file_digest(path))


@lru_cache(maxsize=2)
def _read_unchanged(name: str, path: Path, num_workers: int, _digest: str) -> np.ndarray:
    if path.name == _OPERATIONS:
        return _recorded(name, path, num_workers)
    rows = read_rows("cluster.compute.trace", name, path)
    listed = bool(rows) and sorted(rows[0][1]) == sorted(_HEAD)
    if listed and rows[0][1] != _HEAD:
        places = [rows[0][1].index(name) for name in _HEAD]
        rows = [(line, [row[i] for i in places] if len(row) == len(places) else row) for line, row in rows]
    if listed or (rows and not any(_number(cell) is not None for cell in rows[0][1])):
        del rows[0]
    if not rows:
        raise ConfigError(
            f"cluster.compute.trace={name} holds no times: give lines step,worker,seconds below these words, or a "
            "line for each step with a column for each worker."
        )
    return _listed(name, rows, num_workers) if listed else _columns(name, rows, num_workers)


def _recorded(name: str, path: Path, num_workers: int) -> np.ndarray:
    """How long the gradients of a run took, in the order in which each worker took them."""
    said = f"cluster.compute.trace={name}"
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


def _columns(name: str, rows: _Rows, num_workers: int) -> np.ndarray:
    for line, row in rows:
        if len(row) != num_workers:
            raise ConfigError(
                f"line {line} of cluster.compute.trace={name} has {len(row)} columns, but num_workers={num_workers}: "
                "give every worker a column."
            )
    return np.array([[_seconds(name, line, cell) for cell in row] for line, row in rows])


def _listed(name: str, rows: _Rows, num_workers: int) -> np.ndarray:
    seen: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], float] = {}
    for line, row in rows:
        if len(row) != len(_HEAD):
            raise ConfigError(
                f"line {line} of cluster.compute.trace={name} has {len(row)} columns: it has to be step,worker,seconds."
            )
        step, worker = _whole(name, line, row[0], "step"), _whole(name, line, row[1], "worker")
        if worker >= num_workers:
            raise ConfigError(
                f"line {line} of cluster.compute.trace={name} is about worker {worker}, but with "
                f"num_workers={num_workers} they are numbered 0 to {num_workers - 1}."
            )
        if (step, worker) in seen:
            raise ConfigError(
                f"line {line} of cluster.compute.trace={name} repeats step {step} of worker {worker} of line "
                f"{seen[step, worker]}: give every step of a worker once."
            )
        seen[step, worker] = line
        found[step, worker] = _seconds(name, line, row[2])
    steps = max(step for step, _ in found) + 1
    if len(found) < steps * num_workers:
        hole = next((t, i) for t in range(steps) for i in range(num_workers) if (t, i) not in found)
        raise ConfigError(
            f"cluster.compute.trace={name} has a hole: in its lines {rows[0][0]} to {rows[-1][0]} there is no time for "
            f"step {hole[0]} of worker {hole[1]}."
        )
    times = np.empty((steps, num_workers))
    for place, seconds in found.items():
        times[place] = seconds
    return times


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _whole(name: str, line: int, cell: str, what: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ConfigError(
            f"line {line} of cluster.compute.trace={name} has '{cell}' where the number of a {what} should be, "
            "0, 1, 2, ..."
        )
    return int(cell)


def _seconds(name: str, line: int, cell: str) -> float:
    value = _number(cell)
    if not cell:
        raise ConfigError(f"line {line} of cluster.compute.trace={name} has a hole: a time is missing.")
    if value is None or not 0 <= value <= LONGEST_S:
        raise ConfigError(
            f"line {line} of cluster.compute.trace={name} has '{cell}' where a number of seconds from 0 to "
            f"{LONGEST_S:g} should be."
        )
    return value
