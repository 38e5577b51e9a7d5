"""What a job on a SLURM cluster does with the signals that SLURM sends it; imported on the compute nodes, too."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any

from decentral.host import devices
from decentral.host.interrupt import ask_to_stop
from decentral.scheduling.attempt import Report, attempt
from decentral.scheduling.job import Job
from decentral.store import Status
from decentral.store.failures import Failure

_STOPPED = 128 + signal.SIGTERM
_LINGER_S = 2.0  # a cluster that preempts may send SIGTERM just before the signal that announces it


class Submission:
    """What submitit pickles and calls: the job, with submitit's protocol for going back to the queue.

    SLURM announces preemption and the end of the time limit by a signal (SIGUSR2). submitit's own handler would requeue
    in the middle of a step; here the signal first lets the run write a checkpoint and stop, as SIGTERM does (one that
    has just come is enough), and then submitit requeues. SIGTERM alone (scancel) ends the job without a report, so that
    a job which SLURM itself puts back into the queue is not mistaken for one that is over.
    """

    def __init__(self, job: Job, cores: int) -> None:
        self.job = job
        self._cores = cores
        self._requeue = False

    def __call__(self) -> Report:
        """Carry the job out; does not return if it goes back to the queue, or is told to stop."""
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.utils import UncompletedJobError

        number = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        requeue: Any = signal.signal(number, self._announce)
        devices.share_cores(self._cores)
        report = attempt(self.job)
        if report.status in (Status.done, Status.diverged):
            return report
        deadline = time.monotonic() + _LINGER_S
        while report.status == Status.interrupted and not self._requeue and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._requeue:
            try:
                requeue(number, None)  # ends this process, unless submitit refuses
            except UncompletedJobError as error:
                return Report(Status.failed, Failure.killed, f"{error} Raise launcher.time_minutes or .requeues.")
        if report.status == Status.interrupted:
            sys.exit(_STOPPED)
        return report

    def checkpoint(self) -> Any:
        """What submitit calls next time: the same, since the run's directory knows how far it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Submission(self.job, self._cores))

    def _announce(self, number: int, frame: FrameType | None) -> None:
        if not self._requeue:
            self._requeue = True
            ask_to_stop()
