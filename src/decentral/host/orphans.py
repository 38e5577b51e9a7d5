"""No process outlives the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

_PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """On Linux, let the system kill this process when the thread that forked it ends, even while it is stopped."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent(with_group: bool = False) -> None:
    """End this process the moment the one that started it is gone, even by SIGKILL.

    `with_group`: its process group with it.

    A fork of a fork server ends with the server, too, which on Linux ends with the process that started it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "the main process has no parent to watch"
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        if with_group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    follow_parent()
    threading.Thread(target=watch, daemon=True, name="watch parent").start()
