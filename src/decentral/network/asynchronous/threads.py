"""Threads of a process that wait for each other, and for other processes, and hear of each other's failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from decentral.host.threads import on_the_same_gpu

_GLANCE_S = 0.05


class Threads:
    """Whoever waits with one of the conditions that are made here hears of what fails in any thread started here."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.left: set[int] = set()
        """The processes that have left: who waits for one of them, waits in vain."""
        self._conditions: list[threading.Condition] = []
        self._failure: BaseException | None = None
        self._first = threading.Lock()

    def condition(self, lock: Any = None) -> threading.Condition:
        """One to `wait` with: whoever waits for it hears of failures."""
        made = threading.Condition(lock or threading.Lock())
        self._conditions.append(made)
        return made

    def wait(
        self,
        condition: threading.Condition,
        done: Callable[[], object],
        whom: Callable[[], str],
        process: int | None = None,
        patience_s: float | None = None,
    ) -> None:
        """Wait, with `condition` held, until `done()`; what changes its answer notifies the condition.

        `whom` says in words what is waited for, `process` which process it depends on, if that is known. Raises
        ConnectionError if that has left, TimeoutError after `patience_s` (None: `timeout_s`), and what `check` raises.
        """
        deadline = time.monotonic() + (self.timeout_s if patience_s is None else patience_s)
        while not done():
            self.check()
            if process in self.left:
                raise gone(process)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {whom()}")
            condition.wait(min(left, threading.TIMEOUT_MAX))

    @property
    def failed(self) -> bool:
        """Whether something has gone wrong that all hear of."""
        return self._failure is not None

    def check(self) -> None:
        """Raise what has failed in another thread, if anything has."""
        failure = self._failure
        if isinstance(failure, ConnectionError | TimeoutError):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise RuntimeError(f"another thread of this process failed: {failure}") from failure

    def fail(self, failure: BaseException) -> None:
        """From now on everybody who waits or sends in this process hears of this, or of what was said before it."""
        with self._first:
            self._failure = self._failure or failure
        self.tell_all()

    def start(self, name: str, work: Callable[..., object], *arguments: object) -> threading.Thread:
        """A thread that does some work, the failure of which all hear of."""

        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as failure:
                self.fail(failure)

        thread = threading.Thread(target=on_the_same_gpu(guarded), daemon=True, name=name)
        thread.start()
        return thread

    def end(self, threads: Iterable[threading.Thread], who: str) -> None:
        """Wait until threads have ended. Raises TimeoutError if they do not, unless something has failed: then some may
        be waiting for ever, and end with the process."""
        deadline = time.monotonic() + self.timeout_s
        for thread in threads:
            while thread.is_alive() and not self.failed:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {who}")
                thread.join(_GLANCE_S)

    def tell_all(self) -> None:
        """Have everybody who waits look again."""
        for condition in list(self._conditions):
            with condition:
                condition.notify_all()


def gone(peer: int | None) -> ConnectionError:
    """What to say of a process that is not there any more."""
    return ConnectionError(f"connection closed by process {peer} of this run")
