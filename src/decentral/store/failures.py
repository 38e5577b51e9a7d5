"""Why a run failed, what follows from it, and what its user can do."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Any

from decentral.errors import ConfigError
from decentral.registry import blame
from decentral.store import RunStore, Status


class Failure(StrEnum):
    """Kinds of failures, as `failure` in status.json."""

    killed = "killed"  # a process got a signal: from the user, the kernel's memory killer, a scheduler
    lost = "lost"  # a process of the run hung or lost its connection
    out_of_memory = "out_of_memory"  # of the device
    disk_full = "disk_full"
    refused = "refused"  # bad input, missing data
    error = "error"  # a bug, or numbers that a library does not take


OUTSIDE = frozenset({Failure.killed, Failure.lost, Failure.out_of_memory})
"""Failures with reasons outside the run: trying again may help."""

RESTARTED = OUTSIDE - {Failure.out_of_memory}
"""Failures after which a run on one machine restarts its processes automatically."""

ADVICE = {
    Failure.killed: "If the machine ran out of memory, use fewer processes; the same command resumes from the last "
    "checkpoint",
    Failure.lost: "If a process was only slow, raise network.timeout_s; the same command resumes from the last "
    "checkpoint",
    Failure.out_of_memory: "A smaller batch_size, a smaller model or fewer workers help, and make another run. With "
    "more GPUs, use more processes: the same command then resumes from the last checkpoint",
    Failure.disk_full: "Free some space and rerun the same command: it resumes from the last checkpoint, which is "
    "intact",
    Failure.refused: "Fix that and rerun the same command",
    Failure.error: "The same command resumes from the last checkpoint (DECENTRAL_TRACEBACK=1 shows the traceback)",
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
_NO_CONNECTION = ("connection reset", "connection closed", "connection refused", "timed out", "gloo", "nccl")


class RunFailed(RuntimeError):
    """A run broke off, and it is known why: `failure` is the kind, the message one sentence."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure


def classify(error: BaseException) -> Failure:
    """The kind of failure that an exception is a sign of. Imports nothing: it goes by names and messages."""
    one: BaseException | None = error
    for _ in range(10):  # the error and those that it was raised from
        if one is None:
            break
        if (known := _classify(one)) is not None:
            return known
        one = one.__cause__
    return Failure.error


def describe(error: BaseException) -> str:
    """Describe an exception in one line: its message, its type unless it is for users, the place in user code that
    raised it, and its notes."""
    ours = isinstance(error, RunFailed | ConfigError)
    where = None if ours else blame.place(error)
    text = str(error) if ours else f"{where}: {blame.sentence(error)}" if where else f"{type(error).__name__}: {error}"
    notes = getattr(error, "__notes__", [])
    return " ".join(" ".join([text, *(f"({note})" for note in notes)]).split())


def record(store: RunStore, error: BaseException, **facts: Any) -> None:
    """Set the status of a run that an exception has ended: `interrupted`, or `failed` with `failure` and `reason`; and
    `facts`."""
    if isinstance(error, KeyboardInterrupt):
        store.set_status(Status.interrupted, reason="interrupted", **facts)
    else:
        store.set_status(Status.failed, failure=classify(error).value, reason=describe(error), **facts)


def _classify(error: BaseException) -> Failure | None:
    text = str(error).lower()
    names = [cls.__name__ for cls in type(error).__mro__]
    if isinstance(error, RunFailed):
        return error.failure
    if isinstance(error, ConfigError):
        return Failure.refused
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return Failure.out_of_memory
    if isinstance(error, OSError) and error.errno in _FULL:
        return Failure.disk_full
    if isinstance(error, ConnectionError | TimeoutError) or any(name.startswith("Dist") for name in names):
        return Failure.lost
    if isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY):
        return Failure.out_of_memory
    if isinstance(error, RuntimeError) and any(words in text for words in _NO_CONNECTION):
        return Failure.lost
    return None
