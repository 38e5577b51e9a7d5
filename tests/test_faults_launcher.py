"""Runs survive the death of their launcher, signals, bad data and odd surroundings; see test_faults_processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from punisher import Meanwhile, below, command, newest_checkpoint, same, status

pytestmark = pytest.mark.timeout(120)

RUN = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "steps=300",
    "eval_every_epochs=10", "trace=true", "processes=2", "checkpoint_every_s=0", "progress=false", "device=cpu",
    "network.timeout_s=20",
]  # fmt: skip
ENDLESS = [*RUN, "trace=false", "steps=1000000"]


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    with mock.patch("decentral.report.pictures.draw"):
        yield


def launcher(*arguments: str, **environment: str) -> subprocess.Popen:
    """`decentral-run` in a process of its own."""
    whole = [sys.executable, "-m", "decentral.cli", *arguments]
    return subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )


def wait_for_checkpoint(directory: Path, process: subprocess.Popen, after: int = -1) -> None:
    while newest_checkpoint(directory) <= after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers_of(process: subprocess.Popen) -> list[int]:
    """The forks of its fork server."""
    return [pid for pid in below(process.pid) if parent(pid) != process.pid]


def are_gone_soon(pids: list[int]) -> None:
    began = time.monotonic()
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() - began < 20, left  # it takes 0.1 s on an idle machine
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_4_nobody_outlives_a_launcher_that_is_killed_and_the_same_command_goes_on(tmp_path):
    """One of the workers is stopped at that moment, and the fork server has been killed before."""
    directory = tmp_path / "run"
    process = launcher(*RUN, f"run_dir={directory}")
    wait_for_checkpoint(directory, process)
    workers = workers_of(process)
    os.kill(parent(workers[0]), signal.SIGKILL)  # the fork server
    are_gone_soon(workers)
    wait_for_checkpoint(directory, process, newest_checkpoint(directory))
    os.kill(workers_of(process)[0], signal.SIGSTOP)
    family = below(process.pid)
    process.send_signal(signal.SIGKILL)
    are_gone_soon(family)
    told = process.communicate()[1]
    assert "died together with the process that had started it; restarting from step" in told
    assert status(directory)["status"] == "running" and status(directory)["restarts"] == 1
    assert command(*RUN, f"run_dir={directory}") == 0
    assert command(*RUN, f"run_dir={tmp_path / 'straight'}") == 0
    same(directory, tmp_path / "straight")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_17_a_signal_writes_a_checkpoint_and_ends_the_run_within_seconds(tmp_path, number):
    told: list[float] = []

    def tell(_: list[int]) -> None:
        told.append(time.monotonic())
        os.kill(os.getpid(), number)

    meanwhile = Meanwhile(tmp_path / "run", tell)
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert time.monotonic() - told[0] < 15  # it takes 0.2 s on an idle machine
    assert meanwhile.nobody_is_left()
    facts = status(tmp_path / "run")
    assert facts["status"] == "interrupted" and facts["step"] == newest_checkpoint(tmp_path / "run") > 0


def test_17_the_second_ctrl_c_ends_at_once_what_the_first_one_could_not(tmp_path):
    told: list[float] = []

    def tell(pids: list[int]) -> None:
        os.kill(pids[0], signal.SIGSTOP)  # so that nobody can write a checkpoint
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        told.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    meanwhile = Meanwhile(tmp_path / "run", tell)
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert time.monotonic() - told[0] < 10  # the first one would wait 30 s for a checkpoint
    assert meanwhile.nobody_is_left()
    assert status(tmp_path / "run")["status"] == "interrupted"


@pytest.fixture
def pictures(tmp_path, monkeypatch) -> Path:
    """Two classes of pictures, one of them not a picture."""
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.fromarray(np.full((8, 8, 3), number, dtype=np.uint8)).save(folder / f"{number}.png")
    (tmp_path / "pictures/train/dog/3.png").write_bytes(b"no picture")
    return tmp_path / "pictures"


def test_14_a_corrupt_picture_is_named_once_before_any_worker_starts(tmp_path, pictures, capfd):
    overrides = [f"data.path={pictures}", "data=imagefolder", "model=mlp", "partition=iid", "num_workers=2"]
    overrides += ["topology=chain", "batch_size=2", "steps=2", "processes=2", "data.num_processes=1", "device=cpu"]
    assert command(*overrides, f"run_dir={tmp_path / 'run'}") == 2
    complaint = capfd.readouterr().err
    assert complaint.count("\n") == 1 and "dog/3.png" in complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_14_a_corrupt_problem_is_named_once_before_any_worker_starts(tmp_path, capfd, cut):
    problem = tmp_path / "problem.npz"
    np.savez(problem, A=np.ones((5, 3, 3)), b=np.ones((5, 3)))
    content = problem.read_bytes()
    problem.write_bytes(content[:cut])
    assert command("task=quadratics", f"task.problem={problem}", "processes=2", f"run_dir={tmp_path / 'run'}") == 2
    complaint = capfd.readouterr().err
    assert complaint.count("\n") == 1 and str(problem) in complaint
    assert not (tmp_path / "run").exists()


def test_a_long_path_for_temporary_files_is_no_obstacle(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    process = launcher(*RUN, "steps=20", f"run_dir={tmp_path / 'run'}", TMPDIR=str(folder))
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")
    assert status(tmp_path / "run")["status"] == "done"


def test_a_folder_that_was_deleted_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    assert command(*RUN) == 2
    assert re.fullmatch(r"decentral-run: the current folder has been deleted.*\n", capsys.readouterr().err)
