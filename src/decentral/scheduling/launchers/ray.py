"""Ray."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.host import machine
from decentral.host.machine import require
from decentral.scheduling.attempt import attempt
from decentral.scheduling.job import Ended, Job, Pool, ended_without_report
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.queued_pool import QueuedPool
from decentral.settings import setting
from decentral.store import Status
from decentral.store.failures import Failure

_SHUTDOWN_S = 5.0


@dataclass
class Ray(Launcher):
    """Every run is a task of a Ray cluster, in its own process; results must be on a shared file system.

    Ray decides where and when a run starts. The runs end with this launcher: after a restart they resume from their
    last checkpoints. See docs/clusters.md.

    address    local: start Ray on this machine; auto: join this machine's cluster; or HOST:PORT, or ray://HOST:10001
    cpus       CPUs per run; at least one per process
    gpus       GPUs per run; 0.25 puts four runs on a GPU (null: one per process if the cluster has GPUs)
    max_jobs   maximum number of jobs submitted to Ray at the same time
    retries    maximum number of restarts of a killed run
    """

    name: str = "ray"
    address: str = "auto"
    cpus: int = setting(1, at_least=1)
    gpus: float | None = setting(None, at_least=0)
    max_jobs: int = setting(100, at_least=1)
    retries: int = setting(2, at_least=0)

    def check(self) -> None:
        """Raise ConfigError if Ray is not installed."""
        require("ray", "launcher=ray", "pip install '.[ray]'")

    def open(self, results_dir: Path) -> Pool:
        """Start Ray, or connect to it. Raises ConfigError if there is nothing at the address."""
        return RayPool(self)


class RayPool(QueuedPool):
    """A task of a Ray cluster for each job, at most `max_jobs` at a time; Ray itself retries nothing.

    An existing Ray in this process is reused and left running.
    """

    def __init__(self, settings: Ray) -> None:
        super().__init__(settings.max_jobs)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if settings.address == "local" and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
            # else Ray would make up a password, and write it to ~/.ray
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        import ray

        self._ray: Any = ray
        self._settings = settings
        self.shares_devices = 0 < (settings.gpus or 0) < 1
        self._kill_at: float | None = None
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, settings.address)
        self._task = ray.remote(max_retries=0, max_calls=1)(_work)

    def start(self, job: Job) -> None:
        """Submit the job to Ray. Raises ConfigError for a job that needs an exclusive machine: Ray has none."""
        demand = job.demand
        if demand.alone:
            raise ConfigError(
                f"launcher=ray runs jobs concurrently, but {job.title} measures times and needs an idle machine: use "
                "launcher=local or launcher=slurm."
            )
        there = self._ray.cluster_resources()
        cpus, gpus = max(self._settings.cpus, demand.processes or 1), self._settings.gpus
        if gpus is None:
            wanted = demand.device.startswith("cuda") or (demand.device == "auto" and there.get("GPU", 0) >= 1)
            gpus = (demand.processes or 1) if wanted else 0
        if self._settings.address == "local":  # it never grows: use less instead of waiting forever
            cpus, gpus = min(cpus, int(there.get("CPU", 1))), min(gpus, there.get("GPU", 0))
        task = self._task.options(num_cpus=cpus, num_gpus=gpus, name=job.title)
        self.add(task.remote(job, cpus, os.getcwd(), os.environ.get("OMP_NUM_THREADS")), job, "ray")

    def wait(self, timeout_s: float) -> list[Ended]:
        """Return the jobs that Ray reports as finished."""
        if not self._active:
            return []
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._cancel(force=True)
        self._ray.wait(list(self._active), num_returns=1, timeout=timeout_s)
        ready, _ = self._ray.wait(list(self._active), num_returns=len(self._active), timeout=0)
        return [self._ended(reference) for reference in ready]

    def interrupt(self, grace_s: float) -> None:
        """Give running jobs `grace_s` to write a checkpoint, and cancel waiting ones."""
        if self._kill_at is None:
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
        job, *_ = self._active.pop(reference)
        exceptions = self._ray.exceptions
        try:
            return Ended(job, *self._ray.get(reference))
        except exceptions.TaskCancelledError:
            return ended_without_report(job, "", stopped=True)
        except exceptions.RayTaskError as error:
            return Ended(job, Status.failed, Failure.error, str(error.cause))
        except exceptions.RayError as error:
            reason = f"its Ray worker died ({type(error).__name__}: {str(error).strip().splitlines()[0].rstrip('.')})."
            return ended_without_report(job, reason, stopped=self._kill_at is not None)


def _work(job: Job, cores: int, folder: str, threads: str | None) -> tuple[Any, ...]:
    """Run the job in a Ray worker, with the user's working directory, and return its outcome."""
    if Path(folder).is_dir():
        os.chdir(folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray has set it, for one process
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = threads
    machine.share_cores(cores)
    return attempt(job)[1:]


def _connect(ray: Any, address: str) -> None:
    """Join a cluster, or start one here, without a dashboard. `ray.init` replaces the handler of SIGTERM: it is put
    back."""
    here = {"num_cpus": machine.num_cores(), "include_dashboard": False} if address == "local" else {}
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        text = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"launcher.address={address} cannot be reached ({text}): start a cluster with `ray start --head`, or "
            "use launcher.address=local."
        ) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
