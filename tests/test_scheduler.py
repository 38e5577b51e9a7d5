"""The scheduler: what it starts, what it tries again, what it leaves alone (on a pool that the tests play)."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.host import interrupt
from decentral.scheduling import scheduler
from decentral.scheduling.board import Board, board
from decentral.scheduling.job import Demand, Job
from decentral.scheduling.launchers.launcher import Launcher
from decentral.scheduling.pool import Ended, NoRoom, Pool, Seen
from decentral.scheduling.scheduler import Fixed, Tally, schedule
from decentral.store import RunStore, Status
from decentral.store.files import try_lock
from decentral.terminal.display import display
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


def test_a_job_that_is_asked_for_twice_runs_once(toy):
    assert run([toy("a"), toy("a")])[1] == ["open", "a", "close"]


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


def test_out_of_memory_is_final_where_a_job_had_its_devices_to_itself(toy):
    tally, log = run([toy("a", "out_of_memory"), toy("b")], Played(shares_devices=False))
    assert log == ["open", "a", "b", "close"]
    assert [ended.failure for ended in tally.failed] == ["out_of_memory"] and count(tally, Status.done) == 1


def test_a_full_disk_stops_everything_and_says_what_to_do(toy):
    stream = io.StringIO()
    tally, log = run([toy("a", "disk_full"), *(toy(name) for name in "bcd")], shown=board("test", stream=stream))
    assert log == ["open", "a", "b", "close"]
    assert [ended.status for ended in tally.ended] == [Status.failed, Status.interrupted]
    assert "the disk is full" in stream.getvalue() and "same command goes on" in stream.getvalue()


def test_a_pool_that_cannot_start_a_job_fails_that_job_alone(toy):
    class Broken(Played):
        def start(self, job: Job) -> None:
            if job.title == "a":
                raise OSError("no more processes")
            super().start(job)

    tally, _ = run([toy("a"), toy("b")], Broken())
    assert [ended.job.title for ended in tally.failed] == ["a"] and count(tally, Status.done) == 1


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


@pytest.mark.parametrize("says", ["no room", "refused"])
def test_a_job_that_never_fits_is_refused_and_the_others_go_on(toy, says):
    class Small(Played):
        def has_room(self, job: Job) -> bool:
            if job.demand.processes == 1:
                return super().has_room(job)
            if says == "refused":
                raise ConfigError("processes=8 needs 8 GPUs, here is 1.")
            return False

    class Impatient(Board):
        def waits(self, count: int) -> None:
            raise AssertionError("nobody else is at it")

    tally, log = run([toy("a", needs=Demand(8)), toy("b"), toy("c")], Small(room=1), Impatient())
    assert log == ["open", "b", "c", "close"]
    assert [(ended.job.title, ended.failure) for ended in tally.failed] == [("a", "refused")]


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
    assert "stopping, since it cannot be said what is left" in stream.getvalue()
    assert "interrupted second" in stream.getvalue()


def test_the_source_is_asked_again_after_every_job(toy):
    first, second = toy("first"), toy("second")

    class Search:
        def pending(self):
            return [job for job in (first, *([second] if first.finished() else [])) if not job.finished()]

    pool = Played()
    schedule(Search(), pool, Path("unused"), Board())
    assert pool.log == ["open", "first", "second", "close"]


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


def test_a_job_that_another_launcher_was_faster_to_start_is_no_failure(toy):
    tally, log = run([toy("a", "taken", "taken", "taken", "taken", "done"), toy("b")])
    assert log.count("a") == 5
    assert count(tally, Status.done) == 2 and not tally.failed


def test_the_first_ctrl_c_lets_jobs_write_checkpoints(toy):
    pool = Played(on_wait=lambda: pool.interrupted or os.kill(os.getpid(), signal.SIGINT))
    tally, log = run([toy(name) for name in "abc"], pool)
    assert tally.interrupted
    assert log == ["open", "a", "b", "close"], "c is not started any more"
    assert [ended.status for ended in tally.ended] == [Status.done, Status.interrupted]


def test_the_second_ctrl_c_stops_at_once(toy, monkeypatch):
    monkeypatch.setattr(interrupt, "AGAIN_S", 0.0)

    def insist():
        os.kill(os.getpid(), signal.SIGINT)
        if pool.interrupted:
            os.kill(os.getpid(), signal.SIGINT)

    pool = Played(on_wait=insist)
    tally, log = run([toy("a")], pool)
    assert tally.interrupted and log[-1] == "close"


# -- what the user sees ------------------------------------------------------------------------------------------------


def test_without_a_terminal_every_event_is_a_line(toy):
    stream = io.StringIO()
    run([toy("a", "killed", "done"), toy("b", "diverged")], Played(room=1), board("sweep", stream=stream))
    words = [line.partition("] ")[2].split()[:2] for line in stream.getvalue().splitlines()]
    assert words == [["started", "a"], ["retrying", "a:"], ["started", "a"], ["done", "a"], ["started", "b"],
                     ["diverged", "b"]]  # fmt: skip


def test_a_line_says_how_many_have_ended_of_those_that_are_known_so_far(toy):
    first, later = toy("a"), [toy("b"), toy("c")]

    class Search:
        def pending(self):
            return [job for job in (first, *(later if first.finished() else [])) if not job.finished()]

    stream = io.StringIO()
    schedule(Search(), Played(room=1), Path("unused"), board("study", stream=stream))
    heads = [line.partition("] ")[0] for line in stream.getvalue().splitlines()]
    assert heads == [f"[study: {words}" for words in ("0 of 1", "1 of 1", "1 of 3", "2 of 3", "2 of 3", "3 of 3")]


def test_after_ctrl_c_the_jobs_that_were_not_begun_are_still_left_and_those_that_were_stopped_are_not_done(toy):
    class Watched(Board):
        left: tuple[str, ...] = ()

        def show(self, seen: Sequence[Seen], waiting: Sequence[Job]) -> None:
            super().show(seen, waiting)
            self.left = tuple(job.title for job in waiting)

    stream = io.StringIO()
    pool = Played(on_wait=lambda: pool.interrupted or os.kill(os.getpid(), signal.SIGINT))
    shown = Watched("study", display(stream=stream))
    run([toy(name) for name in "abcd"], pool, shown)
    assert shown.left == ("c", "d")
    assert stream.getvalue().splitlines()[-1].startswith("[study: 1 of 4] interrupted b")


def test_a_failure_line_says_which_job_why_where_its_log_is_and_how_to_run_it_again(toy):
    @dataclass(frozen=True)
    class Known(Toy):
        command: str = "decentral-run lr=1"

    job = Known(toy("a").folder, "a", ("error",))
    job.directory.mkdir()
    (job.directory / "log.txt").write_text("a traceback")
    stream = io.StringIO()
    run([job], shown=board("sweep", stream=stream))
    line = stream.getvalue().splitlines()[-1]
    for part in (job.id, "error", "as the test says", str(job.directory / "log.txt"), "decentral-run lr=1"):
        assert part in line


def test_a_terminal_gets_a_table_of_the_running_jobs(toy, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for key, value in {"TERM": "xterm", "COLUMNS": "160", "LINES": "24"}.items():
        monkeypatch.setenv(key, value)
    stream = Terminal()
    with board("sweep", stream=stream) as shown:
        run([toy(f"job {name}") for name in "abc"], Played(room=2), shown)
    text = stream.getvalue()
    for part in ("job a", "here", "50 %", "epoch 1", "2 running", "3 done", "elapsed", "to go"):
        assert part in text


def test_a_board_that_is_not_wanted_and_one_that_nobody_reads_do_no_harm(toy):
    stream = io.StringIO()
    run([toy("a")], shown=board("sweep", enabled=False, stream=stream))
    assert stream.getvalue() == ""
    unread = board("sweep", stream=stream)
    stream.close()
    assert len(run([toy("b", "error")], shown=unread)[0].failed) == 1


def test_a_cluster_that_takes_no_more_jobs_now_gets_them_when_one_has_ended(toy):
    pool, stream = Played(room=4, takes=2), io.StringIO()
    tally, _ = run([toy(name) for name in "abcde"], pool, board("sweep", stream=stream))
    assert count(tally, Status.done) == 5 and pool.log[1:3] == ["a", "b"] and max(pool.beside.values()) == 1
    assert "it takes no more than 2" in stream.getvalue()
