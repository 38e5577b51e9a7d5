"""Runs as SLURM jobs: with submitit's own processes in place of SLURM, and with commands that play SLURM."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

import fake_slurm
from configure import configure
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.scheduling.job import Ended, Pool
from decentral.scheduling.launchers.ray import Ray
from decentral.scheduling.launchers.slurm import Slurm, Where
from decentral.store import RunStore, find_runs, read_metrics
from punisher import command
from toy_jobs import Counting
from waiting import PATIENCE_S, alive, all_ended, stands_still, until

LOCAL = Slurm(cluster=Where.local)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def jobs_find_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)  # not 15, for jobs that end without a result


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A SLURM on the path; the folder with the state of its jobs."""
    jobs = fake_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr("submitit.SlurmJob.watcher", SlurmInfoWatcher(delay_s=1))
    return jobs


@contextmanager
def holding(jobs: Path) -> Iterator[None]:
    """No job starts meanwhile."""
    (jobs / "hold").touch()
    yield
    (jobs / "hold").unlink()


def started(job: Counting) -> bool:
    return (job.directory / "numbers").exists()


def run(results: Path, *overrides: str, name: str = "") -> TrainingRun:
    config = configure("task=quadratics", "topology=ring", "algo=dpsgd", "num_workers=4", "progress=false", *overrides)
    return TrainingRun(replace(config, device="cpu", processes="1", results_dir=str(results)), name or overrides[-1])


def metrics(job: TrainingRun) -> list[dict]:
    return [{key: row[key] for key in row if key != "wall_s"} for row in read_metrics(job.directory)]


def test_runs_are_done_and_what_fails_takes_nothing_with_it(tmp_path):
    runs = [run(tmp_path, "steps=50", f"seed={seed}") for seed in (1, 2)]
    toys = [Counting(str(tmp_path), fate=fate) for fate in ("error", "refused", "killed")]
    with closing(replace(LOCAL).open(tmp_path)) as pool:
        for job in (*runs, *toys):
            pool.start(job)
        until(lambda: pool.look()[0].place.startswith("local job "))
        ended = all_ended(pool, 5)
    assert [ended[job.title].status for job in runs] == ["done", "done"]
    assert [job.finished() for job in runs] == ["done", "done"]
    failures = {job.fate: ended[job.title] for job in toys}
    assert {fate: (one.status, one.failure) for fate, one in failures.items()} == {
        "error": ("failed", "error"), "refused": ("failed", "refused"), "killed": ("failed", "killed")
    }  # fmt: skip
    assert failures["error"].reason.endswith("ArithmeticError: 1 is not 2")
    assert failures["refused"].reason == "steps=10 is refused."
    assert "ended without a result" in failures["killed"].reason
    assert not list((tmp_path / "submitted").glob("*.json"))


def stopped(job: TrainingRun) -> int:
    """The process of a run; waits until it stands still."""
    pids: list[int] = []

    def look() -> bool:
        pids.append(int((RunStore.peek(job.directory) or {}).get("pid", 0)))
        return stands_still(pids[-1])

    until(look)
    return pids[-1]


def test_a_preempted_run_goes_on_from_its_checkpoint_to_the_same_result(tmp_path, start, monkeypatch):
    """It stands still while it is preempted, and again when it has gone on for a while."""
    settings = ["steps=600", "evaluation.every_epochs=50"]
    undisturbed = start("task=quadratics", "topology=ring", "algo=dpsgd", "num_workers=4", *settings)
    job = run(tmp_path, *settings)
    stops = [{"rank": 0, "step": step, "kind": "stop"} for step in (300, 400)]
    monkeypatch.setenv("DECENTRAL_FAULTS", json.dumps(stops))
    with closing(replace(LOCAL).open(tmp_path)) as pool:
        pool.start(job)
        first = stopped(job)
        os.kill(first, signal.SIGUSR2)
        os.kill(first, signal.SIGCONT)
        until(lambda: not alive(first))
        second = stopped(job)
        assert not pool.wait(0.0), "a job that is back in the queue has not ended"
        os.kill(second, signal.SIGCONT)
        ended = all_ended(pool)
    assert ended[job.title].status == "done"
    (log,) = (tmp_path / "submitted").glob("*_log.out")
    assert log.read_text().count("Starting with JobEnvironment") == 2
    assert metrics(job) == undisturbed.rows


def test_jobs_outlive_a_launcher_that_is_killed_and_the_next_one_finds_them(tmp_path, slurm):
    job = Counting(str(tmp_path), steps=50, fate="held")
    Slurm().open(tmp_path).start(job)
    until(lambda: started(job))
    with closing(Slurm().open(tmp_path)) as pool:
        assert pool.started_before(job)
        pool.start(job)
        job.let_go()
        assert all_ended(pool)[job.title].status == "done"
        assert not pool.started_before(job)
    assert job.written == list(range(50)) and len(list(slurm.glob("*.script"))) == 1, "it was submitted again"


def test_slurm_requeues_preempted_jobs(tmp_path, slurm):
    """It sends SIGTERM first and then SIGUSR2, which must not break off a run that is writing its checkpoint."""
    fates = ("preempted", "slow to stop")
    jobs = [Counting(str(tmp_path), steps=50, fate=fate) for fate in fates]
    killed = Counting(str(tmp_path), fate="killed")
    settings = Slurm(partition="gpu", cpus=3, gpus=2, memory_gb=1.5, sbatch=["account=abc", "--exclusive"])
    with closing(settings.open(tmp_path)) as pool:
        with holding(slurm):
            for job in (*jobs, killed):
                pool.start(job)
            until(lambda: pool.look()[0].place == "waiting for slurm job 101")
        until(lambda: all(map(started, jobs)) and len(list(slurm.glob("*.task"))) >= 2)
        until(lambda: pool.look()[0].place == "slurm job 101")
        for number, job in enumerate(jobs, start=101):
            SlurmJob(tmp_path / "submitted", str(number))._interrupt()
            job.let_go()
        ended = all_ended(pool, 3)
    for number, job in enumerate(jobs, start=101):
        assert ended[job.title].status == "done" and job.written == list(range(50))
        assert (slurm / f"{number}.requeued").exists()
    assert ended[killed.title].failure == "killed" and "slurm job 103 ended" in ended[killed.title].reason
    script = (slurm / "101.script").read_text()
    for option in ("partition=gpu", "cpus-per-task=3", "gpus-per-node=2", "mem=1536MB", "account=abc", "time=240",
                   "signal=USR2@120", "requeue", "exclusive"):  # fmt: skip
        assert f"#SBATCH --{option}\n" in script


def test_slurm_jobs_are_cancelled_by_ctrl_c_and_by_hand(tmp_path, slurm):
    by_hand, running, waiting = (Counting(str(tmp_path), steps=steps) for steps in (5000, 5001, 5002))
    with closing(Slurm().open(tmp_path)) as pool:
        for job, number in ((by_hand, 101), (running, 102)):
            pool.start(job)
            until(lambda job=job, number=number: started(job) and (slurm / f"{number}.task").exists())
        fake_slurm.scancel(slurm, "101")
        cancelled = all_ended_but(pool, 1)
        assert (cancelled.job, cancelled.status, cancelled.failure) == (by_hand, "failed", "error")
        assert cancelled.reason == "slurm job 101 was cancelled"
        with holding(slurm):
            pool.start(waiting)
            pool.interrupt(grace_s=PATIENCE_S)
            ended = all_ended(pool, 2)
    assert {one.status for one in ended.values()} == {"interrupted"}
    assert running.written and not started(waiting)


def all_ended_but(pool: Pool, left: int) -> Ended:
    until(lambda: len(pool.look()) > left)
    ended: list[Ended] = []
    until(lambda: ended.extend(pool.wait(1.0)) or ended)
    assert len(pool.look()) == left
    return ended[0]


def test_a_single_run_is_submitted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=quadratics", "topology=ring", "algo=dpsgd", "num_workers=4", "steps=20", "device=cpu"]
    assert command(*words, "launcher=slurm", "launcher.cluster=local") == 0
    (found,) = find_runs(tmp_path / "results")
    assert found.status == "done" and (found.path / "learning_curves.png").exists()
    assert list((tmp_path / "results" / "submitted").glob("*_0_log.out"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    Slurm(cluster=Where.local).check()
    with pytest.raises(ConfigError, match=r"needs sbatch, which is missing here: .* launcher.cluster=local"):
        Slurm().check()
    monkeypatch.setattr("decentral.host.machine.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package 'submitit': pip install '\.\[slurm\]'"):
        Slurm().check()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ray(home) -> Iterator[Pool]:
    """Ray takes seconds to start: once for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(key, "")  # so that what is set meanwhile does not stay
            patch.delenv(key)
        handler = signal.getsignal(signal.SIGTERM)
        with closing(Ray(address="local").open(Path("unused"))) as ray:
            assert signal.getsignal(signal.SIGTERM) == handler
            yield ray


def test_ray_runs_are_done_and_a_crash_takes_nothing_with_it(ray, tmp_path, start):
    settings = ("steps=50", "evaluation.every_epochs=10")
    runs = [run(tmp_path, *settings, f"seed={seed}") for seed in (0, 1)]
    toys = [Counting(str(tmp_path), fate=fate) for fate in ("killed", "error", "refused")]
    for job in (*runs, *toys):
        assert ray.has_room(job)
        ray.start(job)
    ended = all_ended(ray, 5)
    assert [ended[job.title].status for job in runs] == ["done", "done"]
    undisturbed = start("task=quadratics", "topology=ring", "algo=dpsgd", "num_workers=4", *settings)
    assert metrics(runs[0]) == undisturbed.rows
    failures = {job.fate: ended[job.title] for job in toys}
    assert {fate: (one.status, one.failure) for fate, one in failures.items()} == {
        "killed": ("failed", "killed"), "error": ("failed", "error"), "refused": ("failed", "refused")
    }  # fmt: skip
    assert "its Ray worker died" in failures["killed"].reason
    assert failures["error"].reason.endswith("ArithmeticError: 1 is not 2")


def test_an_interrupted_pool_lets_runs_write_a_checkpoint(ray, tmp_path):
    running = Counting(str(tmp_path), steps=5000)
    waiting = [Counting(str(tmp_path), steps=steps) for steps in range(5001, 5001 + 2 * (os.cpu_count() or 1))]
    ray.start(running)
    until(lambda: (running.directory / "numbers").exists())
    for job in waiting:
        ray.start(job)
    assert any(one.place == "waiting for ray" for one in ray.look())
    ray.interrupt(grace_s=PATIENCE_S)
    ended = all_ended(ray, 1 + len(waiting))
    assert {one.status for one in ended.values()} == {"interrupted"}
    facts = RunStore.peek(running.directory)
    assert facts["status"] == "interrupted" and running.written == list(range(facts["step"]))
