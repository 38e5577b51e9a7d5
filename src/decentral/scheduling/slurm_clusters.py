"""SLURM, and this machine in its place, as `SlurmPool` needs them; and what a job does there. submitit does the
submitting."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from decentral.errors import ConfigError
from decentral.host import machine
from decentral.host.interrupt import ask_to_stop
from decentral.scheduling.attempt import attempt
from decentral.scheduling.job import Ended, Job
from decentral.store import Status
from decentral.store.failures import Failure
from decentral.store.files import write_json

_COMMAND_TIMEOUT_S = 60.0
_CONTROLLER_ENDS_S = 30.0
_TASK = "submitit.core._submit"
_STOPPED = 128 + signal.SIGTERM
_LINGER_S = 2.0  # a cluster that preempts may send SIGTERM just before the signal that announces it


class SlurmCluster:
    """A SLURM cluster. Submitted jobs are identified by the cluster's job numbers, for any submitter.

    `settings` are those of the launcher, `launchers.slurm.Slurm`, and `folder` is for what submitit writes.

    SLURM: sbatch through submitit, squeue to see what is alive (sacct is not there everywhere), scancel.
    """

    name = "slurm"
    every_s = 10.0
    """Interval of queries of job states."""
    patience_s = 15.0
    """Time for the report of an ended job to appear."""

    def __init__(self, settings: Any, folder: Path) -> None:
        from submitit.slurm.slurm import SlurmExecutor

        self._settings, self._folder = settings, folder
        self._executor: Any = SlurmExecutor(folder, max_num_timeout=settings.requeues)

    def submit(self, job: Job) -> str:
        """The number of the job, from sbatch; one that takes times gets its nodes to itself."""
        s, cpus = self._settings, self._cpus_of(job)
        options: dict[str, str | bool] = {"requeue": True}
        if job.demand.alone:
            options["exclusive"] = True
        for word in s.sbatch:
            key, equals, value = word.lstrip("-").partition("=")
            options[key] = value if equals else True
        self._executor.parameters = {}
        self._executor.update_parameters(
            job_name=f"decentral-{job.id}",
            time=s.time_minutes,
            ntasks_per_node=1,
            cpus_per_task=cpus,
            srun_args=["--cpus-per-task", str(cpus)],  # srun does not take it over from sbatch
            signal_delay_s=s.grace_s,
            wckey=None,
            partition=s.partition,
            setup=list(s.setup),
            additional_parameters=options,
            **({"gpus_per_node": s.gpus} if s.gpus else {}),
            **({"mem": f"{round(1024 * s.memory_gb)}M"} if s.memory_gb else {}),
        )
        return str(self._executor.submit(Submission(job, cpus, report_path(self._folder, job))).job_id)

    def _cpus_of(self, job: Job) -> int:
        return max(self._settings.cpus, job.demand.processes or 1)

    def alive(self, numbers: Iterable[str]) -> dict[str, bool] | None:
        """Return waiting (False) and running (True) jobs, by one squeue for all jobs of this user; None if unknown."""
        lines = _output(["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%i %T"])
        if lines is None:
            return None
        states = dict(line.split(maxsplit=1) for line in lines.splitlines() if len(line.split()) > 1)
        return {number: states[number] != "PENDING" for number in numbers if number in states}

    def ask_to_stop(self, numbers: list[str]) -> None:
        """SIGTERM to the processes of those that run."""
        _output(["scancel", "--state=PENDING", *numbers])
        _output(["scancel", "--signal=TERM", *numbers])

    def kill(self, numbers: list[str]) -> None:
        """Stop them now."""
        _output(["scancel", *numbers])

    def verdict(self, number: str) -> str:
        """SLURM's word for how a job ended, for example OUT_OF_MEMORY, from sacct; '' if it has none."""
        found = _output(["sacct", "--noheader", "--parsable2", "--allocations", "--format=State", "--jobs", number])
        return (found or "").split("\n")[0].split(" ")[0].strip()

    def close(self) -> None:
        """Release what this process keeps for jobs that are over."""


class LocalCluster(SlurmCluster):
    """submitit's controller processes on this machine; they outlive the one that started them, as SLURM jobs do."""

    name = "local"
    every_s = 0.2
    patience_s = 0.5

    def __init__(self, settings: Any, folder: Path) -> None:
        from submitit.local.local import LocalExecutor

        self._settings, self._folder = settings, folder
        self._executor: Any = LocalExecutor(folder, max_num_timeout=settings.requeues)
        self._submitted: dict[str, Any] = {}

    def submit(self, job: Job) -> str:
        """Start a controller that ignores the terminal's Ctrl-C."""
        if job.demand.alone:
            raise ConfigError(
                f"launcher.cluster=local runs jobs concurrently, but {job.title} measures times and needs an idle "
                "machine: use launcher=local, or launcher.cluster=slurm."
            )
        self._executor.update_parameters(
            timeout_min=self._settings.time_minutes,
            signal_delay_s=self._settings.grace_s,
            gpus_per_node=self._settings.gpus,
            setup=list(self._settings.setup),
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the controller
        try:
            submitted = self._executor.submit(Submission(job, self._cpus_of(job), report_path(self._folder, job)))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._submitted[submitted.job_id] = submitted
        return str(submitted.job_id)

    def alive(self, numbers: Iterable[str]) -> dict[str, bool] | None:
        """Return the jobs whose controller is alive."""
        return {number: True for number in numbers if self._lives(number)}

    def _lives(self, number: str) -> bool:
        if number in self._submitted:
            return not self._submitted[number].done()
        return "submitit" in (_output(["ps", "-p", number, "-o", "command="]) or "")  # not a newer process

    def verdict(self, number: str) -> str:
        """None."""
        return ""

    def ask_to_stop(self, numbers: list[str]) -> None:
        """SIGTERM to the jobs themselves; a controller that has not started one yet is killed."""
        for number in numbers:
            family = self._family(number)
            jobs = [pid for pid, command in family.items() if _TASK in command]
            _send(signal.SIGTERM if jobs else signal.SIGKILL, jobs or family)

    def kill(self, numbers: list[str]) -> None:
        """Controllers and all below them."""
        for number in numbers:
            _send(signal.SIGKILL, self._family(number))

    def close(self) -> None:
        """Wait for the controllers, which end soon after their jobs."""
        for submitted in self._submitted.values():
            if submitted._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    submitted._process.wait(_CONTROLLER_ENDS_S)
        self._submitted = {}

    def _family(self, number: str) -> dict[str, str]:
        """pid -> command line of a controller that lives and of all processes below it."""
        rows = [line.split(maxsplit=2) for line in (_output(["ps", "-A", "-o", "pid=,ppid=,args="]) or "").splitlines()]
        family = {pid: command for pid, _, command in rows if pid == number and self._lives(number)}
        while more := {pid: command for pid, parent, command in rows if parent in family and pid not in family}:
            family |= more
        return family


def _send(number: signal.Signals, pids: Iterable[str]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), number)


def _output(command: list[str]) -> str | None:
    """Return the output of a command; None if it is missing, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def report_path(folder: Path, job: Job) -> Path:
    """Return the path of a job's report."""
    return folder / f"{job.id}.report.json"


class Submission:
    """What submitit pickles and calls: the job, with submitit's protocol for going back to the queue.

    SLURM announces preemption and the time limit by a signal (SIGUSR2). submitit's own handler would requeue in the
    middle of a step; here the signal first makes the run write a checkpoint and stop, like SIGTERM (a recent one is
    enough), and then submitit requeues. SIGTERM alone (scancel) ends the job without a report, so that a job requeued
    by SLURM itself does not look finished.
    """

    def __init__(self, job: Job, cores: int, path: Path) -> None:
        self.job, self._cores, self._path = job, cores, path
        self._requeue = False

    def __call__(self) -> None:
        """Run the job and write its report, unless it is requeued or asked to stop."""
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.utils import UncompletedJobError

        number = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        requeue: Any = signal.signal(number, self._announce)
        machine.share_cores(self._cores)
        ended = attempt(self.job)
        if ended.status not in (Status.done, Status.diverged):
            deadline = time.monotonic() + _LINGER_S
            while ended.status == Status.interrupted and not self._requeue and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._requeue:
                try:
                    requeue(number, None)  # ends this process, unless submitit refuses
                except UncompletedJobError as error:
                    told = f"{error} Raise launcher.time_minutes or .requeues."
                    ended = Ended(self.job, Status.failed, Failure.killed, told)
            if ended.status == Status.interrupted:
                sys.exit(_STOPPED)
        write_json(self._path, {"report": ended[1:]})

    def checkpoint(self) -> Any:
        """Return submitit's next call: the same, since the run's directory has the progress."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Submission(self.job, self._cores, self._path))

    def _announce(self, number: int, frame: FrameType | None) -> None:
        if not self._requeue:
            self._requeue = True
            ask_to_stop()
