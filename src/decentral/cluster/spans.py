"""What each worker was doing when, for pictures of a timeline."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """A worker computes, waits or exchanges from one simulated time to another, in seconds."""

    worker: int
    kind: str
    begin_s: float
    end_s: float


class Spans:
    """The spans of the first workers of a timeline."""

    def __init__(self, workers: int) -> None:
        """`workers`: of how many they are kept."""
        self.found: list[Span] = []
        self._workers = workers

    def add(self, worker: int, kind: str, begin_s: float, end_s: float) -> None:
        """Keep one that takes time."""
        if end_s > begin_s and worker < self._workers:
            self.found.append(Span(worker, kind, begin_s, end_s))
