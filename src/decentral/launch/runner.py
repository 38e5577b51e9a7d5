"""The process that carries a job out on this machine. Imports nothing heavy: the launching process imports it, too."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from decentral.launch import devices, elsewhere, output
from decentral.launch.elsewhere import Report
from decentral.launch.failures import Failure, classify, describe
from decentral.launch.job import Job
from decentral.orphans import die_with_parent
from decentral.store import Status


def runner_main(job: Job, processes: int, cores: int, pipe: Connection, environment: dict[str, str]) -> None:
    """Carry the job out with `processes` processes on `cores` cores, and send a Report.

    The process leads a group of its own, with which whatever it starts can be killed; it dies with the launcher.
    Ctrl-C is for the launcher to act on; SIGTERM asks the job to stop.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(with_group=True)
    os.environ.update(environment)
    devices.share_cores(cores)
    _set_threads(devices.set_threads(processes, worth_threads=True))
    pipe.send(attempt(job))


def attempt(job: Job) -> Report:
    """Carry the job out unless it is finished, or somebody else is at it; what it prints goes to its log."""
    try:
        log = output.claim(job.directory)
    except OSError as error:
        failure = Failure.refused if isinstance(error, PermissionError | FileExistsError) else classify(error)
        return Report(Status.failed, failure.value, describe(error))
    if log is None:
        return Report(Status.running, None, "another launcher is at it")
    output.redirect(log)
    finished = job.finished()
    report = Report(finished) if finished else elsewhere.carry_out(job)
    output.tidy(job.directory, log)
    return report


def _set_threads(threads: int) -> None:
    """PyTorch is in memory since before the environment was set."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
