"""Ctrl-C ends every command at any moment: one sentence, status 130, nobody left, and the same command goes on."""

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
from decentral.config.parsing import dump
from decentral.config.prepared import prepare
from decentral.host import interrupt
from decentral.host.interrupt import ask_to_stop
from decentral.runtime import supervise
from decentral.store import RunStore, find_runs, read_metrics
from decentral.store.failures import RunFailed, record
from punisher import Meanwhile, below, command, newest_checkpoint, same, status, workers_of
from waiting import alive, stands_still, until

TINY = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "steps=200",
    "evaluation.every_epochs=10", "device=cpu", "network.timeout_s=20",
]  # fmt: skip


def run(
    *arguments: str, words: tuple[str, ...] = ("-m", "decentral"), deaf: bool = False, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a terminal starts it."""

    def begin() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup would have it ignore

    return subprocess.Popen(
        [sys.executable, *words, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=begin, cwd=cwd,
    )  # fmt: skip


def ends(process: subprocess.Popen[str], family: list[int], *others: tuple[int, str]) -> None:
    """It ends with one sentence and status 130, or in another way, and so does everything that it has started."""
    out, err = process.communicate(timeout=240)
    ended = process.returncode, err if err.count("\n") != 1 else err.partition(";")[0].partition(".")[0]
    assert ended in [(130, "decentral-run: interrupted"), *others], (out, err)
    until(lambda: not any(map(alive, family)))


def numbers(results: Path) -> list[list[str]]:
    """What each run has measured."""
    runs = [read_metrics(found.path) for found in find_runs(results)]
    return [sorted(str(row | {"wall_s": 0}) for row in rows) for rows in runs]


@pytest.mark.slow
def test_a_signal_while_processes_start_ends_the_run(tmp_path):
    process = run(*TINY, "steps=1000000", "processes=2", f"run_dir={tmp_path / 'run'}")
    until(lambda: len(below(process.pid)) >= 2)  # the server and multiprocessing's tracker
    family = below(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    ends(process, family)


def script(folder: Path, code: str) -> subprocess.Popen[str]:
    """A console command that does this."""
    before = """
import atexit, os, signal, sys, time
from decentral.cli.command import guarded
from decentral.host.interrupt import Interrupt
def ctrl_c(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)
def carry_out(_):
    """
    after = """
    return 0
if __name__ == "__main__": guarded("decentral-run", carry_out, None)
"""
    name = f"command_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(before + code.replace("\n", "\n    ") + after)
    return run(words=("-m", name), cwd=folder)


LOST = (
    "ctrl_c()",
    "for _ in range(3): ctrl_c()",
    "try: ctrl_c()\nfinally: ctrl_c()",
    "class Lost:\n    def __del__(self): ctrl_c()\nLost(); time.sleep(1)",  # Python reports it, and goes on
    "try: ctrl_c()\nexcept BaseException: pass\nwith Interrupt() as asked: return 130 * asked.requested",
    "try: ctrl_c()\nfinally: {}['of a library that cleans up']",
    "try: ctrl_c()\nexcept BaseException: time.sleep(1.1); ctrl_c()",
    "exec('ctrl_c()')",
    "with Interrupt() as asked: [ctrl_c() for _ in range(3)]; return 130 * asked.requested",
)
DONE = (
    "signal.signal(signal.SIGINT, signal.SIG_DFL); atexit.register(ctrl_c)",
    "signal.signal(signal.SIGINT, signal.SIG_IGN); ctrl_c()",
)


@pytest.mark.parametrize("several", [1, pytest.param(len(LOST), marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_command_and_does_not_change_a_completed_one(tmp_path, several):
    lost, done = ([script(tmp_path, code) for code in codes[:several]] for codes in (LOST[::-1], DONE))
    for process in lost:
        ends(process, [])
    for process in done:
        assert (process.communicate(timeout=240), process.returncode) == (("", ""), 0)


def test_ctrl_c_during_the_first_imports_prints_one_sentence():
    ends(
        run(
            words=("-c", "import os, sys; sys.argv[0] = 'decentral-run'; import decentral.cli; os.kill(os.getpid(), 2)")
        ),
        [],
    )


@pytest.mark.slow
def test_a_command_that_ignores_ctrl_c_completes(tmp_path):
    """As under nohup, and in the background of a script."""
    process = run(*TINY, "processes=2", f"results_dir={tmp_path}", deaf=True)
    until(lambda: process.poll() is not None or not os.killpg(process.pid, signal.SIGINT))
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("arguments", "alone"), [(["processes=2"], True), (["-m", "seed=1,2"], False)], ids=["run", "sweep"]
)
def test_a_command_that_is_interrupted_resumes_to_the_same_numbers(tmp_path, arguments, alone):
    """Ctrl-C reaches the whole group, `kill -INT` the command alone."""
    straight, results = tmp_path / "straight", tmp_path / "results"
    assert command(*TINY, *arguments, f"results_dir={straight}") == 0
    process = run(*TINY, *arguments, f"results_dir={results}")
    until(lambda: process.poll() is not None or any(read_metrics(run.path) for run in find_runs(results)))
    family = below(process.pid)
    (os.kill if alone else os.killpg)(process.pid, signal.SIGINT)
    ends(process, family, (0, ""))
    assert command(*TINY, *arguments, f"results_dir={results}") == 0
    assert numbers(results) == numbers(straight) != []


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
def test_4_no_process_outlives_a_killed_launcher_and_the_same_command_resumes(tmp_path):
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
    assert "died with its parent process; restarting from step" in told
    assert status(directory)["status"] == "running" and status(directory)["restarts"] == 1
    assert command(*patient, f"run_dir={directory}") == 0
    assert command(*patient, f"run_dir={tmp_path / 'straight'}") == 0
    same(directory, tmp_path / "straight")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_17_a_signal_writes_a_checkpoint_and_ends_the_run(tmp_path, number):
    meanwhile = Meanwhile(tmp_path / "run", lambda _: os.kill(os.getpid(), number))
    assert command(*ENDLESS, f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    facts = status(tmp_path / "run")
    assert facts["status"] == "interrupted" and facts["step"] == newest_checkpoint(tmp_path / "run") > 0


def test_17_a_second_request_to_stop_does_not_interrupt_the_checkpoint(tmp_path, monkeypatch):
    """A job of SLURM may get SIGTERM, and then the signal that announces its preemption."""
    stop = supervise._ask_to_stop

    def ask_twice(workers: list) -> None:
        ask_to_stop()
        stop(workers)

    monkeypatch.setattr(supervise, "_ask_to_stop", ask_twice)
    meanwhile = Meanwhile(tmp_path / "run", lambda _: os.kill(os.getpid(), signal.SIGTERM))
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


def test_17_a_failure_while_the_run_stops_is_reported_as_a_failure(tmp_path, monkeypatch):
    """The disk is full when the checkpoint of a Ctrl-C is written."""
    run = prepare(compose(["task=quadratics", "num_workers=4", "steps=6", f"run_dir={tmp_path / 'run'}"]))
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(workers: list) -> None:
        with RunStore.open(run.directory, run.id, dump(run.config)) as store:
            record(store, full)

    monkeypatch.setattr(supervise, "_ask_to_stop", fail)
    monkeypatch.setattr(supervise, "_kill", lambda workers: None)
    leader = mock.Mock(process=mock.Mock(pid=os.getpid()))
    with pytest.raises(RunFailed, match="No space left"):
        supervise._interrupt([leader], run, KeyboardInterrupt())
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
