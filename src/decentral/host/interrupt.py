"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to stop at a good moment, a later one stops it at once.

A signal that is ignored when the program starts, as under nohup, stays ignored.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 1.0
"""Signals closer than this are one: fingers are quick, and torchrun hands on what its processes have heard, too."""

_stopping: list[object] = []
"""The handlers that have been asked to stop, and have not ended yet."""

_raised_at: float | None = None
"""Time at which Ctrl-C raised KeyboardInterrupt in a console command."""


def end_at_once(words: str, status: int) -> None:
    """Let Ctrl-C end this process at once from now on, with these words on stderr."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: _end(words, status))


def raise_once(words: str, status: int) -> None:
    """Let the first Ctrl-C raise KeyboardInterrupt from now on, and a later one end this process at once.

    So does the first if its exception is lost, as in `__del__`, where Python only reports it.
    """

    def hear(number: int, frame: FrameType | None) -> None:
        global _raised_at
        if _raised_at is None:
            _raised_at = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - _raised_at >= AGAIN_S:
            _end(words, status)

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _end(words, status)
        sys.__unraisablehook__(unraisable)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, hear)
        sys.unraisablehook = lost
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the last: Python forgets handlers after it


def was_raised() -> bool:
    """Return whether Ctrl-C has interrupted this command: errors and work after it are its consequences."""
    return _raised_at is not None


def _end(words: str, status: int) -> None:
    with suppress(OSError):
        os.write(2, words.encode())
    os._exit(status)


def ask_to_stop() -> None:
    """Do what a first SIGTERM does; do nothing while a stop is under way, so that it is not broken off."""
    if not _stopping:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def as_keyboard_interrupt() -> Iterator[None]:
    """While entered, the signals raise KeyboardInterrupt: for a main thread that waits for other processes."""
    at = float("-inf")

    def raise_it(number: int, frame: FrameType | None) -> None:
        nonlocal at
        now = time.monotonic()
        if now - at >= AGAIN_S:
            at = now
            _stopping.append(raise_it)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, raise_it) for number in _heard()}
    try:
        if was_raised():  # and swallowed
            raise KeyboardInterrupt
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forget(raise_it)


class Interrupt:
    """While entered, the first signal only sets `requested`; after it, and AGAIN_S, they act as they did before.

    A signal that is ignored stays ignored: Ctrl-C reaches all processes of a run, but only their launcher acts on it.
    """

    def __init__(self) -> None:
        self.requested = was_raised()  # and swallowed
        self._at = float("-inf")
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _heard()}
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        _forget(self)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._at = True, time.monotonic()
            _stopping.append(self)
        elif time.monotonic() - self._at >= AGAIN_S:
            self._put_back()
            signal.raise_signal(number)

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def _heard() -> list[signal.Signals]:
    return [number for number in HEARD if signal.getsignal(number) is not signal.SIG_IGN]


def _forget(one: object) -> None:
    _stopping[:] = [other for other in _stopping if other is not one]
