"""Messages between workers, the memory for their rows, and cooperating threads.

Memory is reused, since fresh memory costs a fault for every page, and is readable by the other processes of one host.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decentral.host.torch_state import on_the_same_gpu

_GLANCE_S = 0.05


class Threads:
    """Threads that share failures: every wait on a condition created here raises if any thread started here fails."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.left: set[int] = set()
        """The processes that have left: waiting for them is futile."""
        self._conditions: list[threading.Condition] = []
        self.failure: BaseException | None = None
        """The first failure, which all threads raise."""
        self._first = threading.Lock()

    def condition(self, lock: Any = None) -> threading.Condition:
        """Return a condition for `wait`; waits on it raise failures."""
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
        """Wait, with `condition` held, until `done()`; changes to its result notify the condition.

        `whom` describes the target of the wait, `process` the process it depends on, if known. Raises ConnectionError
        if that has left, TimeoutError after `patience_s` (None: `timeout_s`), and what `check` raises.
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

    def check(self) -> None:
        """Raise the failure of another thread, if any."""
        failure = self.failure
        if isinstance(failure, ConnectionError | TimeoutError):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise RuntimeError(f"another thread of this process failed: {failure}") from failure

    def fail(self, failure: BaseException) -> None:
        """Make all waits and sends in this process raise this failure, or an earlier one."""
        with self._first:
            self.failure = self.failure or failure
        self.tell_all()

    def start(self, name: str, work: Callable[..., object], *arguments: object) -> threading.Thread:
        """Start a thread; all others see its failure."""

        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as failure:
                self.fail(failure)

        thread = threading.Thread(target=on_the_same_gpu(guarded), daemon=True, name=name)
        thread.start()
        return thread

    def end(self, threads: Iterable[threading.Thread], who: str) -> None:
        """Wait until threads have ended. Raises TimeoutError if they do not, except after a failure: then some may wait
        forever, and end with the process."""
        deadline = time.monotonic() + self.timeout_s
        for thread in threads:
            while thread.is_alive() and not self.failure:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {who}")
                thread.join(_GLANCE_S)

    def tell_all(self) -> None:
        """Wake all waiting threads to recheck."""
        for condition in list(self._conditions):
            with condition:
                condition.notify_all()


def unnoted(worker: int, what: str, number: int, began_ns: int | None = None, **facts: Any) -> None:
    """Discard the event: the default in place of `training.operations.Operations.note`."""


def gone(peer: int | None) -> ConnectionError:
    """Return the error for a process that is gone."""
    return ConnectionError(f"connection closed by process {peer} of this run")


_MOST_DESCRIPTORS = 256
NOT_SHARED = -1


@dataclass
class Buffer:
    """Bytes [N], their descriptor for other processes, or `NOT_SHARED`, and a reference count."""

    memory: Tensor
    number: int
    holders: int = 0


class Buffers:
    """A thread-safe pool of memory.

    Shared memory is an unnamed file per buffer, which other processes open by our process ID and its descriptor. It
    disappears with its last user, however processes end. There are at most 256 of these; further buffers are plain.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._guard = threading.Lock()
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)  # by length
        self._descriptors: dict[int, Buffer] = {}

    def take(self, num_bytes: int) -> Buffer:
        """Return uninitialized memory of this length, at least 1."""
        size = max(1, num_bytes)
        with self._guard:
            if self._free[size]:
                buffer = self._free[size].pop()
            elif self._shared and len(self._descriptors) < _MOST_DESCRIPTORS:
                buffer = self._new_shared(size)
            else:
                buffer = Buffer(torch.empty(size, dtype=torch.uint8), NOT_SHARED)
            buffer.holders = 1
        return buffer

    def hold(self, buffer: Buffer) -> Buffer:
        """Add a reference."""
        with self._guard:
            buffer.holders += 1
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Drop a reference; the buffer is free at zero."""
        with self._guard:
            buffer.holders -= 1
            if not buffer.holders:
                self._free[len(buffer.memory)].append(buffer)

    def give_back_number(self, number: int) -> None:
        """Drop a reference to shared memory, by its descriptor; no effect once it is closed."""
        if (buffer := self._descriptors.get(number)) is not None:
            self.give_back(buffer)

    def close(self) -> None:
        """Close the descriptors, so that no process can open them. The memory lives until its last user ends."""
        with self._guard:
            for number in self._descriptors:
                os.close(number)
            self._descriptors.clear()
            self._free.clear()
            self._shared = False

    def _new_shared(self, size: int) -> Buffer:
        number = os.memfd_create("decentral")
        os.ftruncate(number, size)
        self._descriptors[number] = Buffer(opened(os.getpid(), number, size), number)
        return self._descriptors[number]


def opened(pid: int, number: int, size: int) -> Tensor:
    """Open the memory behind a descriptor of a process of this host. Raises OSError if it is closed."""
    try:
        return torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=size, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(str(error)) from error


class Message:
    """A message from worker `source` to worker `destination`, about `number`; with a `value` and optional flat `rows`
    [P]. `process` is the sending process.
    """

    __slots__ = ("_release", "destination", "kind", "number", "process", "rows", "source", "value")

    def __init__(
        self,
        process: int,
        source: int,
        destination: int,
        kind: int,
        number: int,
        value: float,
        rows: Tensor | None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.process, self.source, self.destination, self.kind = process, source, destination, kind
        self.number, self.value, self.rows, self._release = number, value, rows, release

    def release(self) -> None:
        """Release the rows: their memory is reused. Without this call they stay unchanged."""
        release, self._release, self.rows = self._release, None, None
        if release is not None:
            release()


class Draft:
    """A message under construction: write its rows [P] to `rows`, which must not change after it is sent."""

    def __init__(self, buffers: Buffers, like: Tensor) -> None:
        self.buffers, self.buffer = buffers, buffers.take(like.nbytes)
        self.rows = self.buffer.memory[: like.nbytes].view(like.dtype)

    def release(self) -> None:
        """Release the sender's reference to the rows: their memory is reused once the receiver releases them, too."""
        self.buffers.give_back(self.buffer)
