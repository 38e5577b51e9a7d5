"""The interfaces of jobs and of pools that run them, such as a machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from decentral.registry import plugins
from decentral.store import RunStore, Status
from decentral.store.failures import Failure


def _unpickled(passport: str, module: str, name: str) -> Any:
    """Create a job without its fields, after registering user components, which the fields may contain."""
    plugins.enter(passport)
    cls = getattr(import_module(module), name)
    return cls.__new__(cls)


class Demand(NamedTuple):
    """The resources of a running job."""

    processes: int | None = 1
    """Processes with a core (or a GPU) each; None leaves the choice to the launcher."""

    device: str = "cpu"
    """'cpu', 'cuda', a certain GPU ('cuda:1'), or 'auto': a GPU where there are some."""

    alone: bool = False
    """True if nothing else may run on the machine meanwhile, for timing."""


class Job(ABC):
    """A job: a picklable dataclass. Its process may be killed at any time: the next attempt resumes it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not plugins.passport():
            return super().__reduce_ex__(protocol)
        return _unpickled, (plugins.passport(), type(self).__module__, type(self).__name__), self.__dict__

    command: str = ""
    """The user's command for just this job, if there is one."""

    @property
    @abstractmethod
    def id(self) -> str:
        """12 hexadecimal digits: what is computed, whatever the device and the paths."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Return the run directory (see `decentral.store`), whose status.json has the progress."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A few words for a line of a table."""

    @property
    def demand(self) -> Demand:
        """Return the resources of the job."""
        return Demand()

    @property
    def modules(self) -> tuple[str, ...]:
        """Return modules that are slow to import, which the starting process preloads."""
        return ("decentral.runtime.worker",)

    def placed(self, processes: int) -> Job:
        """The same job with the number of processes that the launcher has chosen for it, if `demand` left it open."""
        return self

    @abstractmethod
    def carry_out(self) -> Status:
        """Do the work, or what is left of it, in this process, and record it in the directory."""

    def finished(self) -> Status | None:
        """done or diverged, if that is how this very job has ended before. Reads a small file."""
        return RunStore.finished(self.directory, self.id)


class Ended(NamedTuple):
    """A job that is not running any more."""

    job: Job
    status: Status
    """`running` if another process runs it: it was left alone."""
    failure: str | None = None
    """Why it failed, one of `failures.Failure`; None if it did not fail."""

    reason: str = ""
    """One sentence for the user."""


class Seen(NamedTuple):
    """The progress of a running job."""

    job: Job
    place: str
    """The place of the job, such as 'cpu', '2 cores', 'cuda:0', 'slurm job 4711', or 'waiting for slurm job 4711'."""

    fraction: float | None = None
    """Share of the steps that are done, from 0 to 1; None if unknown."""

    text: str = ""
    """The progress, such as 'epoch 12.0  worst 81.2 %'."""


class Pool(ABC):
    """Used by one thread: the scheduler's."""

    shares_devices: bool = False
    """True if jobs share the memory of a device, so that one that ran out of it may have enough alone."""

    def expect(self, jobs: int) -> None:
        """Set the number of jobs waiting to start, including the next one: a pool may divide its cores between them."""

    @abstractmethod
    def has_room(self, job: Job) -> bool:
        """Return whether `start` can take this job now; one that needs more cores than there are fits an empty pool.

        Raises ConfigError for a job that would never fit.
        """

    def started_before(self, job: Job) -> bool:
        """Return whether an earlier launcher has left the job running, so that `start` would only watch it."""
        return False

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start the job in its own process group."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[Ended]:
        """Return the jobs that ended since the last call; wait for one, at most `timeout_s`."""

    @abstractmethod
    def look(self) -> list[Seen]:
        """Return the jobs that run, or wait in a cluster's queue."""

    @abstractmethod
    def interrupt(self, grace_s: float) -> None:
        """Ask all jobs to write a checkpoint and stop; after `grace_s` kill what is left. `wait` then reports them."""

    @abstractmethod
    def close(self) -> None:
        """Kill what is left and release everything."""


def ended_without_report(job: Job, reason: str, stopped: bool = False) -> Ended:
    """Return the outcome of a job whose process is gone without a report; `stopped` if it was asked to stop."""
    finished = job.finished()
    if finished is not None:
        return Ended(job, finished)
    if stopped:
        return Ended(job, Status.interrupted)
    return Ended(job, Status.failed, Failure.killed, reason)


def seen_in_directory(job: Job, place: str) -> Seen:
    """Return the progress of a job from its status, in any directory that can be read.

    A job may report it there (`fraction`, `text`); else it follows from a run's steps and epochs at its last
    checkpoint.
    """
    facts = RunStore.peek(job.directory) or {}
    if "fraction" in facts:
        return Seen(job, place, min(1.0, facts["fraction"]), str(facts.get("text", "")))
    step, epoch = (facts.get(key) or 0 for key in ("step", "epoch"))
    config: Any = getattr(job, "config", None)
    fraction = config and min(1.0, step / config.steps if config.steps else epoch / config.epochs)
    return Seen(job, place, fraction, f"epoch {epoch:.1f}" if epoch else "")
