"""Ctrl-C and SIGTERM: the first asks the run to stop at a good moment, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; after it, signals act as they did before.

    A signal that is ignored stays ignored: Ctrl-C reaches all processes of a run, but only their launcher acts on it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._ask) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
