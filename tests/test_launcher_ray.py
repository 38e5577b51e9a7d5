"""Runs as tasks of a Ray cluster: a real one, of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from configure import configure
from counting_jobs import Counting
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.scheduling.launchers.ray import Ray
from decentral.scheduling.pool import Pool
from decentral.store import RunStore, read_metrics
from waiting import PATIENCE_S, all_ended, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def pool(home) -> Iterator[Pool]:
    """Ray takes seconds to start: once for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
            patch.setenv(key, "")  # so that what is set meanwhile does not stay
            patch.delenv(key)
        handler = signal.getsignal(signal.SIGTERM)
        with Ray(address="local").open(Path("unused")) as pool:
            assert signal.getsignal(signal.SIGTERM) == handler
            yield pool


def test_runs_are_done_and_a_crash_takes_nothing_with_it(pool, tmp_path, start):
    settings = ("task=quadratics", "topology=ring", "algo=dpsgd", "num_workers=4", "steps=50")
    configs = [configure(*settings, f"seed={seed}", "progress=false") for seed in (0, 1)]
    runs = [
        TrainingRun(replace(config, device="cpu", processes="1", results_dir=str(tmp_path)), f"seed {config.seed}")
        for config in configs
    ]
    toys = [Counting(str(tmp_path), fate=fate) for fate in ("killed", "error", "refused")]
    for job in (*runs, *toys):
        assert pool.has_room(job)
        pool.start(job)
    ended = all_ended(pool, 5)
    assert [ended[job.title].status for job in runs] == ["done", "done"]
    undisturbed = start(*settings)
    rows = [{key: row[key] for key in row if key != "wall_s"} for row in read_metrics(runs[0].directory)]
    assert rows == undisturbed.rows
    failures = {job.fate: ended[job.title] for job in toys}
    assert {fate: (one.status, one.failure) for fate, one in failures.items()} == {
        "killed": ("failed", "killed"), "error": ("failed", "error"), "refused": ("failed", "refused")
    }  # fmt: skip
    assert "its Ray worker died" in failures["killed"].reason
    assert failures["error"].reason.endswith("ArithmeticError: 1 is not 2")


def test_a_killed_run_goes_on_from_where_it_was(pool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Counting("relative", steps=100, fate="held")
    pool.start(job)
    until(lambda: (job.directory / "numbers").exists())
    assert pool.look()[0].place.startswith("ray on ")
    os.kill(RunStore.peek(job.directory)["pid"], signal.SIGKILL)
    assert all_ended(pool)[job.title].failure == "killed"
    job.let_go()
    pool.start(job)
    assert all_ended(pool)[job.title].status == "done"
    assert job.written[-1] == 99


def test_ray_gets_no_files_of_its_own_in_the_home_folder(pool, home):
    assert not list(home.rglob("*"))


def test_an_interrupted_pool_lets_runs_write_a_checkpoint(pool, tmp_path):
    running = Counting(str(tmp_path), steps=5000)
    waiting = [Counting(str(tmp_path), steps=steps) for steps in range(5001, 5001 + 2 * (os.cpu_count() or 1))]
    pool.start(running)
    until(lambda: (running.directory / "numbers").exists())
    for job in waiting:
        pool.start(job)
    assert any(one.place == "waiting for ray" for one in pool.look())
    pool.interrupt(grace_s=PATIENCE_S)
    ended = all_ended(pool, 1 + len(waiting))
    assert {one.status for one in ended.values()} == {"interrupted"}
    facts = RunStore.peek(running.directory)
    assert facts["status"] == "interrupted" and running.written == list(range(facts["step"]))


def test_a_job_that_takes_times_is_refused(pool, tmp_path):
    with pytest.raises(ConfigError, match="launcher=ray runs jobs side by side, but done at 1 takes times"):
        pool.start(Counting(str(tmp_path), steps=1, alone=True))


def test_a_cluster_that_is_not_there_is_named(monkeypatch):
    from decentral.scheduling import ray_pool

    class Absent:
        def init(self, **_: object) -> None:
            raise ConnectionError("Could not find any running Ray instance.\nMore.")

    with pytest.raises(ConfigError, match=r"launcher.address=auto cannot be reached \(Could not find any running Ray"):
        ray_pool._connect(Absent(), "auto")


def test_what_makes_no_sense_is_refused(monkeypatch):
    for wrong, shown in (({"cpus": 0}, "cpus=0"), ({"gpus": 1.5}, "gpus=1.5"), ({"address": ""}, "address=")):
        with pytest.raises(ConfigError, match=f"launcher.{shown}"):
            Ray(**wrong)
    Ray().check()
    monkeypatch.setattr("decentral.host.packages.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package 'ray': pip install 'decentral\[ray\]'"):
        Ray().check()
