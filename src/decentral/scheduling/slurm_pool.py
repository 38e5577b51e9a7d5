"""Jobs on a SLURM cluster: submitted once, monitored through reports and squeue, and found again after a restart."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from decentral.errors import ConfigError
from decentral.scheduling.job import Ended, Job, NoRoom, Pool, Seen, ended_without_report, seen_in_directory
from decentral.scheduling.slurm_clusters import SlurmCluster, report_path
from decentral.store import Status
from decentral.store.failures import Failure, describe
from decentral.store.files import read_json, write_json

_LOOK_S = 0.2  # how often to look for reports
_STOPPING_EVERY_S = 1.0  # how often to ask for the state of jobs that were told to stop
_CAUSES = {
    "OUT_OF_MEMORY": "it ran out of memory: raise launcher.memory_gb",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node failed",
    "TIMEOUT": "it reached its time limit before it had written a checkpoint: raise launcher.grace_s",
    "PREEMPTED": "it was preempted, and SLURM does not requeue it",
}


def private_folder(folder: Path) -> None:
    """Create the folder for this user only: its pickles are executed when loaded.

    Raises ConfigError if it belongs to another user or cannot be made private.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            folder.chmod(0o700)  # it may be older than this rule
    facts = folder.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{folder} belongs to another user, or is writable by others, who could then run code as you: choose "
            "another results_dir."
        )


@dataclass
class _Active:
    job: Job
    number: str
    running: bool = False
    gone_since: float | None = None


class SlurmPool(Pool):
    """At most `max_jobs` jobs in the cluster's queue or running.

    `folder` (results_dir/submitted) has a file <job id>.json for each of them, with the cluster's number of it,
    submitit's logs, and the jobs' reports. A job that lives, according to its file, is not submitted a second time.
    Jobs outlive this process if it is killed; `close` and `interrupt` cancel them.
    """

    def __init__(self, cluster: SlurmCluster, folder: Path, max_jobs: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._max_jobs = max_jobs
        self._active: dict[str, _Active] = {}
        self._asked_at = float("-inf")
        self._kill_at: float | None = None
        self._looked_at = float("-inf")
        self._seen: list[Seen] = []

    def has_room(self, job: Job) -> bool:
        """Whether the cluster has fewer of our jobs than it may have."""
        return len(self._active) < self._max_jobs

    def started_before(self, job: Job) -> bool:
        """Whether an earlier launcher has submitted the job, and it is still there."""
        return self._submitted_before(job) is not None

    def start(self, job: Job) -> None:
        """Submit the job, unless an earlier start did so and it is still there."""
        number = self._submitted_before(job)
        if number is None:
            report_path(self._folder, job).unlink(missing_ok=True)  # of an earlier attempt
            number = self._submit(job)
            write_json(
                self._record(job),
                {
                    "job": job.id,
                    "title": job.title,
                    "directory": str(job.directory.absolute()),
                    "cluster": self._cluster.name,
                    "number": number,
                    "submitted": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            )
        self._active[job.id] = _Active(job, number)
        self._asked_at = float("-inf")

    def _submit(self, job: Job) -> str:
        """Its number. A cluster that takes no more jobs than it has of ours now gets no more from here on."""
        try:
            return self._cluster.submit(job)
        except Exception as error:
            if not self._active:
                raise
            self._max_jobs = len(self._active)
            raise NoRoom(
                f"the cluster accepted {self._max_jobs} jobs and rejected the next one ({describe(error)}): the "
                "remaining jobs wait"
            ) from error

    def wait(self, timeout_s: float) -> list[Ended]:
        """The jobs that reported, or disappeared without a report."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._cluster.kill(self._numbers())
                self._kill_at = float("inf")
            self._ask_cluster()
            ended = [found for active in list(self._active.values()) if (found := self._ended(active)) is not None]
            left = deadline - time.monotonic()
            if ended or not self._active or left <= 0:
                return ended
            time.sleep(min(_LOOK_S, left))

    def look(self) -> list[Seen]:
        """Return the progress from the run directories, or the queue state of waiting jobs, at the query interval."""
        self._ask_cluster()
        if self._looked_at != self._asked_at or len(self._seen) != len(self._active):
            self._looked_at, self._seen = self._asked_at, []
            for active in self._active.values():
                place = f"{self._cluster.name} {active.number}"
                self._seen.append(seen_in_directory(active.job, place if active.running else f"waiting for {place}"))
        return self._seen

    def interrupt(self, grace_s: float) -> None:
        """Cancel all: what runs gets SIGTERM and has `grace_s` to write a checkpoint, what waits does not start."""
        if self._active and self._kill_at is None:
            self._cluster.ask_to_stop(self._numbers())
            self._kill_at = time.monotonic() + grace_s

    def close(self) -> None:
        """Cancel what is left, at once."""
        if self._active:
            self._cluster.kill(self._numbers())
        for active in self._active.values():
            self._forget(active.job, active.number)
        self._active = {}
        self._cluster.close()

    def _record(self, job: Job) -> Path:
        return self._folder / f"{job.id}.json"

    def _forget(self, job: Job, number: str) -> None:
        """Remove what would be mistaken for news of a later job; the logs stay."""
        for path in (self._record(job), report_path(self._folder, job), self._folder / f"{number}_submitted.pkl"):
            path.unlink(missing_ok=True)

    def _numbers(self) -> list[str]:
        return [active.number for active in self._active.values()]

    def _submitted_before(self, job: Job) -> str | None:
        """The number of this job if the cluster has it (or does not say that it has not)."""
        facts = read_json(self._record(job)) or {}
        if facts.get("job") != job.id or facts.get("cluster") != self._cluster.name:
            return None
        number = str(facts["number"])
        alive = self._cluster.alive([number])
        if alive is None or number in alive:
            return number
        self._forget(job, number)
        return None

    def _ask_cluster(self) -> None:
        """Query which jobs are alive, at most at the query interval."""
        every_s = self._cluster.every_s if self._kill_at is None else min(self._cluster.every_s, _STOPPING_EVERY_S)
        now = time.monotonic()
        if not self._active or now - self._asked_at < every_s:
            return
        self._asked_at = now
        alive = self._cluster.alive(self._numbers())
        if alive is None:
            return
        for active in self._active.values():
            active.running = alive.get(active.number, False)
            active.gone_since = None if active.number in alive else active.gone_since or now

    def _ended(self, active: _Active) -> Ended | None:
        found = self._report(active)
        gone = active.gone_since is not None and time.monotonic() - active.gone_since >= self._cluster.patience_s
        if found is None and gone:
            found = self._post_mortem(active)
        if found is not None:
            del self._active[active.job.id]
            self._forget(active.job, active.number)
        return found

    def _report(self, active: _Active) -> Ended | None:
        """Return the job's report; None if there is none yet, or its directory does not confirm it."""
        report = (read_json(report_path(self._folder, active.job)) or {}).get("report")
        if report is None:
            return None
        ended = Ended(active.job, Status(report[0]), *report[1:])
        unconfirmed = ended.status in (Status.done, Status.diverged) and active.job.finished() is None
        return None if unconfirmed else ended

    def _post_mortem(self, active: _Active) -> Ended:
        """Return the outcome of a job that ended without a report."""
        stopped = self._kill_at is not None
        verdict = "" if stopped else self._cluster.verdict(active.number)
        if verdict.startswith("CANCELLED") and active.job.finished() is None:  # canceled on purpose: no second attempt
            reason = f"{self._cluster.name} job {active.number} was cancelled"
            return Ended(active.job, Status.failed, Failure.error, reason)
        cause = _CAUSES.get(
            verdict, "it was killed" if verdict in ("", "FAILED") else verdict.lower().replace("_", " ")
        )
        reason = f"{self._cluster.name} job {active.number} ended without a report: {cause} (see {self._log(active)})."
        return ended_without_report(active.job, reason, stopped)

    def _log(self, active: _Active) -> Path:
        return self._folder / f"{active.number}_0_log.err"
