"""Commands that are carried out in this process, and somebody who kills their processes meanwhile."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conftest import exit_status
from decentral.cli.run import main
from decentral.config.parsing import dump
from decentral.store import RunStore, Status, read_metrics

if TYPE_CHECKING:
    from decentral.config.prepared import Prepared
    from decentral.network.world import World


def command(*arguments: str) -> int:
    """`decentral-run`: its exit status."""
    return exit_status(main, *arguments)


def status(directory: Path) -> dict[str, Any]:
    return RunStore.peek(directory) or {}


def same(one: Path, other: Path) -> None:
    """Both runs are done, with the same metrics and, bit for bit, the same models at every step."""
    assert status(one)["status"] == status(other)["status"] == "done"
    rows = [[row | {"wall_s": 0} for row in read_metrics(path)] for path in (one, other)]
    assert rows[0] == rows[1] and rows[0]
    with np.load(one / "trace.npz") as ours, np.load(other / "trace.npz") as theirs:
        assert np.array_equal(ours["iterates"], theirs["iterates"])


def be_killed_when_done(run: Prepared, world: World) -> Status:
    """What the processes of a run do, as far as the run is concerned, that die after everything has been written."""
    if world.leader:
        with RunStore.open(run.directory, run.id, dump(run.config)) as store:
            store.set_status(Status.done)
    world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
    return Status.failed


def below(pid: int) -> list[int]:
    """The processes that a process has started, those that these have started, and so on; dead ones do not count."""
    return _below(pid, _families())


def workers_of(pid: int) -> list[int]:
    """The forks of its fork server: not the server itself, nor multiprocessing's resource tracker."""
    families = _families()
    return [one for one in _below(pid, families) if one not in families[pid]]


def _below(pid: int, families: dict[int, list[int]]) -> list[int]:
    found = list(families.get(pid, []))
    for child in found:
        found += families.get(child, [])
    return found


def _families() -> dict[int, list[int]]:
    """The children of every process, as they are at this moment."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            found.setdefault(int(parent), []).append(int(entry.name))
    return found


def newest_checkpoint(directory: Path) -> int:
    return max((int(path.parent.name) for path in directory.glob("checkpoints/*/manifest.json")), default=-1)


class Meanwhile:
    """Does something, in a thread, as soon as the run in `directory` has a new checkpoint.

    The deed gets the processes that this one has started since this object was made: those of the run, `found`.
    """

    def __init__(self, directory: Path, deed: Callable[[list[int]], None]) -> None:
        self._directory, self._deed = directory, deed
        self._before = newest_checkpoint(directory)
        self._others = set(below(os.getpid()))
        self.found: list[int] = []
        self._thread = threading.Thread(target=self._wait_and_do, daemon=True)
        self._thread.start()

    def processes(self) -> list[int]:
        return [pid for pid in workers_of(os.getpid()) if pid not in self._others]

    def _wait_and_do(self) -> None:
        while newest_checkpoint(self._directory) <= self._before:
            time.sleep(0.005)
        self.found = self.processes()
        self._deed(self.found)

    def nobody_is_left(self) -> bool:
        self._thread.join()
        return not self.processes()


class Punisher(Meanwhile):
    """From the first checkpoint on, strikes a random process of the run at random moments: SIGKILL or SIGSTOP.

    The first time soon, so that the run is not over.
    """

    def __init__(self, directory: Path, seed: int, strikes: int, longest_pause_s: float) -> None:
        print(f"the punisher's seed is {seed}")
        self._random = random.Random(seed)
        self._strikes, self._longest_pause_s = strikes, longest_pause_s
        super().__init__(directory, self._punish)

    def _punish(self, _: list[int]) -> None:
        for strike in range(self._strikes):
            time.sleep(self._random.uniform(0, self._longest_pause_s if strike else 0.05))
            number = self._random.choices([signal.SIGKILL, signal.SIGSTOP], [5, 1])[0]
            victims = self.processes()
            if victims:
                try:
                    os.kill(self._random.choice(victims), number)
                except ProcessLookupError:
                    continue


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """A stand-in for a full disk: the system writes what fits and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
