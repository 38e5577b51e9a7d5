"""Where a job's output goes: log.txt in its directory, which is locked while somebody carries the job out."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from decentral.store.files import is_locked, try_lock
from decentral.store.ownership import LOCK, LOG

_LONGEST_BYTES = 1 << 20  # a log that is longer begins anew with the next attempt


def is_taken(directory: Path) -> bool:
    """Whether a living process, of any launcher, carries out the job or writes the run of this directory."""
    return is_locked(directory / LOG) or is_locked(directory / LOCK)


def claim(directory: Path) -> int | None:
    """Open (and lock) the log for as long as the job is carried out; None if somebody else has. Raises OSError."""
    path = directory / LOG
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(log):
                os.close(log)
                return None
            if os.fstat(log).st_nlink:  # else its last owner has removed it since
                if os.fstat(log).st_size > _LONGEST_BYTES:
                    os.ftruncate(log, 0)
                return log
        except BaseException:
            os.close(log)
            raise
        os.close(log)


def redirect(log: int) -> None:
    """From now on, what this process and its children print goes to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def tidy(directory: Path, log: int) -> None:
    """Remove the log, while it is still locked, if there is nothing in it, and the directory if nothing else is."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        if os.fstat(log).st_size == 0:
            (directory / LOG).unlink()
            directory.rmdir()


def _lock(log: int) -> bool:
    try:
        return try_lock(log)
    except OSError:  # a file system without locks
        return True
