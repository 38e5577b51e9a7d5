"""The scheduler of a study or a sweep: starts jobs and handles their outcomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.errors import ConfigError
from decentral.host.interrupt import Interrupt
from decentral.host.torchrun import check_launcher
from decentral.scheduling.attempt import is_taken
from decentral.scheduling.board import Board
from decentral.scheduling.job import Ended, Job, Pool
from decentral.store import Status
from decentral.store.failures import OUTSIDE, Failure, classify, describe

if TYPE_CHECKING:
    from decentral.scheduling.launchers.launcher import Launcher

_ALIKE = 3  # stop after this many refusals for one reason without any success
_POLL_S = 0.5
_GRACE_S = 30.0  # for all jobs to write a checkpoint


Pending = Callable[[], Sequence[Job]]
"""Returns the known unfinished jobs by priority; called again whenever one has ended."""


class Tally(NamedTuple):
    """The outcomes of the started jobs: the last attempt of each."""

    ended: list[Ended]
    interrupted: bool
    """True if the user stopped it."""

    @property
    def failed(self) -> list[Ended]:
        """The jobs that failed for good."""
        return [ended for ended in self.ended if ended.status is Status.failed]


def schedule(pending: Pending, launcher: Launcher, results_dir: Path, board: Board) -> Tally:
    """Run the jobs of the source, as many in parallel as the launcher has resources for.

    A job with an external failure is retried `launcher.retries` times; one out of memory, once more, and alone if jobs
    share devices. Jobs of other launchers are left to them, and finished jobs are not started. The first Ctrl-C or
    SIGTERM lets jobs write checkpoints, the second one kills them.

    Errors in a job are not raised. Errors of the source are raised after the running jobs have written checkpoints.
    """
    check_launcher(joins=False)
    work = _Work(pending, launcher.retries, board)
    if work.ask():
        try:
            with Interrupt() as interrupt, closing(launcher.open(results_dir)) as pool:
                work.carry_out(pool, interrupt)
        except KeyboardInterrupt:
            work.interrupted = True
        if work.broken is not None:
            raise work.broken
    return Tally(list(work.over.values()), work.interrupted)


class _Work:
    """The state of a schedule; every job is known by its id."""

    def __init__(self, pending: Pending, retries: int, board: Board) -> None:
        self.pending, self.retries, self.board = pending, retries, board
        self.wanted: list[Job] = []
        self.running: dict[str, Job] = {}
        self.over: dict[str, Ended] = {}
        self.interrupted = False
        self.stopping = False
        self.broken: Exception | None = None
        """The exception of the source."""
        self._stale = True  # whether the source may have new jobs
        self._failures: Counter[str] = Counter()
        self._alone: set[str] = set()  # jobs that ran out of memory next to others
        self._theirs: set[str] = set()  # jobs of other launchers

    def ask(self) -> list[Job]:
        """Return needed jobs that are neither running nor over, exclusive ones last. May raise: see `schedule`."""
        if self._stale:
            known = {job.id: job for job in self.pending()}
            left = [job for job in known.values() if job.id not in self.running and job.id not in self.over]
            self.wanted = sorted(left, key=lambda job: job.id in self._alone)
            self._stale = False
            self.board.expect(len(self.over) + len(self.running) + len(self.wanted))
        return self.wanted

    def carry_out(self, pool: Pool, interrupt: Interrupt) -> None:
        """Carry out jobs until nothing is left to do or to be stopped."""
        while True:
            if interrupt.requested and not self.interrupted:
                self.interrupted = True
                self._stop(pool, "stopping: runs are writing checkpoints (interrupt again to kill them)")
            if not self.stopping:
                try:
                    self.ask()
                except Exception as error:
                    self.broken = error
                    self._stop(pool, f"stopping: the remaining jobs cannot be determined: {describe(error)}")
                else:
                    self._fill(pool)
            self.board.show(pool.look(), self.wanted)
            if self.running:
                for ended in pool.wait(_POLL_S):
                    self._end(ended, pool)
            elif self.stopping or not (self.wanted or self._stale):
                return
            else:
                if self.wanted and all(job.id in self._theirs for job in self.wanted):
                    self.board.waits(len(self.wanted))
                time.sleep(_POLL_S)

    def _fill(self, pool: Pool) -> None:
        """Start jobs while there is room; a job that has none lets those after it on other devices pass."""
        full: set[str] = set()
        candidates = list(self.wanted)
        for place, job in enumerate(candidates):
            if self._alone & self.running.keys() or (job.id in self._alone and self.running) or self.stopping:
                return
            pool.expect(len(candidates) - place)
            try:
                self._consider(job, pool, full)
            except Exception as error:
                self.running.setdefault(job.id, job)
                self._end(Ended(job, Status.failed, classify(error), describe(error)), pool)

    def _consider(self, job: Job, pool: Pool, full: set[str]) -> None:
        """Start the job if possible now. Raises its errors, and ConfigError if it can never run."""
        device = job.demand.device
        if device in full:
            return
        if not pool.has_room(job):
            if not self.running:
                raise ConfigError("it does not fit, although no other run is active.")
            full.add(device)
            return
        self._theirs.discard(job.id)
        if job.finished() is not None:
            self._stale = True
        elif is_taken(job.directory) and not pool.started_before(job):
            self._theirs.add(job.id)
        else:
            self.wanted = [one for one in self.wanted if one.id != job.id]
            self.running[job.id] = job
            pool.start(job)
            self.board.started(job)

    def _end(self, ended: Ended, pool: Pool) -> None:
        job = ended.job
        del self.running[job.id]
        self._stale = True
        if ended.status is Status.running:  # another launcher was faster
            return
        if ended.status is Status.interrupted and not self.stopping:  # by an external signal
            ended = Ended(job, Status.failed, Failure.killed, "its process received a stop signal")
        again = not self.stopping and ended.status is Status.failed and self._try_again(ended, pool.shares_devices)
        if not again:
            self.over[job.id] = ended
        self.board.ended(ended, again)
        if ended.failure == Failure.disk_full and not self.stopping:
            self._stop(pool, "the disk is full: no further runs are started. Free some space; the same command resumes")
        kinds = {(one.failure, one.reason) for one in self.over.values()}
        alike = len(self.over) >= _ALIKE and len(kinds) == 1 and ended.failure == Failure.refused  # missing data, say
        if alike and not self.stopping:
            self._stop(
                pool, f"the first {_ALIKE} runs were refused for the same reason: the remaining ones are not started"
            )

    def _try_again(self, ended: Ended, shares_devices: bool) -> bool:
        job = ended.job
        if ended.failure == Failure.out_of_memory:
            again = shares_devices and job.id not in self._alone  # else it had all the memory
            self._alone.add(job.id)
            return again
        self._failures[job.id] += 1
        return ended.failure in OUTSIDE and self._failures[job.id] <= self.retries

    def _stop(self, pool: Pool, why: str) -> None:
        self.stopping = True
        self.board.say(why)
        pool.interrupt(_GRACE_S)
