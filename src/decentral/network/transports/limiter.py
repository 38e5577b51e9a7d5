"""Messages that arrive as late as they would over a slower network, for methods that are measured in real time."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple


class Limits(NamedTuple):
    """Of every message of N bytes that leaves a process: latency_s + N seconds_per_byte."""

    latency_s: float
    seconds_per_byte: float


class Limiter:
    """The way out of a process. Its messages go through it one after the other, as fast as the bandwidth lets them (a
    token bucket that holds no tokens), and arrive the latency after that; who sends does not wait.

    A thread of its own lets each of them go when it is due.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free = 0.0
        self._queue: SimpleQueue[tuple[float, Callable[[], object]] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="limiter", daemon=True)
        self._thread.start()

    def later(self, num_bytes: int, send: Callable[[], object]) -> float:
        """Let `send` be called once a message of so many bytes that leaves now has arrived; returns when that is.

        `send` raises nothing: there is nobody to hear of it.
        """
        self._free = max(self._free, time.perf_counter()) + num_bytes * self.limits.seconds_per_byte
        due = self._free + self.limits.latency_s
        self._queue.put((due, send))
        return due

    def close(self) -> None:
        """Wait until everything has arrived."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            due, send = entry
            time.sleep(max(0.0, due - time.perf_counter()))
            send()
