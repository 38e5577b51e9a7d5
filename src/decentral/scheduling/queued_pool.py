"""The common part of pools that hand their jobs to a cluster, which decides where and when they run."""

from __future__ import annotations

import time
from typing import Any

from decentral.scheduling.job import Job, Pool, Seen, seen_in_directory
from decentral.store import RunStore

_LOOK_S = 1.0  # how often to read the run directories


class QueuedPool(Pool):
    """A pool of at most `max_jobs` jobs in a cluster's queue or running.

    Run directories, on a shared file system, have their progress."""

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._active: dict[Any, tuple[Job, str, dict[str, Any] | None]] = {}
        """The cluster's handle -> the job, its name for the display, and its status.json when it was submitted."""
        self._looked_at = float("-inf")
        self._seen: list[Seen] = []

    def has_room(self, job: Job) -> bool:
        """Return whether the cluster has fewer of our jobs than it may have."""
        return len(self._active) < self._max_jobs

    def add(self, handle: Any, job: Job, place: str) -> None:
        """Take note of a submitted job."""
        self._active[handle] = job, place, RunStore.peek(job.directory)
        self._looked_at = float("-inf")

    def look(self) -> list[Seen]:
        """Return the progress from the run directories; a job whose status has not changed yet waits."""
        if time.monotonic() - self._looked_at >= _LOOK_S or len(self._seen) != len(self._active):
            self._looked_at, self._seen = time.monotonic(), []
            for job, place, before in self._active.values():
                waits = RunStore.peek(job.directory) == before
                self._seen.append(seen_in_directory(job, f"waiting for {place}" if waits else place))
        return self._seen
