"""The scheduler: what it starts, what it tries again, what it leaves alone (on a pool that the tests play)."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.scheduling import scheduler
from decentral.scheduling.board import Board, board
from decentral.scheduling.job import Demand, Ended, Job, NoRoom, Pool, Seen
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.local_pool import Seat, Slots
from decentral.scheduling.scheduler import Fixed, Tally, schedule
from decentral.store import RunStore, Status
from decentral.store.files import try_lock
from toy_jobs import Toy

WORDS = {
    "done": (Status.done, None),
    "diverged": (Status.diverged, None),
    **{word: (Status.failed, word) for word in ("killed", "lost", "out_of_memory", "disk_full", "refused", "error")},
    "taken": (Status.running, None),
}


@dataclass
class Played(Launcher, Pool):
    """A launcher and its pool. Jobs end in the order in which they were started, one at each `wait`, as `does` says."""

    room: int = 2
    takes: int = 1000
    retries: int = 2
    log: list[str] = field(default_factory=list)
    beside: dict[str, int] = field(default_factory=dict)
    running: list[Job] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    on_wait: object = None
    interrupted: bool = False
    shares_devices: bool = True

    def open(self, results_dir: Path) -> Pool:
        self.log.append("open")
        return self

    def has_room(self, job: Job) -> bool:
        same = [one for one in self.running if one.demand.device == job.demand.device]
        return len(same) < self.room

    def start(self, job: Job) -> None:
        assert isinstance(job, Toy)
        if len(self.running) >= self.takes:
            raise NoRoom(f"it takes no more than {self.takes}")
        self.log.append(job.name)
        self.beside[job.name] = len(self.running)
        self.running.append(job)

    def wait(self, timeout_s: float) -> list[Ended]:
        if callable(self.on_wait):
            self.on_wait()
        if self.interrupted:
            ended, self.running = [Ended(job, Status.interrupted) for job in self.running], []
            return ended
        job = self.running.pop(0)
        assert isinstance(job, Toy)
        attempt = self.attempts[job.name] = self.attempts.get(job.name, -1) + 1
        status, failure = WORDS[job.does[min(attempt, len(job.does) - 1)]]
        if status in (Status.done, Status.diverged):
            finish(job, status)
        return [Ended(job, status, failure, "as the test says")]

    def look(self) -> list[Seen]:
        return [Seen(job, "here", 0.5, "epoch 1") for job in self.running]

    def interrupt(self, grace_s: float) -> None:
        self.interrupted = True

    def close(self) -> None:
        self.log.append("close")


def finish(job: Job, status: Status = Status.done) -> None:
    with RunStore.open(job.directory, job.id, "") as store:
        store.set_status(status)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(scheduler, "_POLL_S", 0.02)


@pytest.fixture
def toy(tmp_path):
    def _toy(name: str, *does: str, **more) -> Toy:
        return Toy(tmp_path, name, does or ("done",), **more)

    return _toy


def run(jobs: Sequence[Job], pool: Played | None = None, shown: Board | None = None) -> tuple[Tally, list[str]]:
    pool = pool or Played()
    tally = schedule(Fixed(jobs), pool, Path("unused"), shown or Board())
    return tally, pool.log


def count(tally: Tally, status: Status) -> int:
    return sum(ended.status is status for ended in tally.ended)


def test_jobs_are_started_in_order_while_there_is_room(toy):
    pool = Played(room=2)
    tally, log = run([toy(name) for name in "abcd"], pool)
    assert log == ["open", *"abcd", "close"]
    assert max(pool.beside.values()) == 1
    assert [ended.status for ended in tally.ended] == [Status.done] * 4
    assert not tally.interrupted and count(tally, Status.done) == 4


def test_what_is_finished_is_not_started_and_without_work_nothing_is_opened(toy):
    jobs = [toy("a"), toy("b")]
    finish(jobs[0])
    assert run(jobs)[1] == ["open", "b", "close"]
    assert run(jobs)[1] == []


@pytest.mark.parametrize("failure", ["killed", "lost"])
def test_what_failed_from_outside_is_tried_again_so_often_and_no_more(toy, failure):
    tally, log = run([toy("a", failure)], Played(retries=2))
    assert log.count("a") == 3
    assert [ended.failure for ended in tally.failed] == [failure]
    tally, log = run([toy("b", failure, failure, "done")], Played(retries=2))
    assert log.count("b") == 3 and not tally.failed


@pytest.mark.parametrize("how", ["diverged", "refused", "error"])
def test_what_would_end_the_same_way_again_is_not_tried_again(toy, how):
    tally, log = run([toy("a", how), toy("b")])
    assert log.count("a") == 1
    assert count(tally, Status.done) == 1, "the others go on"
    assert count(tally, Status.diverged) == (how == "diverged")


def test_when_the_first_three_are_refused_for_one_reason_the_others_are_not_started(toy):
    jobs = [toy(name, "refused") for name in "abcdef"]
    tally, log = run(jobs, Played(room=1))
    assert log == ["open", *"abc", "close"] and len(tally.failed) == 3
    tally, log = run([toy("g"), *(toy(name, "refused") for name in "hijk")], Played(room=1))
    assert log == ["open", *"ghijk", "close"], "one that was carried out shows that the reason is not the same for all"


def test_out_of_memory_is_tried_once_more_alone(toy):
    pool = Played(room=2)
    tally, log = run([toy("a", "out_of_memory", "done"), *(toy(name) for name in "bcd")], pool)
    assert log == ["open", *"abcd", "a", "close"]
    assert pool.beside["a"] == 0 and not tally.failed
    tally, log = run([toy("e", "out_of_memory"), toy("f")])
    assert log.count("e") == 2
    assert [ended.failure for ended in tally.failed] == ["out_of_memory"]


def test_a_full_disk_stops_everything_and_says_what_to_do(toy):
    stream = io.StringIO()
    tally, log = run([toy("a", "disk_full"), *(toy(name) for name in "bcd")], shown=board("test", stream=stream))
    assert log == ["open", "a", "b", "close"]
    assert [ended.status for ended in tally.ended] == [Status.failed, Status.interrupted]
    assert "the disk is full" in stream.getvalue() and "same command resumes" in stream.getvalue()


@dataclass(frozen=True)
class Confused(Toy):
    """Something goes wrong before it starts."""

    wrong: str = ""

    @property
    def demand(self) -> Demand:
        if self.wrong == "demand":
            raise ConfigError("device=cuda needs a GPU.")
        return super().demand

    def finished(self) -> Status | None:
        if self.wrong == "finished":
            raise PermissionError(13, "Permission denied")
        return super().finished()


@pytest.mark.parametrize(("wrong", "failure"), [("demand", "refused"), ("finished", "error")])
def test_a_job_that_does_not_know_what_it_needs_fails_alone(toy, wrong, failure):
    jobs = [toy("a"), Confused(toy("b").folder, "b", wrong=wrong), toy("c")]

    class Listed:
        def pending(self):
            return [job for job in jobs if not (job.directory / "status.json").exists()]

    pool = Played(room=3)
    tally = schedule(Listed(), pool, Path("unused"), Board())
    assert pool.log == ["open", "a", "c", "close"] and count(tally, Status.done) == 2
    assert [(ended.job, ended.failure) for ended in tally.failed] == [(jobs[1], failure)]


@pytest.mark.parametrize("error", [ConfigError("line 3 is damaged."), ZeroDivisionError()])
def test_a_source_that_breaks_lets_running_jobs_write_checkpoints_before_its_error_is_raised(toy, error):
    first, second = toy("first"), toy("second")

    class Broken:
        def pending(self):
            if first.finished():
                raise error
            return [first, second]

    pool, stream = Played(), io.StringIO()
    with pytest.raises(type(error)) as raised:
        schedule(Broken(), pool, Path("unused"), board("study", stream=stream))
    assert raised.value is error
    assert pool.interrupted and pool.log == ["open", "first", "second", "close"] and not pool.running
    assert "stopping: the remaining jobs cannot be determined" in stream.getvalue()
    assert "interrupted second" in stream.getvalue()


def test_a_job_that_waits_for_a_gpu_lets_one_for_the_cpu_pass(toy):
    pool = Played(room=1)
    jobs = [*(toy(name, needs=Demand(1, "cuda")) for name in "ab"), toy("c")]
    run(jobs, pool)
    assert pool.log == ["open", "a", "c", "b", "close"]


@pytest.mark.parametrize("finishes", [True, False])
def test_what_another_launcher_is_at_is_left_to_it_until_it_is_finished_or_free(toy, finishes):
    theirs, ours = toy("theirs"), toy("ours")
    theirs.directory.mkdir()
    lock = os.open(theirs.directory / "log.txt", os.O_RDWR | os.O_CREAT)
    assert try_lock(lock)

    class Watched(Board):
        def waits(self, count: int) -> None:
            nonlocal lock
            assert count == 1 and pool.log == ["open", "ours"]
            if lock >= 0:
                if finishes:
                    finish(theirs)
                os.close(lock)
                lock = -1

    pool = Played()
    tally, log = run([theirs, ours], pool, Watched())
    assert log == ["open", "ours", *([] if finishes else ["theirs"]), "close"]
    assert len(tally.ended) == (1 if finishes else 2)


def test_the_first_ctrl_c_lets_jobs_write_checkpoints(toy):
    pool = Played(on_wait=lambda: pool.interrupted or os.kill(os.getpid(), signal.SIGINT))
    tally, log = run([toy(name) for name in "abc"], pool)
    assert tally.interrupted
    assert log == ["open", "a", "b", "close"], "c is not started any more"
    assert [ended.status for ended in tally.ended] == [Status.done, Status.interrupted]


# -- what the user sees ------------------------------------------------------------------------------------------------


def test_a_line_says_how_many_have_ended_of_those_that_are_known_so_far(toy):
    first, later = toy("a"), [toy("b"), toy("c")]

    class Search:
        def pending(self):
            return [job for job in (first, *(later if first.finished() else [])) if not job.finished()]

    stream = io.StringIO()
    schedule(Search(), Played(room=1), Path("unused"), board("study", stream=stream))
    heads = [line.partition("] ")[0] for line in stream.getvalue().splitlines()]
    assert heads == [f"[study: {words}" for words in ("0 of 1", "1 of 1", "1 of 3", "2 of 3", "2 of 3", "3 of 3")]


GPU = Demand(1, "cuda")
GIB = 1 << 30


class Machine:
    """GPUs of 10 GiB, a clock, and the memory that runs have taken."""

    def __init__(self, gpus: int = 1, **options) -> None:
        self.now = 0.0
        self.free = {str(gpu): 10 * GIB for gpu in range(gpus)}
        self.slots = Slots(16, list(self.free), free_bytes=lambda: dict(self.free), clock=lambda: self.now, **options)

    def start(self, demand: Demand = GPU):
        seat = self.slots.seat(demand, 1)
        return seat and self.slots.take(seat)

    def uses(self, started, gib: float) -> None:
        """A run has done its first step, and has taken so much."""
        for gpu in started.seat.gpus:
            self.free[gpu] -= int(gib * GIB)
        started.seen = True
        self.now += 2


def test_a_process_takes_a_core_and_gives_it_back():
    slots = Slots(2)
    one, two = slots.seat(Demand(), 9), slots.seat(Demand(2), 9)
    assert (one, two) == (Seat(1), Seat(2))
    taken = slots.take(one)
    assert slots.seat(Demand(2), 9) is None
    assert slots.seat(Demand(), 9) == Seat(1)
    slots.free(taken)
    assert slots.seat(Demand(2), 9) == Seat(2)


def test_the_cores_are_shared_out_between_jobs_that_leave_the_number_open():
    slots = Slots(8)
    assert [slots.seat(Demand(None), waiting).processes for waiting in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    slots.take(Seat(6))
    assert slots.seat(Demand(None), 1) == Seat(2)
    slots.take(Seat(2))
    assert slots.seat(Demand(None), 1) is None


@pytest.mark.parametrize("demand", [Demand(4), Demand(1, alone=True)], ids=["more than there is", "measures times"])
def test_some_jobs_run_alone(demand: Demand):
    slots = Slots(2)
    beside = slots.take(Seat(1))
    assert slots.seat(demand, 1) is None
    slots.free(beside)
    slots.take(slots.seat(demand, 1))
    assert slots.seat(Demand(), 1) is None


def test_the_first_run_on_a_gpu_is_alone_until_what_it_takes_has_been_seen():
    machine = Machine()
    first = machine.start()
    assert first is not None and machine.start() is None
    machine.uses(first, 3)
    assert machine.start() is not None


def test_runs_share_a_gpu_until_its_memory_is_used_up():
    machine, runs = Machine(), 0
    while (started := machine.start()) is not None:
        machine.uses(started, 3)
        runs += 1
    assert runs == 3


def test_the_memory_of_other_users_is_not_ours_to_give():
    machine = Machine()
    first = machine.start()
    machine.uses(first, 3)
    machine.free["0"] = 1 * GIB
    machine.now += 2
    assert machine.start() is None


def test_a_run_of_several_processes_gets_as_many_gpus_and_no_gpu_twice():
    machine = Machine(gpus=4)
    assert machine.start(Demand(3, "cuda")).seat.gpus == ("0", "1", "2")
    assert machine.start(Demand(2, "cuda")) is None
    assert machine.start(Demand(1, "cuda")).seat.gpus == ("3",)


@pytest.mark.parametrize(
    ("gpus", "demand", "complaint"),
    [
        (1, Demand(8, "cuda"), "needs 8 GPUs, one per process, but 1 can be used here"),
        (2, Demand(1, "cuda:3"), "device=cuda:3 does not exist: this machine has cuda:0 to cuda:1"),
        (0, Demand(None, "cuda"), "device=cuda needs a GPU, and none is visible here"),
    ],
)
def test_a_job_whose_gpus_are_not_there_is_refused_however_full_the_machine_is(gpus, demand, complaint):
    machine = Machine(gpus)
    for _ in range(2):
        with pytest.raises(ConfigError, match=complaint):
            machine.slots.seat(demand, 1)
        machine.start(Demand(1, "cpu"))


# -- How long jobs are said to take: by what happened since this start, on a clock that the tests move -----------------


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


def test_what_is_not_started_is_told_apart_from_the_time_to_go(clock: Clock, job):
    """The last jobs run for a while when no other one waits: '0 left, about 0:04 to go' contradicts itself."""
    board = Board("sweep", now=clock)
    board.started(job("a"))
    clock.now = 60.0
    board.show(at(job("a"), 0.9), [job("b"), job("c")])
    assert board._progress_line() == "a (90 %); 2 not started, about 2:20 to go"
    assert board._headline() == "1 running  2 not started   1:00 elapsed  about 2:20 to go"
    board.show(at(job("a"), 0.9), [])
    assert board._progress_line() == "a (90 %); about 0:07 to go"
    assert board._headline() == "1 running   1:00 elapsed  about 0:07 to go"
    board.show(at(job("a"), None), [])
    assert board._progress_line() == "a (cpu)"


# -- what is stored of a job -------------------------------------------------------------------------------------------


def test_a_job_that_is_finished_or_of_another_id_holds_nothing_to_go_on_from(job):
    a = job("a")
    assert a.held() == 0.0
    store(a, 0.25)
    assert a.held() == 0.25
    assert replace(a, name="b").held() == 0.0
    store(a, 1.0, Status.done)
    assert a.held() == 0.0
