"""Other processes: none outlives the one that started it, how they ended, and the same work by several of them."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import connection, current_process, forkserver, get_context, resource_tracker
from types import ModuleType
from typing import Any, TypeVar

from decentral.errors import ConfigError
from decentral.host.interrupt import HEARD

NO_STATUS = 255
"""Exit status of a process whose fork server is gone, so that its own status is unknown."""


def signal_of(code: int | None) -> str | None:
    """The name of the signal that killed the process; None if none did."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"


@contextmanager
def no_silent_end(error: Exception) -> Iterator[None]:
    """Inside, os._exit(0) of the thread that is in here raises `error`: the command would end as if all were done.

    Other statuses, other threads and processes that are forked in here end as they ask to.
    """
    before, pid, thread = os._exit, os.getpid(), threading.get_ident()

    def leave(status: int) -> None:
        if status == 0 and (os.getpid(), threading.get_ident()) == (pid, thread):
            raise error
        before(status)

    os._exit = leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = before


_PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """Let the system kill this process, on Linux, when the thread that forked it ends, even while it is stopped."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_server() -> None:
    """Start the fork server, if there is none. It hears no Ctrl-C, SIGTERM or SIGHUP, which may reach the whole group;
    what it forks does after `die_with_parent`."""
    resource_tracker.ensure_running()  # first, since it lets them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(with_group: bool = False) -> None:
    """End this process the moment the one that started it is gone, even by SIGKILL; Ctrl-C and SIGHUP, which may reach
    both, are for that one to act on.

    `with_group`: its process group with it.

    A fork of a fork server ends with the server, too, which on Linux ends with the process that started it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "the main process has no parent to watch"
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        if with_group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    follow_parent()
    threading.Thread(target=watch, daemon=True, name="watch parent").start()


T = TypeVar("T")


def carried_out(
    work: Callable[..., T],
    tasks: Sequence[tuple[Any, ...]],
    num_processes: int,
    begin: Callable[[], object] | None = None,
) -> Iterator[tuple[int, T]]:
    """(i, work(*tasks[i])) for every i, in the order in which they are finished.

    work     importable, as `begin` is: processes are started anew, they are no copies of this one
    begin    what a process does first

    With one process, and in processes that may have no children, all is done here; so is what is left when one of them
    is killed, for lack of memory, say. Raises what `work` raises; then, and when the iterator is closed, at most one
    task for each process and one more is still carried out, and waited for.
    """
    left = dict(enumerate(tasks))
    num_processes = min(num_processes, len(tasks))
    if num_processes > 1 and not current_process().daemon:
        with suppress(BrokenProcessPool):
            for i, found in _side_by_side(work, tasks, num_processes, begin):
                del left[i]
                yield i, found
    for i, task in left.items():
        yield i, work(*task)


def _side_by_side(
    work: Callable[..., T], tasks: Sequence[tuple[Any, ...]], num_processes: int, begin: Callable[[], object] | None
) -> Iterator[tuple[int, T]]:
    start_server()
    with ProcessPoolExecutor(num_processes, get_context("forkserver"), initializer=_begin, initargs=(begin,)) as pool:
        try:
            with no_script():
                running = {pool.submit(_outcome, work, task): i for i, task in enumerate(tasks)}
            for one in as_completed(running):
                yield running[one], one.result()
        except KeyboardInterrupt:
            for process in list(pool._processes.values()):
                process.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def no_script() -> Iterator[None]:
    """Processes that are started in here do not import the script that this one carries out, which would begin anew
    in each of them. (multiprocessing does that for what is defined there.)"""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _begin(begin: Callable[[], object] | None) -> None:
    die_with_parent()
    if begin is not None:
        begin()


def _outcome(work: Callable[..., T], task: tuple[Any, ...]) -> T:
    """Return what the work returns. An exception that may not be picklable becomes a text."""
    try:
        return work(*task)
    except (ConfigError, OSError):
        raise
    except Exception as error:
        raise RuntimeError("".join(traceback.format_exception(error))) from None
