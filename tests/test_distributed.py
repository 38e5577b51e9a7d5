"""Real processes, as users start them: by `processes=` and by torchrun; and what happens when one of them dies."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from decentral.store import read_metrics
from punisher import Meanwhile, command, newest_checkpoint, status, workers_of

pytestmark = pytest.mark.timeout(120)

DIGITS = [
    "algo=relaysgd", "topology=dbt", "num_workers=4", "model=mlp", "alpha=1", "batch_size=16", "steps=20",
    "evaluation.every_epochs=0.5", "progress=false", "device=cpu",
]  # fmt: skip
ENDLESS = [
    "task=quadratics", "task.noise=0.1", "algo=dpsgd", "topology=ring", "num_workers=5", "steps=1000000", "processes=3",
    "evaluation.every_epochs=50", "checkpoint_every_s=0", "progress=false", "device=cpu", "network.timeout_s=20",
    "restarts=0",
]  # fmt: skip


def same_metrics(one: Path, other: Path) -> None:
    ours, theirs = read_metrics(one), read_metrics(other)
    places = [[(row["step"], row["worker"], row["split"], row["metric"]) for row in rows] for rows in (ours, theirs)]
    assert places[0] == places[1] and len(ours) > 20
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a["value"], b["value"], rtol=0, atol=0 if a["metric"] == "accuracy" else 1e-4)
        assert a["bytes_sent"] == b["bytes_sent"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The run of one process."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    assert command(*DIGITS, "processes=1", f"run_dir={directory}") == 0
    return directory


def test_four_processes_of_our_own_report_what_one_does(alone, tmp_path, capfd):
    assert command(*DIGITS, "processes=4", f"run_dir={tmp_path / 'run'}") == 0
    assert status(tmp_path / "run")["status"] == "done"
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["processes"] == 4
    same_metrics(tmp_path / "run", alone)
    told = capfd.readouterr()
    assert told.err == "" and told.out.count("Results:") == 1


@pytest.mark.slow
def test_four_processes_of_torchrun_report_what_one_does(alone, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    ours = ["-m", "decentral.cli.run", *DIGITS, f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run([*torchrun, *ours], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert status(tmp_path / "run")["status"] == "done"
    same_metrics(tmp_path / "run", alone)


def pid_of(name: str) -> int | None:
    """The process of a run that goes on, by its name."""
    return {child.name: child.pid for child in multiprocessing.active_children()}.get(name)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_is_killed_ends_the_run_with_its_name_and_the_same_command_goes_on(tmp_path, capfd, victim):
    directory = tmp_path / "run"
    name = f"process {victim} of 3"
    killed: list[int] = []

    def kill(_: list[int]) -> None:
        killed.append(pid_of(name))
        os.kill(killed[0], signal.SIGKILL)

    meanwhile = Meanwhile(directory, kill)
    assert command(*ENDLESS, f"run_dir={directory}") == 1
    assert meanwhile.nobody_is_left() and len(meanwhile.found) == 3
    complaint = [line for line in capfd.readouterr().err.splitlines() if line.startswith("decentral-run:")]
    assert len(complaint) == 1 and f"{name} (pid {killed[0]}) was killed by SIGKILL" in complaint[0]
    assert status(directory)["status"] == "failed" and name in status(directory)["reason"]

    reached = newest_checkpoint(directory)
    meanwhile = Meanwhile(directory, lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert command(*ENDLESS, f"run_dir={directory}") == 130
    assert meanwhile.nobody_is_left() and len(meanwhile.found) == 3
    assert status(directory)["status"] == "interrupted"
    assert newest_checkpoint(directory) > reached
    steps = [row["step"] for row in read_metrics(directory)]
    assert steps == sorted(steps)


def test_a_process_that_hangs_ends_the_run_after_the_timeout(tmp_path, capfd):
    directory = tmp_path / "run"
    meanwhile = Meanwhile(directory, lambda _: os.kill(pid_of("process 1 of 3"), signal.SIGSTOP))
    assert command(*ENDLESS, "network.timeout_s=5", f"run_dir={directory}") == 1
    assert meanwhile.nobody_is_left() and len(meanwhile.found) == 3
    assert status(directory)["status"] == "failed"
    assert "decentral-run: the run failed" in capfd.readouterr().err


def test_a_process_that_refuses_the_configuration_ends_the_run_with_its_sentence(tmp_path, capfd):
    too_long = ["task=mean_estimation", "task.dimension=1000", "trace=true", "num_workers=2", "steps=1000000"]
    others = workers_of(os.getpid())
    assert command(*too_long, "processes=2", f"run_dir={tmp_path / 'run'}", "progress=false") == 2
    assert "trace=true would keep" in capfd.readouterr().err
    assert set(workers_of(os.getpid())) <= set(others)
