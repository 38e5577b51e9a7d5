"""Where jobs run: the contract between the scheduler and a machine, a cluster, or a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from decentral.launch.job import Job
from decentral.store import Status


class Ended(NamedTuple):
    """A job that is not running any more."""

    job: Job
    status: Status
    """`running` if somebody else is carrying it out: it was left alone."""
    failure: str | None = None
    """Why it failed, one of `failures.Failure`; None if it did not fail."""

    reason: str = ""
    """One sentence for the user."""


class Seen(NamedTuple):
    """How far a running job is."""

    job: Job
    place: str
    """For example 'cpu 0-1', 'cuda:0', 'slurm 4711', or 'waiting for slurm 4711'."""

    fraction: float | None = None
    """Of its steps that are done, from 0 to 1."""

    text: str = ""
    """For example 'epoch 12.0  worst 81.2 %'."""


class Pool(ABC):
    """Used by one thread: the scheduler's. A context manager: leaving it stops whatever still runs, at once."""

    shares_devices: bool = False
    """Whether jobs share the memory of a device, so that one that ran out of it may have enough of it alone."""

    def expect(self, jobs: int) -> None:
        """How many jobs wait to be started, the next one included: a pool may share its cores out between them."""
        return None

    @abstractmethod
    def has_room(self, job: Job) -> bool:
        """Whether `start` can take this job now; one that needs more cores than there are fits an empty pool.

        Raises ConfigError for a job that would never fit.
        """

    def started_before(self, job: Job) -> bool:
        """Whether the job runs already, left by an earlier launcher, and `start` would only watch it from now on."""
        return False

    @abstractmethod
    def start(self, job: Job) -> None:
        """Begin to carry the job out, in a process group of its own."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[Ended]:
        """The jobs that ended since the last call; waits for one, but no longer than `timeout_s`."""

    @abstractmethod
    def look(self) -> list[Seen]:
        """The jobs that run (or wait in a cluster's queue)."""

    @abstractmethod
    def interrupt(self, grace_s: float) -> None:
        """Ask all jobs to write a checkpoint and stop; after `grace_s` kill what is left. `wait` then reports them."""

    @abstractmethod
    def close(self) -> None:
        """Kill what is left and release everything."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
