"""Locks that processes of one host share, and that the kernel releases when their holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

_LONGEST_NAP_S = 1e-3


class ByteLocks:
    """Lock b is byte b of a file without a name: a POSIX record lock, held by a process and gone when it is.

    To be made by all processes of the group at once. A process may take a lock again that it holds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._held: Counter[int] = Counter()
        self._file = _common_file()

    @contextmanager
    def hold(self, number: int, meaning: str) -> Iterator[None]:
        """Hold a lock. Raises TimeoutError, which speaks of `meaning`, if it is not free in time."""
        if not self._held[number]:
            self._acquire(number, meaning)
        self._held[number] += 1
        try:
            yield
        finally:
            self._held[number] -= 1
            if not self._held[number]:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Let go of everything."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _acquire(self, number: int, meaning: str) -> None:
        began, nap = time.monotonic(), 1e-5
        while True:
            try:
                return fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except (BlockingIOError, PermissionError):  # either may mean: held by somebody
                if time.monotonic() - began > self.timeout_s:
                    raise TimeoutError(f"timed out after {self.timeout_s:g} s of waiting for {meaning}") from None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)


def _common_file() -> int:
    """The descriptor of a file that all processes of the group have open."""
    own = os.memfd_create("decentral") if dist.get_rank() == 0 else -1
    place = torch.tensor([os.getpid(), own], dtype=torch.int64)
    dist.broadcast(place, src=0)
    pid, number = place.tolist()
    file = own if own >= 0 else os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    dist.all_reduce(place)  # nobody goes on, and closes it, before all have it
    return file
