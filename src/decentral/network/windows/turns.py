"""Locks of one process that its own thread asks for and, by message, other processes do."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

_NOBODY = -1


class _Wish(NamedTuple):
    who: int
    then: Callable[[], object]
    keep: bool


class Turns:
    """For each lock, whose turn it is, and what waits for it: nobody who asks is made to stand still.

    So a thread that carries out what other processes ask for by message never waits for one of them.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[int, list[int]] = {}  # lock -> [who, how often]
        self._waiting: defaultdict[int, deque[_Wish]] = defaultdict(deque)

    def ask(self, lock: int, who: int, then: Callable[[], object], keep: bool) -> None:
        """Call `then` when it is the turn of process `who`: now, or later, in the thread that ends the turn before.

        The turn lasts until `give_back` if it is to be kept, else until `then` returns. Who keeps one need not wait.
        """
        wish = _Wish(who, then, keep)
        with self._guard:
            held = self._held.get(lock)
            if held is not None and held[0] != who:
                self._waiting[lock].append(wish)
                return
            if held is not None:
                held[1] += 1
            else:
                self._begin(lock, wish)
        then()
        if not keep:
            self._end(lock)

    def give_back(self, lock: int, who: int) -> None:
        """End a turn that was to be kept; or if it has not come yet, wish for it no more."""
        with self._guard:
            if self.holder(lock) != who:
                waiting = self._waiting[lock]
                waiting.remove(next(wish for wish in waiting if wish.who == who and wish.keep))
                return
        self._end(lock)

    def holder(self, lock: int) -> int:
        """The process that keeps a turn, or -1."""
        held = self._held.get(lock)
        return _NOBODY if held is None else held[0]

    def _end(self, lock: int) -> None:
        """End a turn, and carry out what has waited for that."""
        while True:
            with self._guard:
                self._held[lock][1] -= 1
                if self._held[lock][1]:
                    return
                del self._held[lock]
                if not self._waiting[lock]:
                    return
                wish = self._waiting[lock].popleft()
                self._begin(lock, wish)
            wish.then()
            if wish.keep:
                return

    def _begin(self, lock: int, wish: _Wish) -> None:
        self._held[lock] = [wish.who if wish.keep else _NOBODY, 1]
