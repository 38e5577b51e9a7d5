"""Messages between workers, the memory for their rows, and threads that wait for each other.

Memory is used again, since fresh memory costs a fault for every page, and where all processes are on one host it is
readable by the others.
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
    """Whoever waits with one of the conditions that are made here hears of what fails in any thread started here."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.left: set[int] = set()
        """The processes that have left: who waits for one of them, waits in vain."""
        self._conditions: list[threading.Condition] = []
        self.failure: BaseException | None = None
        """What has gone wrong first, of which all hear."""
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

    def check(self) -> None:
        """Raise what has failed in another thread, if anything has."""
        failure = self.failure
        if isinstance(failure, ConnectionError | TimeoutError):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise RuntimeError(f"another thread of this process failed: {failure}") from failure

    def fail(self, failure: BaseException) -> None:
        """From now on everybody who waits or sends in this process hears of this, or of what was said before it."""
        with self._first:
            self.failure = self.failure or failure
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
            while thread.is_alive() and not self.failure:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {who}")
                thread.join(_GLANCE_S)

    def tell_all(self) -> None:
        """Have everybody who waits look again."""
        for condition in list(self._conditions):
            with condition:
                condition.notify_all()


def unnoted(worker: int, what: str, number: int, began_ns: int | None = None, **facts: Any) -> None:
    """Nobody wants to know what has happened, or else `training.operations.Operations.note`."""


def gone(peer: int | None) -> ConnectionError:
    """What to say of a process that is not there any more."""
    return ConnectionError(f"connection closed by process {peer} of this run")


_MOST_DESCRIPTORS = 256
NOT_SHARED = -1


@dataclass
class Buffer:
    """Bytes [N], the descriptor by which other processes find them, or `NOT_SHARED`, and how many still need them."""

    memory: Tensor
    number: int
    holders: int = 0


class Buffers:
    """Gives out memory, and takes it back; in any thread.

    Shared memory is a file without a name for each buffer, which other processes open by our process id and its number:
    gone when nobody has it any more, however processes end. Of those there are at most 256; more buffers are plain.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._guard = threading.Lock()
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)  # by length
        self._descriptors: dict[int, Buffer] = {}

    def take(self, num_bytes: int) -> Buffer:
        """Memory of this length, at least 1, with whatever is in it."""
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
        """One more needs its content."""
        with self._guard:
            buffer.holders += 1
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """One less needs its content; free when nobody does."""
        with self._guard:
            buffer.holders -= 1
            if not buffer.holders:
                self._free[len(buffer.memory)].append(buffer)

    def give_back_number(self, number: int) -> None:
        """The same for shared memory, by its descriptor; nothing once it is closed."""
        if (buffer := self._descriptors.get(number)) is not None:
            self.give_back(buffer)

    def close(self) -> None:
        """Close the descriptors: nobody can open them from now on. The memory goes with whoever still has it."""
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
    """The memory behind a descriptor of a process of this host. Raises OSError if that has closed it."""
    try:
        return torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=size, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(str(error)) from error


class Message:
    """From worker `source` to worker `destination`, about `number`; with a `value`, and `rows` [P], flat, or without.

    `process` is the one that has sent it.
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
        """The rows are not needed any more: their memory is used again. Without this call they stay as they are."""
        release, self._release, self.rows = self._release, None, None
        if release is not None:
            release()


class Draft:
    """Rows [P] of a message to be, to be written in `rows`, which do not change after it has been sent."""

    def __init__(self, buffers: Buffers, like: Tensor) -> None:
        self.buffers, self.buffer = buffers, buffers.take(like.nbytes)
        self.rows = self.buffer.memory[: like.nbytes].view(like.dtype)

    def release(self) -> None:
        """The sender does not need the rows any more: their memory is used again once the receiver does not, either."""
        self.buffers.give_back(self.buffer)
