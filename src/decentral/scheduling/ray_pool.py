"""Jobs as tasks of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.host import devices
from decentral.scheduling.attempt import Report, attempt
from decentral.scheduling.job import Job
from decentral.scheduling.pool import Ended, Pool, Seen, ended_without_report, seen_in_directory
from decentral.store import RunStore, Status
from decentral.store.failures import Failure

_SHUTDOWN_S = 5.0
_LOOK_S = 1.0  # how often to read the run directories


@dataclass
class _Active:
    job: Job
    before: dict[str, Any] | None  # status.json when Ray got the job


class RayPool(Pool):
    """A task of a Ray cluster at `address` for each job, at most `max_jobs` at a time; Ray itself retries nothing.

    Each has `cpus` cores and `gpus` GPUs (None: one for each process if the cluster has GPUs and the job may use them).

    A Ray that runs in this process already is used, and left running.
    """

    def __init__(self, address: str, cpus: int, gpus: float | None, max_jobs: int) -> None:
        _prepare(address)
        import ray

        self._ray: Any = ray
        self._address, self._cpus, self._gpus, self._max_jobs = address, cpus, gpus, max_jobs
        self.shares_devices = 0 < (gpus or 0) < 1
        self._active: dict[Any, _Active] = {}  # by Ray's reference to the report
        self._kill_at: float | None = None
        self._seen: tuple[Any, list[Seen]] = (None, [])
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address)
        self._task = ray.remote(max_retries=0, max_calls=1)(_work)

    def has_room(self, job: Job) -> bool:
        """Whether Ray has fewer of our jobs than it may have; it queues what has to wait."""
        return len(self._active) < self._max_jobs

    def start(self, job: Job) -> None:
        """Give the job to Ray. Raises ConfigError for one that needs a machine to itself, which Ray does not give."""
        demand = job.demand
        if demand.alone:
            raise ConfigError(
                f"launcher=ray runs jobs side by side, but {job.title} takes times and needs a machine to itself: use "
                "launcher=local or launcher=slurm."
            )
        there = self._ray.cluster_resources()
        cpus = max(self._cpus, demand.processes or 1)
        gpus = self._gpus
        if gpus is None:
            wanted = demand.device.startswith("cuda") or (demand.device == "auto" and there.get("GPU", 0) >= 1)
            gpus = (demand.processes or 1) if wanted else 0
        if self._address == "local":  # which never grows: better less than waiting for ever
            cpus, gpus = min(cpus, int(there.get("CPU", 1))), min(gpus, there.get("GPU", 0))
        task = self._task.options(num_cpus=cpus, num_gpus=gpus, name=job.title)
        reference = task.remote(job, cpus, os.getcwd(), os.environ.get("OMP_NUM_THREADS"))
        self._active[reference] = _Active(job, RunStore.peek(job.directory))

    def wait(self, timeout_s: float) -> list[Ended]:
        """What Ray says is over."""
        deadline = time.monotonic() + timeout_s
        while self._active:
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                self._cancel(force=True)
                self._kill_at = float("inf")
            until = min(deadline, self._kill_at or deadline)
            ready, _ = self._ray.wait(
                list(self._active), num_returns=len(self._active), timeout=min(0.1, max(0.0, until - now))
            )
            if ready or now >= deadline:
                return [self._ended(reference) for reference in ready]
        return []

    def look(self) -> list[Seen]:
        """From the run directories, which have to be on a shared file system."""
        when = (time.monotonic() // _LOOK_S, len(self._active))
        if self._seen[0] != when:
            self._seen = when, [seen_in_directory(active.job, _place(active)) for active in self._active.values()]
        return self._seen[1]

    def interrupt(self, grace_s: float) -> None:
        """What runs has `grace_s` to write a checkpoint, what waits does not start."""
        if self._active and self._kill_at is None:
            self._cancel(force=False)
            self._kill_at = time.monotonic() + grace_s

    def close(self) -> None:
        """Kill what is left, and stop Ray (or leave the cluster)."""
        if self._active:
            self._cancel(force=True)
            self._ray.wait(list(self._active), num_returns=len(self._active), timeout=_SHUTDOWN_S)
        self._active = {}
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def _cancel(self, force: bool) -> None:
        for reference in self._active:
            self._ray.cancel(reference, force=force)

    def _ended(self, reference: Any) -> Ended:
        job = self._active.pop(reference).job
        stopped = self._kill_at is not None
        exceptions = self._ray.exceptions
        try:
            report: Report = self._ray.get(reference)
            return report.of(job)
        except exceptions.TaskCancelledError:
            return ended_without_report(job, "", stopped=True)
        except exceptions.RayTaskError as error:
            return Ended(job, Status.failed, Failure.error, str(error.cause))
        except exceptions.RayError as error:
            reason = f"its Ray worker died ({type(error).__name__}: {str(error).strip().splitlines()[0].rstrip('.')})."
            return ended_without_report(job, reason, stopped)


def _work(job: Job, cores: int, folder: str, threads: str | None) -> Report:
    """Carry the job out in a Ray worker, where relative paths mean what they meant to the user."""
    if Path(folder).is_dir():
        os.chdir(folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray has set it, for one process
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = threads

    devices.share_cores(cores)
    return attempt(job)


def _prepare(address: str) -> None:
    """What Ray reads when it is imported: no telemetry; a password for a Ray of our own, which it would otherwise make
    up and write to ~/.ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local" and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start one here, without a dashboard."""
    here: dict[str, Any] = {}
    if address == "local":
        here = {"num_cpus": devices.num_cores(), "include_dashboard": False}
    with _sigterm_kept():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
        except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
            text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise ConfigError(
                f"launcher.address={address} cannot be reached ({text}): start a cluster with `ray start --head`, or "
                "use launcher.address=local."
            ) from error


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """`ray.init` replaces the handler of SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, before)


def _place(active: _Active) -> str:
    facts = RunStore.peek(active.job.directory)
    if facts is None or facts == active.before:
        return "waiting for ray"
    return f"ray on {facts.get('host')}"
