"""A process that is ended from within says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
