"""The same work on many things, by several processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import current_process, get_context
from typing import Any, TypeVar

from decentral.host.orphans import die_with_parent

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

    With one process, and in processes that may have no children, all is done here. Raises what `work` raises; then, and
    when the iterator is closed, nothing more is begun.
    """
    num_processes = min(num_processes, len(tasks))
    if num_processes <= 1 or current_process().daemon:
        for i, task in enumerate(tasks):
            yield i, work(*task)
        return
    context = get_context("forkserver")
    with ProcessPoolExecutor(num_processes, context, initializer=_begin, initargs=(begin,)) as pool:
        try:
            numbers = {pool.submit(work, *task): i for i, task in enumerate(tasks)}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(begin: Callable[[], object] | None) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word
    if begin is not None:
        begin()
