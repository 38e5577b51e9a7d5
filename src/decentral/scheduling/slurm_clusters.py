"""SLURM, and this machine in its place, as `SlurmPool` needs them. submitit does the submitting."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from decentral.errors import ConfigError
from decentral.scheduling.job import Job
from decentral.scheduling.slurm_job import Submission

_COMMAND_TIMEOUT_S = 60.0
_CONTROLLER_ENDS_S = 30.0
_TASK = "submitit.core._submit"


class Resources(NamedTuple):
    """What a job gets on the cluster; see `launchers.slurm.Slurm` for each of them."""

    partition: str | None
    time_minutes: int
    requeues: int
    grace_s: int
    gpus: int
    cpus: int
    memory_gb: float | None
    setup: list[str]
    sbatch: list[str]


class Cluster(ABC):
    """Submits jobs; they are known by the cluster's numbers from then on, whoever submitted them."""

    name: str
    every_s: float  # how often to ask for the state of the jobs
    patience_s: float  # how long after a job is gone its report may still be on its way

    @abstractmethod
    def submit(self, job: Job) -> str:
        """The cluster's number of the job. RuntimeError if it is not taken, ConfigError if it cannot be had here."""

    @abstractmethod
    def alive(self, numbers: Iterable[str]) -> dict[str, bool] | None:
        """Those that wait (False) or run (True); None if the cluster does not say now."""

    @abstractmethod
    def ask_to_stop(self, numbers: list[str]) -> None:
        """Let those that run write a checkpoint and stop; those that wait need not start."""

    @abstractmethod
    def kill(self, numbers: list[str]) -> None:
        """Stop them now."""

    def verdict(self, number: str) -> str:
        """The cluster's word for how a job ended, for example OUT_OF_MEMORY; '' if it has none."""
        return ""

    def close(self) -> None:
        """Release what this process keeps for jobs that are over."""
        return None


class SlurmCluster(Cluster):
    """SLURM: sbatch through submitit, squeue to see what is alive (sacct is not there everywhere), scancel."""

    name = "slurm"
    every_s = 10.0
    patience_s = 15.0

    def __init__(self, resources: Resources, folder: Path) -> None:
        from submitit.slurm.slurm import SlurmExecutor

        self._resources = resources
        self._executor = SlurmExecutor(folder, max_num_timeout=resources.requeues)

    def submit(self, job: Job) -> str:
        """With sbatch; a job that takes times gets its nodes to itself."""
        s, cpus = self._resources, _cores(self._resources, job)
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
            additional_parameters={
                "requeue": True,
                **({"exclusive": True} if job.demand.alone else {}),
                **dict(map(_option, s.sbatch)),
            },
            **({"gpus_per_node": s.gpus} if s.gpus else {}),
            **({"mem": f"{round(1024 * s.memory_gb)}M"} if s.memory_gb else {}),
        )
        return self._executor.submit(Submission(job, cpus)).job_id

    def alive(self, numbers: Iterable[str]) -> dict[str, bool] | None:
        """With one squeue for all jobs of this user."""
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
        """With scancel."""
        _output(["scancel", *numbers])

    def verdict(self, number: str) -> str:
        """From sacct."""
        found = _output(["sacct", "--noheader", "--parsable2", "--allocations", "--format=State", "--jobs", number])
        return (found or "").split("\n")[0].split(" ")[0].strip()


class LocalCluster(Cluster):
    """submitit's controller processes on this machine; they outlive the one that started them, as SLURM jobs do."""

    name = "local"
    every_s = 0.2
    patience_s = 0.5

    def __init__(self, resources: Resources, folder: Path) -> None:
        from submitit.local.local import LocalExecutor, LocalJob

        self._executor = LocalExecutor(folder, max_num_timeout=resources.requeues)
        self._resources = resources
        self._submitted: dict[str, LocalJob[Any]] = {}

    def submit(self, job: Job) -> str:
        """Start a controller that does not hear the terminal's Ctrl-C."""
        if job.demand.alone:
            raise ConfigError(
                f"launcher.cluster=local runs jobs side by side, but {job.title} takes times and needs the machine to "
                "itself: use launcher=local, or launcher.cluster=slurm."
            )
        self._executor.update_parameters(
            timeout_min=self._resources.time_minutes,
            signal_delay_s=self._resources.grace_s,
            gpus_per_node=self._resources.gpus,
            setup=list(self._resources.setup),
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the controller
        try:
            submitted: Any = self._executor.submit(Submission(job, _cores(self._resources, job)))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._submitted[submitted.job_id] = submitted
        return submitted.job_id

    def alive(self, numbers: Iterable[str]) -> dict[str, bool] | None:
        """Those whose controller lives."""
        return {number: True for number in numbers if self._lives(number)}

    def _lives(self, number: str) -> bool:
        if number in self._submitted:
            return not self._submitted[number].done()
        return "submitit" in (_output(["ps", "-p", number, "-o", "command="]) or "")  # not a newer process

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


def _option(word: str) -> tuple[str, str | bool]:
    key, equals, value = word.lstrip("-").partition("=")
    return key, value if equals else True


def _cores(resources: Resources, job: Job) -> int:
    return max(resources.cpus, job.demand.processes or 1)


def _send(number: signal.Signals, pids: Iterable[str]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), number)


def _output(command: list[str]) -> str | None:
    """What a command prints; None if it is missing, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
