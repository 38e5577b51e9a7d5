"""Runs survive the death of their launcher, signals, bad data and odd surroundings; see test_faults_processes."""

from __future__ import annotations

import errno
import json
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

from decentral.config.composition import compose
from decentral.config.files import dump
from decentral.config.identity import run_id
from decentral.host import interrupt
from decentral.host.interrupt import ask_to_stop
from decentral.runtime import supervise
from decentral.store import RunStore
from decentral.store.failures import RunFailed, record
from punisher import Meanwhile, below, command, newest_checkpoint, same, status, workers_of
from waiting import alive, stands_still, until

pytestmark = pytest.mark.timeout(120)

RUN = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "steps=300",
    "evaluation.every_epochs=10", "trace=true", "processes=2", "checkpoint_every_s=0", "progress=false", "device=cpu",
    "network.timeout_s=20",
]  # fmt: skip
ENDLESS = [*RUN, "trace=false", "steps=1000000"]


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    with mock.patch("decentral.report.run_figures.draw"):
        yield


def launcher(*arguments: str, **environment: str) -> subprocess.Popen:
    """`decentral-run` in a process of its own."""
    whole = [sys.executable, "-m", "decentral.cli.run", *arguments]
    return subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )


def wait_for_checkpoint(directory: Path, process: subprocess.Popen) -> None:
    while newest_checkpoint(directory) < 0:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_4_nobody_outlives_a_launcher_that_is_killed_and_the_same_command_goes_on(tmp_path):
    """The fork server is killed at some time, then the launcher while one of the workers is stopped.

    Whatever happens late, happens before the run is over: a worker stops half-way in the first attempt, and again in
    the second one.
    """
    directory, patient = tmp_path / "run", [*RUN, "network.timeout_s=3600"]
    stop = {"rank": 1, "step": 150, "kind": "stop"}
    process = launcher(*patient, f"run_dir={directory}", DECENTRAL_FAULTS=json.dumps([stop, stop]))
    wait_for_checkpoint(directory, process)
    workers = workers_of(process.pid)
    os.kill(parent(workers[0]), signal.SIGKILL)  # the fork server
    wait_until_gone(workers)
    until(lambda: any(map(stands_still, workers_of(process.pid))))
    family = below(process.pid)
    process.send_signal(signal.SIGKILL)
    wait_until_gone(family)
    told = process.communicate()[1]
    assert "died together with the process that had started it; restarting from step" in told
    assert status(directory)["status"] == "running" and status(directory)["restarts"] == 1
    assert command(*patient, f"run_dir={directory}") == 0
    assert command(*patient, f"run_dir={tmp_path / 'straight'}") == 0
    same(directory, tmp_path / "straight")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_17_a_signal_writes_a_checkpoint_and_ends_the_run(tmp_path, number):
    meanwhile = Meanwhile(tmp_path / "run", lambda _: os.kill(os.getpid(), number))
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    facts = status(tmp_path / "run")
    assert facts["status"] == "interrupted" and facts["step"] == newest_checkpoint(tmp_path / "run") > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_17_what_asks_again_while_a_stop_is_under_way_does_not_break_it_off(tmp_path, monkeypatch, number):
    """A job of SLURM may get SIGTERM, and then the signal that announces its preemption."""
    stop = supervise._ask_to_stop

    def ask_twice(workers: list) -> None:
        ask_to_stop()
        stop(workers)

    monkeypatch.setattr(supervise, "_ask_to_stop", ask_twice)
    meanwhile = Meanwhile(tmp_path / "run", lambda _: os.kill(os.getpid(), number))
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    facts = status(tmp_path / "run")
    assert "reason" not in facts, "the leader said itself that it stopped"
    assert facts["status"] == "interrupted" and facts["step"] == newest_checkpoint(tmp_path / "run") > 0


def is_told_to_end(pid: int) -> bool:
    """Whether a process that has been stopped will find a SIGTERM when it goes on."""
    pending = re.findall(r"^S[hi][dg]Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in pending)


def test_17_the_second_ctrl_c_ends_what_the_first_one_could_not(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupt, "AGAIN_S", 0.0)
    monkeypatch.setattr(supervise, "CHECKPOINT_GRACE_S", 3600.0)  # alone, the first one would wait for so long

    def tell(pids: list[int]) -> None:
        os.kill(pids[0], signal.SIGSTOP)  # so that nobody can write a checkpoint
        until(lambda: stands_still(pids[0]))
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: is_told_to_end(pids[0]))  # so that this is not taken for the same Ctrl-C
        os.kill(os.getpid(), signal.SIGINT)

    meanwhile = Meanwhile(tmp_path / "run", tell)
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    assert status(tmp_path / "run")["status"] == "interrupted"


def test_17_a_failure_while_the_run_stops_is_told_and_not_called_an_interruption(tmp_path, monkeypatch):
    """The disk is full when the checkpoint of a Ctrl-C is written."""
    config = compose(["task=quadratics", "num_workers=4", "steps=6", f"run_dir={tmp_path / 'run'}"])
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(workers: list) -> None:
        with RunStore.open(tmp_path / "run", run_id(config), dump(config)) as store:
            record(store, full)

    monkeypatch.setattr(supervise, "_ask_to_stop", fail)
    monkeypatch.setattr(supervise, "_kill", lambda workers: None)
    leader = mock.Mock(process=mock.Mock(pid=os.getpid()))
    with pytest.raises(RunFailed, match="No space left"):
        supervise._interrupt([leader], config, tmp_path / "run", KeyboardInterrupt())
    assert status(tmp_path / "run")["failure"] == "disk_full"


@pytest.fixture
def pictures(tmp_path, monkeypatch) -> Path:
    """Two classes of pictures, one of them not an image."""
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
    _, complaint = process.communicate()
    assert (process.returncode, complaint) == (0, "")
    assert status(tmp_path / "run")["status"] == "done"


def test_a_folder_that_was_deleted_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    assert command(*RUN) == 2
    assert re.fullmatch(r"decentral-run: the current folder has been deleted.*\n", capsys.readouterr().err)
