"""How long jobs are said to take: by what happened since this start, on a clock that the tests move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from decentral.scheduling.board import Board
from decentral.scheduling.job import Job
from decentral.scheduling.pool import Ended, Seen
from decentral.store import RunStore, Status
from toy_jobs import Toy


@dataclass(frozen=True)
class Sort(Toy):
    """A toy of a kind."""

    sort: str = "short"

    @property
    def kind(self) -> str:
        return self.sort


class Clock:
    """Tells the time that a test has set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def job(tmp_path: Path):
    def _job(name: str, sort: str = "short") -> Job:
        return Sort(tmp_path, name, sort=sort)

    return _job


def store(job: Job, fraction: float, status: Status = Status.interrupted) -> None:
    """What an attempt leaves that was stopped there."""
    with RunStore.open(job.directory, job.id, "") as opened:
        opened.set_status(status, fraction=fraction)


def at(job: Job, fraction: float | None, place: str = "cpu") -> list[Seen]:
    return [Seen(job, place, fraction)]


def test_the_time_to_go_follows_from_what_was_done_since_this_start(clock: Clock, job):
    """Neither what an earlier attempt had stored, nor time in a queue, is work of this one."""
    board = Board("study", now=clock)
    store(job("a"), 0.3)
    board.started(job("a"))
    for clock.now in (0.0, 500.0):
        board.show(at(job("a"), 0.0, "waiting for slurm 1"), [job("b")])
    assert board._to_go() == ""
    clock.now = 570.0
    board.ended(Ended(job("a"), Status.done), again=False)
    board.started(job("b"))
    board.show(at(job("b"), None), [])
    assert board._to_go() == "about 1:40 to go", "70 s for 70 % of a job"


# -- what is stored of a job -------------------------------------------------------------------------------------------


def test_a_job_that_is_finished_or_of_another_id_holds_nothing_to_go_on_from(job):
    a = job("a")
    assert a.held() == 0.0
    store(a, 0.25)
    assert a.held() == 0.25
    assert replace(a, name="b").held() == 0.0
    store(a, 1.0, Status.done)
    assert a.held() == 0.0
