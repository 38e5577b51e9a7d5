"""The scheduler (on a pool that the tests play): what it starts, retries and leaves alone; slots of cores and GPUs."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.scheduling import board as boards
from decentral.scheduling import scheduler
from decentral.scheduling.board import Board, board
from decentral.scheduling.job import Demand, Ended, Job, Pool, Seen
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.local_pool import Seat, Slots
from decentral.scheduling.scheduler import Tally, schedule
from decentral.store import RunStore, Status
from decentral.store.files import try_lock
from toy_jobs import Toy

WORDS = {
    "done": (Status.done, None),
    "diverged": (Status.diverged, None),
    **{word: (Status.failed, word) for word in ("killed", "lost", "out_of_memory", "disk_full", "refused", "error")},
}


@dataclass
class Played(Launcher, Pool):
    """A launcher and its pool. Jobs end in the order in which they were started, one at each `wait`, as `does` says."""

    room: int = 2
    retries: int = 2
    log: list[str] = field(default_factory=list)
    beside: dict[str, int] = field(default_factory=dict)
    running: list[Job] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    on_wait: Callable[[], object] = lambda: None
    interrupted: bool = False
    shares_devices: bool = True

    def open(self, results_dir: Path) -> Pool:
        self.log.append("open")
        return self

    def has_room(self, job: Job) -> bool:
        return sum(one.demand.device == job.demand.device for one in self.running) < self.room

    def start(self, job: Job) -> None:
        self.log.append(job.title)
        self.beside[job.title] = len(self.running)
        self.running.append(job)

    def wait(self, timeout_s: float) -> list[Ended]:
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
    return schedule(
        lambda: [job for job in jobs if job.finished() is None], pool, Path("unused"), shown or board("test", False)
    ), pool.log


def count(tally: Tally, status: Status) -> int:
    return sum(ended.status is status for ended in tally.ended)


def test_jobs_start_in_order_while_there_is_room_and_finished_ones_do_not(toy):
    pool, jobs = Played(room=2), [toy(name) for name in "abcde"]
    finish(jobs[4])
    tally, log = run(jobs, pool)
    assert log == ["open", *"abcd", "close"] and max(pool.beside.values()) == 1
    assert not tally.interrupted and count(tally, Status.done) == 4
    assert run(jobs)[1] == [], "without work nothing is opened"


def test_external_failures_are_retried_and_others_are_not(toy):
    for failure in ("killed", "lost"):
        tally, log = run([toy(failure, failure)], Played(retries=2))
        assert log.count(failure) == 3 and [ended.failure for ended in tally.failed] == [failure]
        tally, log = run([toy(f"{failure} twice", failure, failure, "done")], Played(retries=2))
        assert log.count(f"{failure} twice") == 3 and not tally.failed
    for how in ("diverged", "refused", "error"):
        tally, log = run([toy(how, how), toy(f"beside {how}")])
        assert log.count(how) == 1 and count(tally, Status.done) == 1 and len(tally.ended) == 2


def test_three_refusals_for_one_reason_stop_the_start_of_others(toy):
    tally, log = run([toy(name, "refused") for name in "abcdef"], Played(room=1))
    assert log == ["open", *"abc", "close"] and len(tally.failed) == 3
    tally, log = run([toy("g"), *(toy(name, "refused") for name in "hijk")], Played(room=1))
    assert log == ["open", *"ghijk", "close"], "one that was carried out shows that the reason is not the same for all"


def test_out_of_memory_is_retried_once_alone(toy):
    pool = Played(room=2)
    tally, log = run([toy("a", "out_of_memory", "done"), *(toy(name) for name in "bcd")], pool)
    assert log == ["open", *"abcd", "a", "close"] and pool.beside["a"] == 0 and not tally.failed
    tally, log = run([toy("e", "out_of_memory"), toy("f")])
    assert log.count("e") == 2 and [ended.failure for ended in tally.failed] == ["out_of_memory"]


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


def test_a_job_that_does_not_know_what_it_needs_fails_alone(toy, tmp_path):
    jobs = [toy("a"), Confused(tmp_path, "b", wrong="demand"), Confused(tmp_path, "c", wrong="finished"), toy("d")]

    class Listed:
        def pending(self):
            return [job for job in jobs if not (job.directory / "status.json").exists()]

    pool = Played(room=3)
    tally = schedule(Listed().pending, pool, Path("unused"), board("test", False))
    assert pool.log == ["open", "a", "d", "close"] and count(tally, Status.done) == 2
    assert [(ended.job, ended.failure) for ended in tally.failed] == [(jobs[1], "refused"), (jobs[2], "error")]


def test_an_error_of_the_source_is_raised_after_running_jobs_have_written_checkpoints(toy):
    for error in (ConfigError("line 3 is damaged."), ZeroDivisionError()):
        kind = type(error).__name__
        first, second = toy(f"first {kind}"), toy(f"second {kind}")

        class Broken:
            def pending(self, jobs=(first, second), error=error):
                if jobs[0].finished():
                    raise error
                return jobs

        pool, stream = Played(), io.StringIO()
        with pytest.raises(type(error)) as raised:
            schedule(Broken().pending, pool, Path("unused"), board("study", stream=stream))
        assert raised.value is error
        assert pool.interrupted and pool.log == ["open", first.name, second.name, "close"] and not pool.running
        assert "stopping: the remaining jobs cannot be determined" in stream.getvalue()
        assert f"interrupted {second.name}" in stream.getvalue()


def test_a_job_that_waits_for_a_gpu_lets_one_for_the_cpu_pass(toy):
    _, log = run([*(toy(name, needs=Demand(1, "cuda")) for name in "ab"), toy("c")], Played(room=1))
    assert log == ["open", "a", "c", "b", "close"]


def test_a_job_of_another_launcher_is_left_alone_until_it_is_finished_or_free(toy):
    for finishes in (True, False):
        theirs, ours = toy(f"theirs {finishes}"), toy(f"ours {finishes}")
        theirs.directory.mkdir()
        locks = [os.open(theirs.directory / "log.txt", os.O_RDWR | os.O_CREAT)]
        assert try_lock(locks[0])
        pool, shown = Played(), board("test", False)

        def waits(
            number: int, theirs=theirs, locks=locks, finishes=finishes, log=("open", ours.name), pool=pool
        ) -> None:
            assert number == 1 and pool.log == [*log]
            if locks:
                if finishes:
                    finish(theirs)
                os.close(locks.pop())

        shown.waits = waits  # type: ignore[method-assign]
        tally, log = run([theirs, ours], pool, shown)
        assert log == ["open", ours.name, *([] if finishes else [theirs.name]), "close"]
        assert len(tally.ended) == (1 if finishes else 2)


def test_the_first_ctrl_c_lets_jobs_write_checkpoints(toy):
    pool = Played(on_wait=lambda: pool.interrupted or os.kill(os.getpid(), signal.SIGINT))
    tally, log = run([toy(name) for name in "abc"], pool)
    assert tally.interrupted and log == ["open", "a", "b", "close"], "c is not started any more"
    assert [ended.status for ended in tally.ended] == [Status.done, Status.interrupted]


# -- what the user sees ------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_and_bars_count_the_jobs_that_are_known_so_far(toy, monkeypatch):
    first, later = toy("a"), [toy("b"), toy("c")]

    class Search:
        def pending(self):
            return [job for job in (first, *(later if first.finished() else [])) if not job.finished()]

    stream = io.StringIO()
    schedule(Search().pending, Played(room=1), Path("unused"), board("study", stream=stream))
    heads = [line.partition("] ")[0] for line in stream.getvalue().splitlines()]
    assert heads == [f"[study: {words}" for words in ("0 of 1", "1 of 1", "1 of 3", "2 of 3", "2 of 3", "3 of 3")]

    monkeypatch.setattr(boards, "LINE_PERIOD_S", 0.0)
    stream = io.StringIO()
    shown = board("sweep", stream=stream)
    shown.show([Seen(toy("a"), "cpu", 0.9, "epoch 3"), Seen(toy("b"), "waiting for slurm")], [toy("c"), toy("d")])
    shown.show([Seen(toy(name), "cpu") for name in "abcdef"], [])
    lines = [line.partition("running   ")[2] for line in stream.getvalue().splitlines()]
    assert lines[0] == "a (90 %  epoch 3), b (waiting for slurm); 2 not started"
    assert lines[1] == "a (cpu), b (cpu), c (cpu), d (cpu), and 2 more"

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with board("sweep", stream=(terminal := Terminal())) as shown:
        shown.expect(4)
        shown.ended(Ended(toy("d"), Status.done), False)
        shown.show([Seen(toy("a"), "cpu", 0.5, "[epoch 3]"), Seen(toy("b"), "cuda:0")], [toy("c")])
    drawn = terminal.getvalue()
    assert "1 done  2 running  1 not started  0:00 elapsed" in drawn and "38%" in drawn
    assert "50%" in drawn and "cpu  [epoch 3]" in drawn and "cuda:0" in drawn


# -- slots -------------------------------------------------------------------------------------------------------------

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


def test_cores_are_taken_given_back_and_shared_out(toy):
    slots = Slots(2)
    one, two = slots.seat(Demand(), 9), slots.seat(Demand(2), 9)
    assert (one, two) == (Seat(1), Seat(2))
    taken = slots.take(one)
    assert slots.seat(Demand(2), 9) is None and slots.seat(Demand(), 9) == Seat(1)
    slots.free(taken)
    assert slots.seat(Demand(2), 9) == Seat(2)
    slots = Slots(8)
    assert [slots.seat(Demand(None), waiting).processes for waiting in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    slots.take(Seat(6))
    assert slots.seat(Demand(None), 1) == Seat(2)
    slots.take(Seat(2))
    assert slots.seat(Demand(None), 1) is None


def test_jobs_that_are_larger_than_the_machine_or_measure_times_run_alone():
    for demand in (Demand(4), Demand(1, alone=True)):
        slots = Slots(2)
        beside = slots.take(Seat(1))
        assert slots.seat(demand, 1) is None
        slots.free(beside)
        slots.take(slots.seat(demand, 1))
        assert slots.seat(Demand(), 1) is None


def test_runs_share_a_gpu_until_its_memory_is_used_up():
    """The first one is alone until what it takes has been seen; the memory of other users is not ours to give."""
    machine = Machine()
    for _ in range(3):
        started = machine.start()
        assert started is not None and machine.start() is None
        machine.uses(started, 3)
    assert machine.start() is None
    machine = Machine()
    machine.uses(machine.start(), 3)
    machine.free["0"] = 1 * GIB
    machine.now += 2
    assert machine.start() is None


def test_a_run_of_several_processes_gets_as_many_gpus_and_no_gpu_twice():
    machine = Machine(gpus=4)
    assert machine.start(Demand(3, "cuda")).seat.gpus == ("0", "1", "2")
    assert machine.start(Demand(2, "cuda")) is None
    assert machine.start(Demand(1, "cuda")).seat.gpus == ("3",)


def test_a_job_whose_gpus_are_not_there_is_refused_however_full_the_machine_is():
    for gpus, demand, complaint in (
        (1, Demand(8, "cuda"), "needs 8 GPUs, one per process, but 1 can be used here"),
        (2, Demand(1, "cuda:3"), "device=cuda:3 does not exist: this machine has cuda:0 to cuda:1"),
        (0, Demand(None, "cuda"), "device=cuda needs a GPU, and none is visible here"),
    ):
        machine = Machine(gpus)
        for _ in range(2):
            with pytest.raises(ConfigError, match=complaint):
                machine.slots.seat(demand, 1)
            machine.start(Demand(1, "cpu"))
