"""No process outlives the one that started it, or acts on Ctrl-C in its place."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait

from decentral.host.interrupt import HEARD

_PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """On Linux, let the system kill this process when the thread that forked it ends, even while it is stopped."""
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
        wait([sentinel])
        if with_group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    follow_parent()
    threading.Thread(target=watch, daemon=True, name="watch parent").start()
