"""How long jobs are said to take: by what happened since this start, on a clock that the tests move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from configure import configure
from decentral.measurements.training_run import TrainingRun
from decentral.scheduling.job import Job
from decentral.scheduling.pace import Pace
from decentral.scheduling.pool import Seen
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
def pace(clock: Clock) -> Pace:
    return Pace(clock)


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


def watch(pace: Pace, clock: Clock, job: Job, *places: tuple[float, float]) -> list[Seen]:
    """See a job at these (time, fraction)."""
    seen: list[Seen] = []
    for clock.now, fraction in places:
        seen = at(job, fraction)
        pace.saw(seen)
    return seen


def test_nothing_is_said_of_a_job_before_it_has_moved_for_a_while(pace: Pace, clock: Clock, job):
    pace.started(job("a"))
    for now, fraction in ((0.0, 0.0), (9.0, 0.001), (9.5, 0.1), (10.0, 0.2)):
        seen = watch(pace, clock, job("a"), (now, fraction))
        assert pace.left_s(seen[0]) is None and pace.to_go_s(seen, [job("b")]) is None
    seen = watch(pace, clock, job("a"), (29.0, 0.201))
    assert pace.left_s(seen[0]) == pytest.approx(79.9), "100 s for all of it, since it was first seen to move"
    assert pace.to_go_s(seen, [job("b")]) == pytest.approx(179.9)


def test_what_an_earlier_attempt_has_done_is_no_speed_of_this_one(pace: Pace, clock: Clock, job):
    """It goes on at 30 % and takes 100 s for a whole job."""
    a = job("a")
    store(a, 0.3)
    pace.started(a)
    seen = watch(pace, clock, a, (2.0, 0.3))
    assert pace.to_go_s(seen, [job("b")]) is None
    seen = watch(pace, clock, a, (12.0, 0.4))
    assert pace.left_s(seen[0]) == pytest.approx(60.0)
    clock.now = 72.0
    assert pace.ended(a, done=True) == 72.0
    pace.started(job("b"))
    assert pace.to_go_s(at(job("b"), None), []) == pytest.approx(72 / 0.7)


def test_a_job_that_has_not_begun_takes_what_those_of_its_kind_did_or_else_what_any_did(pace: Pace, clock: Clock, job):
    for name, sort, seconds in (("a", "short", 10.0), ("b", "long", 100.0)):
        pace.started(job(name, sort))
        clock.now += seconds
        pace.ended(job(name, sort), done=True)
    pace.started(job("c", "long"))
    seen = at(job("c", "long"), None)
    assert pace.to_go_s(seen, [job("d", "short"), job("e", "long")]) == pytest.approx(100 + 10 + 100)
    assert pace.to_go_s(seen, [job("f", "new")]) == pytest.approx(100 + 55)
    clock.now += 30.0
    assert pace.to_go_s(seen, []) == pytest.approx(70.0), "it says nothing of itself, so its time just runs down"


# -- what is stored of a job -------------------------------------------------------------------------------------------


def test_a_job_that_is_finished_or_of_another_id_holds_nothing_to_go_on_from(job):
    a = job("a")
    assert a.held() == 0.0
    store(a, 0.25)
    assert a.held() == 0.25
    assert replace(a, name="b").held() == 0.0
    store(a, 1.0, Status.done)
    assert a.held() == 0.0


@pytest.mark.parametrize(("limit", "share"), [("steps=400", 0.25), ("epochs=20", 0.5)])
def test_a_run_holds_the_steps_of_its_newest_checkpoint(tmp_path: Path, limit: str, share: float):
    run = TrainingRun(replace(configure("task=quadratics", limit), run_dir=str(tmp_path / "run")))
    with RunStore.open(run.directory, run.id, "") as opened:
        opened.set_status(Status.running, step=200, epoch=20.0)
        assert run.held() == 0.0, "without a checkpoint it begins anew"
        part = opened.save_checkpoint_part(100, "process0", {})
        opened.commit_checkpoint(100, {"process0": part}, {})
    assert run.held() == share
