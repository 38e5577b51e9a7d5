"""The processes of one run on this machine: started from one warm server, watched, and never left behind.

Importing torch takes seconds and hundreds of megabytes in every process that is started afresh. Here one server process
imports it, once, and the workers are forked from that (forkserver), while this process stays free of torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from decentral.config import Config, dump, run_id
from decentral.errors import ConfigError
from decentral.store import RunStore, Status

_GRACE_S = 3.0  # between SIGTERM and SIGKILL
_CHECKPOINT_GRACE_S = 30.0  # the same after Ctrl-C: the processes write a checkpoint when they next ask each other


class WorkerDied(RuntimeError):
    """A process of the run died; the message says which and how."""


class _Worker(NamedTuple):
    rank: int
    process: ForkServerProcess
    pipe: Connection


def prepare_server() -> None:
    """Let the fork server of this process import torch, and what a run needs, when it starts."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["decentral.launch.worker"])


def supervise(config: Config, directory: Path, processes: int) -> Status:
    """Run in `processes` new processes; returns how the run ended.

    Raises WorkerDied when a process died or failed (the others are stopped, the status says so), ConfigError when one
    refused the configuration, KeyboardInterrupt after Ctrl-C or SIGTERM
    before there was anything to record.
    """
    context = multiprocessing.get_context("forkserver")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    restore = signal.signal(signal.SIGTERM, _as_keyboard_interrupt)
    workers: list[_Worker] = []
    try:
        ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for this process to act on
        try:
            for rank in range(processes):
                workers.append(_start(context, config, directory, rank, processes))
        finally:
            signal.signal(signal.SIGINT, ctrl_c)
        return _watch(workers)
    except KeyboardInterrupt as error:
        _stop(workers, _CHECKPOINT_GRACE_S)
        facts = RunStore.peek(directory)
        if facts is None:
            raise
        if facts.get("status") == Status.running:  # the leader could not say it
            _record(config, directory, error)
        return Status.interrupted
    except BaseException as error:
        _stop(workers, _GRACE_S)
        if not isinstance(error, ConfigError) or RunStore.peek(directory) is not None:
            _record(config, directory, error)
        raise
    finally:
        _stop(workers, _GRACE_S)
        signal.signal(signal.SIGTERM, restore)


def _as_keyboard_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _start(context: ForkServerContext, config: Config, directory: Path, rank: int, size: int) -> _Worker:
    from decentral.launch.entry import worker_main

    ours, theirs = context.Pipe()
    process = context.Process(
        target=worker_main,
        args=(dump(config), str(directory), rank, size, theirs, dict(os.environ)),
        name=f"process {rank} of {size}",
        daemon=False,  # it may have loader processes of its own; it dies with this one all the same
    )
    process.start()
    theirs.close()
    return _Worker(rank, process, ours)


def _watch(workers: list[_Worker]) -> Status:
    """Pass the address of the leader's store on, then wait until all are done or one is not well."""
    open_pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in workers}
    statuses: dict[int, Status] = {}
    while open_pipes:
        for pipe in wait(list(open_pipes)):
            worker = open_pipes[pipe]
            try:
                kind, content = worker.pipe.recv()
            except (EOFError, OSError):
                del open_pipes[pipe]
                if worker.rank not in statuses:
                    _raise_death(worker)
                continue
            if kind == "port":
                for other in workers[1:]:
                    other.pipe.send(content)
            elif kind == "status":
                statuses[worker.rank] = Status(content)
            elif kind == "refused":
                raise ConfigError(content)
            else:
                _raise_if_killed(workers)
                raise _root_cause(worker, content, open_pipes)
    for worker in workers:
        worker.process.join(_GRACE_S)
    return statuses[0]


def _root_cause(first: _Worker, content: str, open_pipes: dict[Any, _Worker]) -> WorkerDied:
    """The failure to report: where one process fails, the others lose their connection, and may say so before it
    does."""
    reports = [(first, content)]
    deadline = time.monotonic() + 1.0
    while (left := deadline - time.monotonic()) > 0 and (ready := wait(list(open_pipes), left)):
        for pipe in ready:
            worker = open_pipes.pop(pipe)
            try:
                kind, said = worker.pipe.recv()
            except (EOFError, OSError):
                continue
            if kind == "failed":
                reports.append((worker, said))
            elif kind == "refused":
                raise ConfigError(said)
    victims = ("Connection", "connection", "gloo", "NCCL", "Timed out")
    reports.sort(key=lambda report: any(word in report[1] for word in victims))
    worker, said = reports[0]
    return WorkerDied(f"{worker.process.name} failed: {said}")


def _raise_if_killed(workers: list[_Worker]) -> None:
    """Name a process that was killed, if there is one: the others then fail for want of it, and may say so first."""
    deadline = time.monotonic() + 1.0
    while (left := deadline - time.monotonic()) > 0:
        for worker in workers:
            if (worker.process.exitcode or 0) < 0:
                _raise_death(worker)
        alive = [worker.process.sentinel for worker in workers if worker.process.exitcode is None]
        if not alive or not wait(alive, left):
            return


def _raise_death(worker: _Worker) -> None:
    worker.process.join(_GRACE_S)
    code = worker.process.exitcode
    how = (
        f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with status {code}"
    )
    raise WorkerDied(f"{worker.process.name} (pid {worker.process.pid}) {how}.")


def _stop(workers: list[_Worker], grace_s: float) -> None:
    """SIGTERM, then SIGKILL for whoever is still there after a while, or at once if interrupted again."""
    alive = [worker.process for worker in workers if worker.process.is_alive()]
    for process in alive:
        process.terminate()
    deadline = time.monotonic() + grace_s
    try:
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in alive:
            if process.is_alive():
                process.kill()
                process.join()


def _record(config: Config, directory: Path, error: BaseException) -> None:
    """Set the status of a run whose leader cannot do it any more."""
    status = Status.interrupted if isinstance(error, KeyboardInterrupt) else Status.failed
    with (
        contextlib.suppress(ConfigError, OSError),  # the directory is not ours, or gone: there is nothing to record
        RunStore.open(directory, run_id(config), dump(config)) as store,
    ):
        store.set_status(status, reason=str(error) or "interrupted")
