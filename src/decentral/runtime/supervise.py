"""The processes of one run on this machine: started from one warm server, watched, started again when one dies from
outside, and never left behind.

Importing torch takes seconds and hundreds of megabytes in every process that is started afresh. Here one server process
imports it, once, and the workers are forked from that (forkserver), while this process stays free of torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.config.prepared import Prepared
from decentral.errors import ConfigError
from decentral.host.interrupt import as_keyboard_interrupt
from decentral.host.processes import NO_STATUS, signal_of, start_server
from decentral.registry import plugins
from decentral.store import RunStore, Status
from decentral.store.checkpoints import newest_step
from decentral.store.failures import RESTARTED, Failure, RunFailed, record

if TYPE_CHECKING:
    from decentral.network.world import World

    Part = Callable[[Prepared, World], Status]
    """The work of every process of a group, together with the others: the run, unless a job has another part. It can
    be pickled."""


class Place(NamedTuple):
    """Process `rank` of `size`, in the run's attempt number `attempt`, counted from 0."""

    rank: int
    size: int
    attempt: int


def worker_main(
    run: tuple[str, bytes, dict[str, Any]],
    place: Place,
    pipe: Connection,
    environment: dict[str, str],
    part: Part | None = None,
) -> None:
    """Begin as a fork of the fork server: take over this environment and no other, then join the group and do the part.

    `run` is `Prepared.packed`. What happens is reported through the pipe; see `worker.work`, which does the rest and
    whose imports are heavy.
    """
    for name in set(os.environ) - set(environment):  # what the fork server, which may be older, was started with
        del os.environ[name]
    os.environ.update(environment)
    plugins.mount()
    from decentral.runtime.worker import work

    work(run, place, pipe, part)


_SAID = (Status.done, Status.diverged, Status.interrupted)
_PATIENCE_S = 1.0  # for what the other processes have to say, and for the exit status of a dead one
_GRACE_S = 3.0  # for a process that has been told to end
_LOOK_UP_S = 1.0  # a signal that comes right before a wait begins is heard when it ends
CHECKPOINT_GRACE_S = 30.0
"""The same after Ctrl-C: the processes write a checkpoint when they next vote."""

_ANSWER_S = 300.0  # the server imports torch before it answers, perhaps from a slow disk
_SERVERS = 3  # how often a process is tried to be started
_LONGEST_FOLDER = 60  # characters; the path of a socket has at most 107, and the system's limit may be lower


class Worker(NamedTuple):
    """A process of a run, as the launching process sees it."""

    rank: int
    process: ForkServerProcess
    pipe: Connection

    def __str__(self) -> str:
        return f"{self.process.name} (pid {self.process.pid})"

    def receive(self) -> tuple[Any, ...] | None:
        """The next report; None if the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None


def prepare_server(*modules: str) -> None:
    """Let the fork server of this process import torch, and what a run or these `modules` need, when it starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["decentral.runtime.fork_server", *(modules or ["decentral.runtime.worker"])])
    if len(tempfile.gettempdir()) > _LONGEST_FOLDER and os.access("/tmp", os.W_OK):
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            util.get_temp_dir()  # from now on the one in which multiprocessing keeps its sockets
        finally:
            tempfile.tempdir = before


def supervise(run: Prepared, processes: int, part: Part | None = None) -> Status:
    """Run (or do `part`) in `processes` new processes; returns how the run ended.

    When one of them is killed, hangs, or loses its connection, all are started again from the newest checkpoint, at
    most `config.restarts` times.

    Raises RunFailed when the run broke off (no process is left, the status says why), ConfigError when a process
    refused the configuration, KeyboardInterrupt after Ctrl-C or SIGTERM before there was anything to record, or after
    the second one.
    """
    workers: list[Worker] = []
    restarts = run.config.restarts
    with as_keyboard_interrupt():
        try:
            for attempt in range(restarts + 1):
                try:
                    _start_all(workers, run, part, Place(0, processes, attempt))
                    return _watch(workers)
                except RunFailed as error:
                    _kill(workers)
                    ended = (RunStore.peek(run.directory) or {}).get("status")
                    if ended in (Status.done, Status.diverged):  # it was on its way out
                        return Status(ended)
                    if error.failure not in RESTARTED or attempt == restarts:
                        raise
                    _announce(run, error, attempt)
            raise AssertionError("the last attempt either returns or raises")
        except KeyboardInterrupt as error:
            return _interrupt(workers, run, error)
        except BaseException as error:
            _kill(workers)
            if not isinstance(error, ConfigError) or RunStore.peek(run.directory) is not None:
                _record(run, error)
            raise
        finally:
            _kill(workers)


def start(process: BaseProcess) -> None:
    """Start a process from the fork server; if the server has just been killed, or does not answer, from a new one."""
    for _ in range(_SERVERS):
        try:
            with _answering(_ANSWER_S):
                start_server()
                process.start()
            return
        except (EOFError, ConnectionError):
            continue
    raise RunFailed("the fork server was repeatedly killed, or did not answer.", Failure.killed)


@contextmanager
def _answering(patience_s: float) -> Iterator[None]:
    """Kill the fork server if this takes longer: it may have been stopped, and then would never answer."""

    def kill() -> None:
        pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(patience_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _start_all(workers: list[Worker], run: Prepared, part: Part | None, first: Place) -> None:
    """Start the processes of an attempt; each is in `workers` from the moment it exists."""
    context = multiprocessing.get_context("forkserver")
    for rank in range(first.size):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker_main,
            args=(run.packed(), first._replace(rank=rank), theirs, dict(os.environ), part),
            name=f"process {rank} of {first.size}",
            daemon=False,  # it may have loader processes of its own; it dies with this one all the same
        )
        try:
            start(process)
        finally:
            if (
                process.pid is not None
            ):  # else its start was interrupted, and it ends when its parent is not to be found
                workers.append(Worker(rank, process, ours))
        theirs.close()


def _watch(workers: list[Worker]) -> Status:
    """Pass the address of the leader's store on, then wait until all are done or one is not well."""
    open_pipes: dict[Any, Worker] = {worker.pipe: worker for worker in workers}
    statuses: dict[int, Status] = {}
    while open_pipes:
        for pipe in wait(list(open_pipes), _LOOK_UP_S):
            worker = open_pipes[pipe]
            said = worker.receive()
            if said is None and worker.rank in statuses:
                del open_pipes[pipe]
            elif said is not None and said[0] == "port":
                for other in workers[1:]:
                    with contextlib.suppress(OSError):  # it is dead, as its pipe will say
                        other.pipe.send(said[1])
            elif said is not None and said[0] == "status":
                statuses[worker.rank] = Status(said[1])
            else:
                raise _reason([one for one in workers if one.rank not in statuses], worker, said)
    for worker in workers:
        worker.process.join(_GRACE_S)
    return statuses[0]


def _announce(run: Prepared, error: RunFailed, attempt: int) -> None:
    """Say what happened and what follows, to the user and in the status."""
    step = 0
    with (
        contextlib.suppress(ConfigError, OSError),  # the next attempt will say it
        RunStore.open(run.directory, run.id, run.text) as store,
    ):
        step = newest_step(store.checkpoints)
        store.set_status(Status.running, restarts=store.restarts + 1, reason=str(error))
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            print("\033[?25h", flush=True)  # the cursor, which a killed progress bar has hidden
        print(
            f"decentral-run: {error}; restarting from step {step}, attempt {attempt + 2} of {run.config.restarts + 1}.",
            file=sys.stderr,
            flush=True,
        )


def _interrupt(workers: list[Worker], run: Prepared, error: KeyboardInterrupt) -> Status:
    """Let the processes write a checkpoint and end. Raises KeyboardInterrupt when interrupted again: then all are
    killed; RunFailed if one of them failed meanwhile, as on a full disk."""
    ours = {worker.process.pid for worker in workers}
    try:
        _ask_to_stop(workers)
    finally:
        _kill(workers)
        facts = RunStore.peek(run.directory)
        failed = facts is not None and facts.get("status") == Status.failed and facts.get("pid") in ours
        if facts is not None and facts.get("failure") in RESTARTED:  # it follows from the end of the others
            failed = False
        if facts is not None and not failed and facts.get("status") not in _SAID:
            _record(run, error)  # the leader could not say it
    if facts is not None and failed:
        raise RunFailed(str(facts.get("reason")), Failure(facts["failure"])) from None
    if facts is None:
        raise error
    return Status(facts["status"]) if facts["status"] in (Status.done, Status.diverged) else Status.interrupted


def _ask_to_stop(workers: list[Worker]) -> None:
    deadline = time.monotonic() + CHECKPOINT_GRACE_S
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        while worker.process.is_alive() and time.monotonic() < deadline:
            worker.process.join(_LOOK_UP_S)


def _kill(workers: list[Worker]) -> None:
    """Send SIGKILL to all, which ends stopped ones, too; return when they are gone."""
    for worker in workers:
        worker.process.kill()
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(EOFError, OSError):  # the end of its pipe is the end of the process
            while worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                worker.pipe.recv()
        worker.pipe.close()
    workers.clear()


def _record(run: Prepared, error: BaseException) -> None:
    """Set the status of a run whose leader cannot do it any more."""
    with (
        contextlib.suppress(ConfigError, OSError),  # the directory is not ours, or gone: there is nothing to record
        RunStore.open(run.directory, run.id, run.text) as store,
    ):
        refused = isinstance(error, ConfigError)
        if refused and (store.take_back() or RunStore.finished(run.directory, run.id) is not None):
            return  # it is finished, as it was before rerun=true
        record(store, error)


# -- who was the cause: where one process fails, all others lose their connection --------------------------------------


def _reason(workers: Sequence[Worker], first: Worker, said: tuple[Any, ...] | None) -> Exception:
    """Return the cause of the failure as an exception to raise: RunFailed or ConfigError.

    `workers` are those that had not finished, and `first` is the one that `said` first that something is wrong (None:
    it died); the others get a moment to say more.
    """
    causes = [_cause(first, said)]
    silent = {worker.pipe: worker for worker in workers if worker is not first}
    deadline = time.monotonic() + _PATIENCE_S
    while silent and all(map(_weight, causes)):
        ready = wait(list(silent), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            worker = silent[pipe]  # type: ignore[index]
            said = worker.receive()
            if said is None or said[0] != "port":
                del silent[worker.pipe]
            if said is None or said[0] in ("refused", "failed"):
                causes.append(_cause(worker, said))
    cause = min(causes, key=_weight)
    if silent and isinstance(cause, RunFailed) and cause.failure is Failure.lost:
        names = ", ".join(str(worker) for worker in silent.values())
        return RunFailed(f"{names} stopped responding: {cause}", Failure.lost)
    return cause


def _weight(cause: Exception) -> int:
    """Rank a cause: the smaller, the more likely it is what happened first; 0 is certain."""
    if isinstance(cause, ConfigError):
        return 0
    assert isinstance(cause, RunFailed)
    return {Failure.killed: 0, Failure.lost: 2}.get(cause.failure, 1)


def _cause(worker: Worker, said: tuple[Any, ...] | None) -> Exception:
    if said is None:
        worker.process.join(_PATIENCE_S)
        code = worker.process.exitcode
        if killer := signal_of(code):
            return RunFailed(f"{worker} was killed by {killer}", Failure.killed)
        if code == NO_STATUS:
            return RunFailed(f"{worker} died with its parent process", Failure.killed)
        return RunFailed(f"{worker} ended with status {code}", Failure.error)
    if said[0] == "refused":
        return said[1]
    return RunFailed(f"{worker} failed: {said[2]}", Failure(said[1]))
