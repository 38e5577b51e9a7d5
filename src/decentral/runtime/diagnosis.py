"""Which process was the cause when a run breaks off: where one fails, all others lose their connection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.host.exitcodes import NO_STATUS, signal_of
from decentral.store.failures import Failure, RunFailed

_PATIENCE_S = 1.0  # for what the other processes have to say, and for the exit status of a dead one


class Worker(NamedTuple):
    """A process of a run, as the launching process sees it."""

    rank: int
    process: ForkServerProcess
    pipe: Connection

    def __str__(self) -> str:
        return f"{self.process.name} (pid {self.process.pid})"

    def receive(self) -> tuple[Any, ...] | None:
        """The next report; None if the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None


def reason(workers: Sequence[Worker], first: Worker, said: tuple[Any, ...] | None) -> Exception:
    """Why the run broke off, as an exception to raise: RunFailed or ConfigError.

    `workers` are those that had not finished, and `first` is the one that `said` first that something is wrong (None:
    it died); the others get a moment to say more.
    """
    causes = [_cause(first, said)]
    silent = {worker.pipe: worker for worker in workers if worker is not first}
    deadline = time.monotonic() + _PATIENCE_S
    while silent and all(map(_weight, causes)):
        ready = wait(list(silent), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            worker = silent[pipe]  # type: ignore[index]
            said = worker.receive()
            if said is None or said[0] != "port":
                del silent[worker.pipe]
            if said is None or said[0] in ("refused", "failed"):
                causes.append(_cause(worker, said))
    cause = min(causes, key=_weight)
    if silent and isinstance(cause, RunFailed) and cause.failure is Failure.lost:
        names = ", ".join(str(worker) for worker in silent.values())
        return RunFailed(f"{names} did not answer any more: {cause}", Failure.lost)
    return cause


def _weight(cause: Exception) -> int:
    """The smaller, the more likely it is what happened first; 0 is certain."""
    if isinstance(cause, ConfigError):
        return 0
    assert isinstance(cause, RunFailed)
    return {Failure.killed: 0, Failure.lost: 2}.get(cause.failure, 1)


def _cause(worker: Worker, said: tuple[Any, ...] | None) -> Exception:
    if said is None:
        return _death(worker)
    if said[0] == "refused":
        return said[1]
    return RunFailed(f"{worker} failed: {said[2]}", Failure(said[1]))


def _death(worker: Worker) -> RunFailed:
    worker.process.join(_PATIENCE_S)
    code = worker.process.exitcode
    killer = signal_of(code)
    if killer is not None:
        return RunFailed(f"{worker} was killed by {killer}", Failure.killed)
    if code == NO_STATUS:
        return RunFailed(f"{worker} died together with the process that had started it", Failure.killed)
    return RunFailed(f"{worker} ended with status {code}", Failure.error)
