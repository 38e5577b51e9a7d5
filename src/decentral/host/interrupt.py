"""Ctrl-C and SIGTERM: the first asks the run to stop at a good moment, the second stops it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_stopping: list[object] = []
"""Who has been asked to stop, and has not ended yet."""


def ask_to_stop() -> None:
    """What a first SIGTERM does; nothing while a stop that was asked for is under way, so that it is not broken off."""
    if not _stopping:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def as_keyboard_interrupt() -> Iterator[None]:
    """While entered, SIGINT and SIGTERM raise KeyboardInterrupt: for a main thread that waits for other processes."""

    def raise_it(number: int, frame: FrameType | None) -> None:
        _stopping.append(raise_it)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, raise_it) for number in _heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _forget(raise_it)


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; after it, signals act as they did before.

    A signal that is ignored stays ignored: Ctrl-C reaches all processes of a run, but only their launcher acts on it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _heard()}
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        _forget(self)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        _stopping.append(self)
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def _heard() -> list[signal.Signals]:
    return [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]


def _forget(one: object) -> None:
    _stopping[:] = [other for other in _stopping if other is not one]
