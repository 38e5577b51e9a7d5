"""Jobs on a SLURM cluster: submitted, watched and requeued by submitit, and found again after a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import submitit
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import UncompletedJobError

from decentral.errors import ConfigError
from decentral.host import machine
from decentral.host.interrupt import ask_to_stop
from decentral.scheduling.attempt import attempt
from decentral.scheduling.job import Ended, Job, ended_without_report
from decentral.scheduling.queued_pool import QueuedPool
from decentral.store import Status
from decentral.store.failures import Failure
from decentral.store.files import make_folder, read_json, write_json

if TYPE_CHECKING:
    from decentral.scheduling.launchers.slurm import Slurm

_JOBS = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
_HINTS = {
    "OUT_OF_MEMORY": ": raise launcher.memory_gb",
    "TIMEOUT": " before it had written a checkpoint: raise launcher.grace_s",
}
_STOPPED = 128 + signal.SIGTERM
_LINGER_S = 2.0  # a cluster that preempts may send SIGTERM just before the signal that announces it


def private_folder(folder: Path) -> Path:
    """Create the folder for this user only: its pickles are executed when loaded.

    Raises ConfigError if it belongs to another user or cannot be made private.
    """
    make_folder(folder, above=1)
    if folder.stat().st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            folder.chmod(0o700)  # it may be older than this rule
    facts = folder.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{folder} belongs to another user, or is writable by others, who could then run code as you: choose "
            "another results_dir."
        )
    return folder


class SlurmPool(QueuedPool):
    """Jobs of a submitit executor, which writes its files to `folder`.

    There, <job id>.json has the cluster's number of each job: a job that is still in the cluster is not submitted a
    second time. Jobs outlive this process if it is killed; `close` and `interrupt` cancel them.
    """

    def __init__(self, settings: Slurm, folder: Path) -> None:
        super().__init__(settings.max_jobs)
        self._settings, self._folder, self._cluster = settings, folder, settings.cluster.value
        requeues = {f"{cluster}_max_num_timeout": settings.requeues for cluster in _JOBS}
        self._executor = submitit.AutoExecutor(folder, self._cluster, **requeues)
        self._stopped = False

    def started_before(self, job: Job) -> bool:
        """Return whether an earlier launcher has submitted the job, and the cluster still has it."""
        return self._submitted_before(job) is not None

    def start(self, job: Job) -> None:
        """Submit the job, unless an earlier launcher did so and the cluster still has it."""
        handle = self._submitted_before(job)
        if handle is None:
            handle = self._submit(job)
            write_json(self._record(job), {"cluster": self._cluster, "number": handle.job_id})
        self.add(handle, job, f"{self._cluster} job {handle.job_id}")

    def wait(self, timeout_s: float) -> list[Ended]:
        """Return the jobs that have a result, or have ended without one according to the cluster."""
        time.sleep(timeout_s)
        handles = list(self._active)
        first = handles[:1] if self._stopped else []  # its query covers all jobs
        return [self._ended(handle) for handle in handles if handle.done(force_check=handle in first)]

    def interrupt(self, grace_s: float) -> None:
        """Cancel all: SLURM lets running jobs write a checkpoint (30 s, its KillWait); pending ones do not start."""
        self._stopped = True
        for handle in self._active:
            handle.cancel(check=False)

    def close(self) -> None:
        """Cancel what is left, and do not wait for it."""
        if not self._stopped:
            self.interrupt(0.0)
        for job, *_ in self._active.values():
            self._record(job).unlink(missing_ok=True)
        self._active = {}

    def _record(self, job: Job) -> Path:
        return self._folder / f"{job.id}.json"

    def _submitted_before(self, job: Job) -> Any:
        """Return the cluster's job; None if the cluster says that it has ended."""
        facts = read_json(self._record(job)) or {}
        if facts.get("cluster") != self._cluster:
            return None
        handle = _JOBS[self._cluster](self._folder, facts["number"])
        return None if handle.done(force_check=True) else handle

    def _submit(self, job: Job) -> Any:
        """Submit the job; one that measures times gets its nodes to itself."""
        if job.demand.alone and self._cluster == "local":
            raise ConfigError(
                f"launcher.cluster=local runs jobs concurrently, but {job.title} measures times and needs an idle "
                "machine: use launcher=local, or launcher.cluster=slurm."
            )
        s, cpus = self._settings, max(self._settings.cpus, job.demand.processes or 1)
        options: dict[str, str | bool] = {"requeue": True, **({"exclusive": True} if job.demand.alone else {})}
        for word in s.sbatch:
            key, equals, value = word.lstrip("-").partition("=")
            options[key] = value if equals else True
        self._executor.update_parameters(
            name=f"decentral-{job.id}",
            timeout_min=s.time_minutes,
            tasks_per_node=1,
            cpus_per_task=cpus,
            gpus_per_node=s.gpus or None,
            mem_gb=s.memory_gb,
            slurm_partition=s.partition,
            slurm_srun_args=["--cpus-per-task", str(cpus)],  # srun does not take it over from sbatch
            slurm_signal_delay_s=s.grace_s,
            slurm_additional_parameters=options,
            **{f"{cluster}_setup": s.setup for cluster in _JOBS},
        )
        return self._executor.submit(Submission(job, cpus))

    def _ended(self, handle: Any) -> Ended:
        job, place, _ = self._active.pop(handle)
        self._record(job).unlink(missing_ok=True)
        if self._stopped and not handle.paths.result_pickle.exists():
            return ended_without_report(job, "", stopped=True)
        if handle.exception() is None:
            return Ended(job, *handle.result())
        state = handle.state.partition(" ")[0]
        if state == "CANCELLED" and job.finished() is None:  # on purpose: no second attempt
            return Ended(job, Status.failed, Failure.error, f"{place} was cancelled")
        told = f"{place} ended without a result ({state}{_HINTS.get(state, '')}), see {handle.paths.stderr}"
        return ended_without_report(job, told)


@dataclass
class Submission:
    """A job as submitit pickles and calls it, with submitit's protocol for going back to the queue.

    SLURM announces preemption and the time limit by a signal. submitit's handler would requeue in the middle of a step;
    here the signal first makes the run write a checkpoint and stop, like SIGTERM, and then submitit requeues. SIGTERM
    alone (scancel) ends the job without a result, so that a job requeued by SLURM itself does not look finished.
    """

    job: Job
    cores: int
    is_requeued: bool = False

    def __call__(self) -> tuple[Any, ...]:
        """Run the job and return its outcome, unless it is requeued or asked to stop."""
        number = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        requeue: Any = signal.signal(number, self._announce)
        machine.share_cores(self.cores)
        ended = attempt(self.job)
        if ended.status is not Status.interrupted:
            return ended[1:]
        if not self.is_requeued:
            time.sleep(_LINGER_S)
        if self.is_requeued:
            try:
                requeue(number, None)  # ends this process, unless submitit refuses
            except UncompletedJobError as error:
                return Status.failed, Failure.killed, f"{error} Raise launcher.time_minutes or .requeues."
        sys.exit(_STOPPED)

    def checkpoint(self) -> Any:
        """Return submitit's next call: the same, since the run's directory has the progress."""
        return submitit.helpers.DelayedSubmission(Submission(self.job, self.cores))

    def _announce(self, number: int, frame: FrameType | None) -> None:
        if not self.is_requeued:
            self.is_requeued = True
            ask_to_stop()
