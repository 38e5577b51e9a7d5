"""Synchronization of windows: locks in shared memory, locks requested by message, and sums over all processes."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

_LONGEST_NAP_S = 1e-3


class ByteLocks:
    """Lock b is byte b of an unnamed file: a POSIX record lock, released when its process ends.

    All processes of the group create it at once. Locks are reentrant within a process.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._held: Counter[int] = Counter()
        own = os.memfd_create("decentral") if dist.get_rank() == 0 else -1
        place = torch.tensor([os.getpid(), own], dtype=torch.int64)
        dist.broadcast(place, src=0)
        pid, number = place.tolist()
        self._file = own if own >= 0 else os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        dist.all_reduce(place)  # all have opened the file before any closes it

    @contextmanager
    def hold(self, number: int, meaning: str) -> Iterator[None]:
        """Hold a lock. Raises TimeoutError, which names `meaning`, if it is not free in time."""
        began, nap = time.monotonic(), 1e-5
        while not self._held[number]:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                break
            except (BlockingIOError, PermissionError):  # either may mean: held by another process
                if time.monotonic() - began > self.timeout_s:
                    raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {meaning}") from None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)
        self._held[number] += 1
        try:
            yield
        finally:
            self._held[number] -= 1
            if not self._held[number]:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Release all locks."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


_NOBODY = -1


class Turns:
    """Non-blocking locks: the holder of each lock, and the callbacks queued for it.

    A thread that serves other processes' requests never waits for one of them.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[int, list[int]] = {}  # lock -> [holder, count]
        self._waiting: defaultdict[int, deque[tuple[int, Callable[[], object], bool]]] = defaultdict(deque)

    def ask(self, lock: int, who: int, then: Callable[[], object], keep: bool) -> None:
        """Call `then` once process `who` gets the lock: now, or later in the thread that releases it.

        With `keep` the lock is held until `give_back`, else until `then` returns. The holder itself need not wait.
        """
        with self._guard:
            held = self._held.setdefault(lock, [who if keep else _NOBODY, 0])
            if held[1] and held[0] != who:
                self._waiting[lock].append((who, then, keep))
                return
            held[1] += 1
        then()
        if not keep:
            self._end(lock)

    def give_back(self, lock: int, who: int) -> None:
        """Release a kept lock, or withdraw the request if it is still queued."""
        with self._guard:
            if self.holder(lock) != who:
                waiting = self._waiting[lock]
                waiting.remove(next(turn for turn in waiting if turn[0] == who and turn[2]))
                return
        self._end(lock)

    def holder(self, lock: int) -> int:
        """Return the process that keeps the lock, or -1."""
        held = self._held.get(lock)
        return _NOBODY if held is None else held[0]

    def _end(self, lock: int) -> None:
        """Release a lock, and run the callbacks queued for it."""
        while True:
            with self._guard:
                self._held[lock][1] -= 1
                if self._held[lock][1]:
                    return
                del self._held[lock]
                if not self._waiting[lock]:
                    return
                who, then, keep = self._waiting[lock].popleft()
                self._held[lock] = [who if keep else _NOBODY, 1]
            then()
            if keep:
                return


_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OF_OTHERS = re.compile(rf"{_TIMED_OUT.pattern}|connect|broken pipe|/proc/\d+/fd/", re.IGNORECASE)
_MILLISECONDS = re.compile(r"(\d+) ?ms\b")


class Meeting:
    """Sums over all processes, over gloo; all create it at once.

    All methods raise TimeoutError if a process does not arrive within `timeout_s`, ConnectionError if one is gone.
    Afterwards no other meeting with the same `timeout_s` is possible.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        with in_time():
            gloo_group(self._timeout)

    def total(self, value: Tensor) -> Tensor:
        """Sum a CPU tensor over processes, in place; waits for all of them."""
        with in_time():
            dist.all_reduce(value, group=gloo_group(self._timeout))
        return value


@contextmanager
def in_time() -> Iterator[None]:
    """Convert torch.distributed errors about late or lost processes to one-sentence errors."""
    try:
        yield
    except RuntimeError as error:
        if (told := in_words(error)) is not error:
            raise told from error
        raise


def in_words(error: Exception) -> Exception:
    """Return TimeoutError or ConnectionError for a torch.distributed error about late or lost processes, else the error
    itself."""
    text = str(error)
    if not isinstance(error, RuntimeError | FileNotFoundError) or not _OF_OTHERS.search(text):
        return error
    if not _TIMED_OUT.search(text):
        return ConnectionError("connection closed by a process of this run")
    waited = _MILLISECONDS.search(text)
    after = f" after {int(waited[1]) / 1000:g} s of" if waited else ""
    return TimeoutError(f"timed out{after} waiting for the other processes of this run")


_made: WeakKeyDictionary[object, WeakValueDictionary[timedelta, dist.ProcessGroup]] = WeakKeyDictionary()


def gloo_group(timeout: timedelta) -> dist.ProcessGroup:
    """Return the gloo group of all processes with this timeout, the same for all callers.

    No reference is kept here: when torch.distributed drops it, its threads must end before the interpreter does.
    """
    groups = _made.setdefault(dist.group.WORLD, WeakValueDictionary())
    if (known := groups.get(timeout)) is not None:
        return known
    made = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(made, dist.ProcessGroup)
    groups[timeout] = made
    return made
