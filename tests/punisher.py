"""Commands that are carried out in this process, and somebody who kills their processes meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.cli import main
from decentral.store import RunStore, read_metrics


def command(*arguments: str) -> int:
    """`decentral-run`: its exit status."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def status(directory: Path) -> dict[str, Any]:
    return RunStore.peek(directory) or {}


def same(one: Path, other: Path) -> None:
    """Both runs are done, with the same metrics and, bit for bit, the same models at every step."""
    assert status(one)["status"] == status(other)["status"] == "done"
    rows = [[row | {"wall_s": 0} for row in read_metrics(path)] for path in (one, other)]
    assert rows[0] == rows[1] and rows[0]
    with np.load(one / "trace.npz") as ours, np.load(other / "trace.npz") as theirs:
        assert np.array_equal(ours["iterates"], theirs["iterates"])


def below(pid: int) -> list[int]:
    """The processes that a process has started, those that these have started, and so on; dead ones do not count."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            parents.setdefault(int(parent), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def newest_checkpoint(directory: Path) -> int:
    return max((int(path.parent.name) for path in directory.glob("checkpoints/*/manifest.json")), default=-1)


class Meanwhile:
    """Does something, in a thread, as soon as the run in `directory` has a new checkpoint.

    The deed gets the processes that this one has started since this object was made: those of the run.
    """

    def __init__(self, directory: Path, deed: Callable[[list[int]], None]) -> None:
        self._directory, self._deed = directory, deed
        self._before = newest_checkpoint(directory)
        self._others = set(below(os.getpid()))
        self._thread = threading.Thread(target=self._wait_and_do, daemon=True)
        self._thread.start()

    def processes(self) -> list[int]:
        return [pid for pid in below(os.getpid()) if pid not in self._others and _is_worker(pid)]

    def _wait_and_do(self) -> None:
        while newest_checkpoint(self._directory) <= self._before:
            time.sleep(0.005)
        self._deed(self.processes())

    def nobody_is_left(self) -> bool:
        self._thread.join()
        return not self.processes()


class Punisher(Meanwhile):
    """From the first checkpoint on, strikes a random process of the run at random moments: SIGKILL or SIGSTOP."""

    def __init__(self, directory: Path, seed: int, strikes: int, longest_pause_s: float) -> None:
        print(f"the punisher's seed is {seed}")
        self._random = random.Random(seed)
        self._strikes, self._longest_pause_s = strikes, longest_pause_s
        super().__init__(directory, self._punish)

    def _punish(self, _: list[int]) -> None:
        for _strike in range(self._strikes):
            time.sleep(self._random.uniform(0, self._longest_pause_s))
            number = self._random.choices([signal.SIGKILL, signal.SIGSTOP], [5, 1])[0]
            victims = self.processes()
            if victims:
                try:
                    os.kill(self._random.choice(victims), number)
                except ProcessLookupError:
                    continue


def _is_worker(pid: int) -> bool:
    """Whether it is a fork of a fork server: not the server itself, nor multiprocessing's resource tracker."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent != os.getpid()
