"""Messages between workers, and the memory for their rows: used again, since fresh memory costs a fault for every page,
and where all processes are on one host, readable by the others."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
    """The memory behind a descriptor of a process of this host."""
    return torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=size, dtype=torch.uint8)


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
