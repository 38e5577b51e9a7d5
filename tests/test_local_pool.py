"""Jobs in processes of their own on this machine: what they get, what they leave, and that nothing survives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from configure import configure
from decentral.config.parsing import dump
from decentral.host.machine import num_cores
from decentral.measurements.training_run import TrainingRun
from decentral.scheduling.attempt import carry_out
from decentral.scheduling.job import Demand, Ended, ended_without_report, seen_in_directory
from decentral.scheduling.local_pool import LocalPool, Slots
from decentral.store import RunStore, Status
from table import ALGORITHMS
from toy_jobs import Counting, Toy
from waiting import PATIENCE_S, alive, until


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    with closing(LocalPool(Slots(8))) as opened:
        yield opened


@pytest.fixture
def toy(tmp_path):
    def _toy(name: str, *does: str, **more) -> Toy:
        return Toy(tmp_path, name, does or ("done",), **more)

    return _toy


def end_all(pool: LocalPool) -> dict[str, Ended]:
    """How all that runs ends, by title."""
    ended: dict[str, Ended] = {}
    deadline = time.monotonic() + PATIENCE_S
    while pool.look():
        assert time.monotonic() < deadline, "nothing ended"
        ended |= {one.job.title: one for one in pool.wait(0.2)}
    return ended


def end_of(pool: LocalPool, job: Toy) -> Ended:
    assert pool.has_room(job)
    pool.start(job)
    while True:
        for ended in pool.wait(0.2):
            if ended.job.title == job.title:
                return ended


def log(job: Toy) -> str:
    return (job.directory / "log.txt").read_text()


def test_a_job_ends_as_it_says_and_leaves_no_empty_log(pool, toy):
    assert end_of(pool, toy("a"))[1:] == (Status.done, None, "")
    assert end_of(pool, toy("b", "diverged")).status is Status.diverged
    assert not (toy("a").directory / "log.txt").exists()
    assert pool.look() == []


def test_a_failure_has_its_kind_and_reason_and_hurts_no_other_job(pool, toy):
    kinds = {"raise": ("error", "a bug"), "refuse": ("refused", "data are missing"), "full": ("disk_full", "No space"),
             "exit": ("error", "status 3"), "kill": ("killed", "SIGKILL")}  # fmt: skip
    for word in (*kinds, "done"):
        pool.start(toy(word, word))
    found = end_all(pool)
    assert found["done"].status is Status.done
    for word, (failure, reason) in kinds.items():
        assert found[word][1:3] == (Status.failed, failure) and reason in found[word].reason


def test_what_a_job_prints_and_where_it_failed_is_in_its_log(pool, toy, capfd):
    job = toy("a", "raise", "raise")
    end_of(pool, job)
    assert "it prints" in log(job) and "Traceback" in log(job)
    end_of(pool, job)
    assert log(job).count("it prints") == 2
    assert capfd.readouterr() == ("", "")


def test_a_job_sees_the_gpus_that_it_was_given(toy):
    jobs = [toy(name, "environment", needs=Demand(1, "cuda")) for name in "ab"]
    with closing(LocalPool(Slots(4, ["4", "GPU-77"]))) as pool:
        for job in jobs:
            pool.start(job)
        assert sorted(seen.place for seen in pool.look()) == ["cuda:4", "cuda:GPU-77"]
        end_all(pool)
    assert "CUDA_VISIBLE_DEVICES=4\n" in log(jobs[0]) and f"cores={max(1, num_cores() // 4)}\n" in log(jobs[0])
    assert "CUDA_VISIBLE_DEVICES=GPU-77\n" in log(jobs[1])


def test_progress_reaches_the_launcher(pool, toy):
    job = toy("a", "half")
    pool.start(job)

    def halfway() -> bool:
        pool.wait(0.1)
        return any(seen.fraction == 0.5 and "12 %" in seen.text for seen in pool.look())

    until(halfway)


def test_a_killed_job_is_noticed_at_once_and_takes_its_children_with_it(pool, toy):
    job = toy("a", "child")
    pool.start(job)
    until(lambda: (job.directory / "log.txt").exists() and log(job).endswith("\n"))
    os.kill(job.pid, signal.SIGKILL)
    ended = end_all(pool)["a"]  # long before its child would end
    assert ended.failure == "killed" and str(job.pid) in ended.reason
    until(lambda: not alive(int(log(job))))


def test_an_interrupt_is_no_failure_and_after_the_grace_it_kills(pool, toy):
    polite = toy("a", "sleep600")
    pool.start(polite)
    polite.pid  # noqa: B018 - it waits
    pool.interrupt(3600)  # it does not wait so long
    assert next(iter(end_all(pool).values()))[1:3] == (Status.interrupted, None)
    assert (RunStore.peek(polite.directory) or {})["status"] == "interrupted"
    deaf = toy("b", "sleep600")
    pool.start(deaf)
    os.kill(deaf.pid, signal.SIGSTOP)
    pool.interrupt(0.2)
    assert next(iter(end_all(pool).values()))[1:3] == (Status.interrupted, None)
    until(lambda: not alive(deaf.pid))


def test_somebody_else_at_the_same_job_is_told_apart_from_a_failure(pool, toy):
    job = toy("a", "sleep600")
    pool.start(job)
    job.pid  # noqa: B018 - it waits
    assert end_of(pool, job).status is Status.running
    other = toy("b")
    with RunStore.open(other.directory, other.id, ""):
        assert end_of(pool, other).status is Status.running
    assert end_of(pool, other).status is Status.done


def test_a_process_that_got_the_number_of_a_dead_leader_is_left_alone(pool, toy):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        job = toy("a", "done")
        pool.start(job)
        (running,) = pool._running.values()
        running.process.join()
        running.process._popen.pid = stranger.pid
        assert end_all(pool)["a"].status is Status.done
        assert stranger.poll() is None and alive(stranger.pid)
        stranger.kill()


LAUNCHER = """
import sys, time
from contextlib import closing
from pathlib import Path
from decentral.scheduling.local_pool import LocalPool
from decentral.scheduling.local_pool import Slots
from toy_jobs import Toy
if __name__ == "__main__":
    with closing(LocalPool(Slots(2))) as pool:
        pool.start(Toy(Path(sys.argv[1]), "a", ("child",)))
        pool.start(Toy(Path(sys.argv[1]), "b", ("sleep600",)))
        time.sleep(600)
"""


def test_a_launcher_that_is_killed_leaves_no_process_behind(toy, tmp_path):
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, script, tmp_path], env=environment) as launcher:
        a, b = toy("a"), toy("b")
        pids = [a.pid, b.pid]
        until(lambda: (a.directory / "log.txt").exists() and log(a).endswith("\n"))
        launcher.kill()
    until(lambda: not any(map(alive, (*pids, int(log(a))))))


def test_progress_is_read_from_the_status(tmp_path):
    for limit, fraction in (("steps=400", 0.5), ("epochs=20", 0.75)):
        job = TrainingRun(replace(configure("task=quadratics", limit), run_dir=str(tmp_path / limit)))
        assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", 0.0, "")
        with RunStore.open(job.directory, job.id, "") as store:
            store.set_status(Status.running, step=200, epoch=15.0)
        assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", fraction, "epoch 15.0")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_directory_that_another_process_writes_is_left_to_it(tmp_path, processes):
    config = configure("task=quadratics", "num_workers=4", "steps=2", "progress=false")
    config = replace(config, device="cpu", processes=processes, run_dir=str(tmp_path / "run"))
    job = TrainingRun(config)
    with RunStore.open(job.directory, job.id, dump(config)):
        report = carry_out(job)
    assert report.status is Status.running and "is being written by process" in report.reason
    assert carry_out(job).status is Status.done


@pytest.mark.parametrize("name", ["relaysgd", "allreduce", "choco"])
def test_a_run_keeps_its_id_where_the_launcher_chooses_its_processes(name, tmp_path):
    case = ALGORITHMS[name]
    overrides = [*case.nets[0].overrides(tmp_path), f"algo={name}", f"task={case.task}", *case.overrides]
    job = TrainingRun(configure(*overrides))
    placed = [job.placed(processes) for processes in (1, 2, 64)]
    assert [one.id for one in placed] == [job.id] * 3 and {one.directory for one in placed} == {job.directory}


def test_a_process_that_is_gone_was_killed_unless_the_directory_or_the_user_says_otherwise(tmp_path):
    job = Counting(str(tmp_path))
    assert ended_without_report(job, "why")[1:] == ("failed", "killed", "why")
    assert ended_without_report(job, "why", stopped=True)[1:] == ("interrupted", None, "")
    with RunStore.open(job.directory, job.id, "") as store:
        store.set_status(Status.done)
    assert ended_without_report(job, "why")[1:] == ("done", None, "")
