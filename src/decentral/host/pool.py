"""The same work on many things, by several processes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import current_process, get_context
from types import ModuleType
from typing import Any, TypeVar

from decentral.errors import ConfigError
from decentral.host.orphans import die_with_parent, start_server

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
    context, waiting = get_context("forkserver"), iter(enumerate(tasks))
    running: dict[Future[T], int] = {}
    start_server()
    with ProcessPoolExecutor(num_processes, context, initializer=_begin, initargs=(begin,)) as pool:
        try:
            while True:
                for i, task in islice(waiting, num_processes + 1 - len(running)):
                    with _no_script():
                        running[pool.submit(_outcome, work, task)] = i
                if not running:
                    return
                for one in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(one), one.result()
        except KeyboardInterrupt:
            for process in list(pool._processes.values()):
                process.kill()
            raise
        finally:
            for one in running:
                one.cancel()


@contextmanager
def _no_script() -> Iterator[None]:
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
    """What the work gives or raises. An exception that may not survive the way between processes becomes a text."""
    try:
        return work(*task)
    except (ConfigError, OSError):
        raise
    except Exception as error:
        raise RuntimeError("".join(traceback.format_exception(error))) from None
