"""Waiting for what other processes do, with patience for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from decentral.scheduling.job import Ended, Pool

PATIENCE_S = 120.0


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    return _state(pid) not in ("", "Z")


def stands_still(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The letter of /proc, or ''."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(true: Callable[[], object]) -> None:
    """Wait for a condition."""
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
