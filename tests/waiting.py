"""Waiting for what other processes do, with patience for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from decentral.launch.pool import Ended, Pool

PATIENCE_S = 120.0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def all_ended(pool: Pool, count: int = 1) -> dict[str, Ended]:
    """What became of the jobs, by title."""
    deadline = time.monotonic() + PATIENCE_S
    ended: list[Ended] = []
    while len(ended) < count and time.monotonic() < deadline:
        ended += pool.wait(1.0)
    assert len(ended) == count and not pool.look()
    return {one.job.title: one for one in ended}
