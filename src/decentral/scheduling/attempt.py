"""One attempt at a job, in its process: output goes to log.txt in the job's directory, which is locked meanwhile, and
every outcome is reported.

Imports nothing heavy: the launching process imports it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from decentral.host import machine
from decentral.host.processes import die_with_parent
from decentral.runtime.devices import set_threads
from decentral.scheduling.job import Ended, Job
from decentral.store import DirectoryTaken, RunStore, Status
from decentral.store.failures import Failure, classify, describe
from decentral.store.files import is_locked, make_folder, try_lock
from decentral.store.run_store import LOCK, LOG

_LONGEST_BYTES = 1 << 20  # a longer log is restarted at the next attempt


def attempt_main(job: Job, processes: int, cores: int, pipe: Connection, environment: dict[str, str]) -> None:
    """Run the job with `processes` processes on `cores` cores, and send its outcome (`Ended` without the job).

    The process leads its own group, so that its children can be killed with it; it dies with the launcher. SIGTERM asks
    the job to stop.
    """
    os.setpgid(0, 0)
    die_with_parent(with_group=True)
    os.environ.update(environment)
    machine.share_cores(cores)
    threads = set_threads(processes, worth_threads=True)
    if "torch" in sys.modules:  # imported before the environment was set
        sys.modules["torch"].set_num_threads(threads)
    pipe.send(attempt(job)[1:])


def attempt(job: Job) -> Ended:
    """Run the job unless it is finished or running elsewhere; its output goes to its log."""
    try:
        log = claim_log(job.directory)
    except OSError as error:
        failure = Failure.refused if isinstance(error, PermissionError | FileExistsError) else classify(error)
        return Ended(job, Status.failed, failure.value, describe(error))
    if log is None:
        return Ended(job, Status.running, None, "another launcher is at it")
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)  # of this process and its children
    os.dup2(log, 2)
    finished = job.finished()
    ended = Ended(job, finished) if finished else carry_out(job)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fstat(log).st_size == 0:  # remove it while still locked, and the directory if it is otherwise empty
            (job.directory / LOG).unlink()
            job.directory.rmdir()
    return ended


def carry_out(job: Job) -> Ended:
    """Run the job in this process and return its outcome in any case. SIGTERM asks it to stop.

    A run writes a checkpoint and stops at the first SIGTERM; a job without a handler is aborted.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    try:
        status = job.carry_out()
    except KeyboardInterrupt:
        return Ended(job, Status.interrupted)
    except DirectoryTaken as error:
        return Ended(job, Status.running, None, str(error))
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        return Ended(job, Status.failed, classify(error).value, describe(error))
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if status is Status.failed:
        facts = RunStore.peek(job.directory) or {}
        return Ended(job, status, facts.get("failure", Failure.error.value), str(facts.get("reason", "")))
    return Ended(job, status)


def is_taken(directory: Path) -> bool:
    """Return whether a living process, of any launcher, carries out the job or writes the run of this directory."""
    return is_locked(directory / LOG) or is_locked(directory / LOCK)


def claim_log(directory: Path) -> int | None:
    """Open (and lock) the log while the job runs; None if another process has it. Raises OSError."""
    path = directory / LOG
    while True:
        make_folder(directory, above=2)
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                locked = try_lock(log)
            except OSError:  # a file system without locks
                locked = True
            facts = os.fstat(log)
            if locked and facts.st_nlink:  # else its last owner has removed it
                if facts.st_size > _LONGEST_BYTES:
                    os.ftruncate(log, 0)
                return log
        except BaseException:
            os.close(log)
            raise
        os.close(log)
        if not locked:
            return None
