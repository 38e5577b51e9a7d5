"""A run that breaks off and is started again has the very iterates and metrics that it would have had."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.registry import components
from decentral.store import RunStore, read_metrics
from decentral.training.stepper import Stepper
from punisher import Meanwhile, command, files_limited_to, newest_checkpoint, same, status
from table import ALGORITHMS, OPTIMIZERS, TASKS, VARIANTS, agree, run_of
from toy_problems import DriftingQuadratics
from worlds import carry_out

OFTEN = ["checkpoint_every_s=0", "trace=true"]


def same_results(one, other) -> None:
    assert one.status == other.status == "done"
    if (other.directory / "trace.npz").exists():
        assert np.array_equal(one.iterates, other.iterates)
    assert one.rows == other.rows
    for fact in ("bytes_sent", "messages_sent", "step", "epoch"):
        assert one.facts[fact] == other.facts[fact]


def goes_on(start, overrides: list[str], straight, *, interrupt_at: int, crash_at: int | None = None) -> None:
    """Interrupt a run, let it crash as well if that is asked for, and compare it with the straight one in the end."""
    stopped = start(*overrides, interrupt_at=interrupt_at)
    assert stopped.status == stopped.facts["status"] == "interrupted"
    if crash_at is not None:
        broken = start(*overrides, crash_at=crash_at)
        assert broken.status == "crashed" and broken.facts["status"] == "failed"
    same_results(start(*overrides), straight)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_resumes_bit_for_bit(recorded, start, name):
    goes_on(start, run_of(name), recorded(*run_of(name)), interrupt_at=7)


def goes_on_with_other_processes(recorded, start, overrides: list[str], before: int, after: int) -> None:
    """Let a run crash and go on with another number of processes, and compare it with that of one process."""
    straight, directory = recorded(*overrides), overrides[-1]
    assert start(*overrides, directory=directory, processes=before, crash_at=8).status == "crashed"
    agree(straight, start(*overrides, directory=directory, processes=after), after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_resumes_with_other_processes(recorded, start, name):
    goes_on_with_other_processes(recorded, start, run_of(name), 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_resume_with_other_processes(recorded, start, name):
    for variant in VARIANTS[name]:
        goes_on_with_other_processes(recorded, start, [*run_of(name), variant], 2, 1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_resumes_bit_for_bit(recorded, start, name):
    overrides = ["task=quadratics", *OPTIMIZERS[name], *OFTEN, "num_workers=5", "steps=20", "evaluation.every_epochs=5"]
    goes_on(start, overrides, recorded(*overrides), interrupt_at=10, crash_at=13)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_resumes_bit_for_bit(recorded, start, name):
    epochs = f"evaluation.every_epochs={0.5 if 'model' in components('tasks')[name].uses else 5}"
    overrides = [f"task={name}", *TASKS[name], *OFTEN, epochs, "algo=dpsgd", "topology=ring", "num_workers=4"]
    goes_on(start, [*overrides, "steps=20"], recorded(*overrides, "steps=20"), interrupt_at=10, crash_at=17)


def test_a_stateful_problem_resumes_with_other_processes(tmp_path, worlds):
    config = configure(
        "task=quadratics", "algo=dpsgd", "topology=ring", "num_workers=5", "steps=20",
        "evaluation.every_epochs=5", *OFTEN, "progress=false", "device=cpu",
    )  # fmt: skip

    def iterates(name: str, *processes_and_crash: tuple[int, int]) -> np.ndarray:
        own = replace(config, task=DriftingQuadratics(), run_dir=str(tmp_path / name))
        for processes, crash_at in processes_and_crash:
            worlds(processes).call(carry_out, own, crash_at, -1)
        with np.load(tmp_path / name / "trace.npz") as file:
            return file["iterates"]

    straight = iterates("straight", (1, -1))
    for before, after in ((1, 2), (2, 1)):
        resumed = iterates(f"{before} then {after}", (before, 13), (after, -1))
        np.testing.assert_allclose(resumed, straight, rtol=0, atol=1e-12 * np.abs(straight).max())


def test_checkpoints_are_written_between_evaluations_too(start):
    processes = 2
    overrides = ["task=quadratics", "num_workers=5", "trace=true", "steps=60", "evaluation.every_epochs=1000"]
    overrides += ["checkpoint_every_s=0.000001"]
    straight = start(*overrides, directory="straight", processes=processes)
    broken = start(*overrides, crash_at=37, processes=processes)
    assert {int(path.name) for path in broken.directory.glob("checkpoints/*")} & set(range(1, 37))
    same_results(start(*overrides, processes=processes), straight)


def test_the_newest_intact_checkpoint_is_used(start, capsys):
    overrides = ["task=quadratics", "num_workers=5", *OFTEN, "steps=20", "evaluation.every_epochs=5"]
    straight = start(*overrides, directory="straight")
    broken = start(*overrides, crash_at=13)
    parts = sorted(broken.directory.glob("checkpoints/*/*.pt"), key=lambda part: int(part.parent.name))
    assert [int(part.parent.name) for part in parts] == [5, 10]
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    same_results(start(*overrides), straight)
    assert "checkpoint" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_command(start, tmp_path, capsys):
    overrides = [
        "task=quadratics",
        "task.noise=0.1",
        "algo=relaysgd",
        "steps=600",
        "evaluation.every_epochs=20",
        *OFTEN,
    ]
    straight = start(*overrides, directory="straight")
    directory = tmp_path / "killed"
    command = [sys.executable, "-m", "decentral.cli.run", *overrides, f"run_dir={directory}", "device=cpu"]
    fault = os.environ | {"DECENTRAL_FAULTS": '[{"rank": 0, "step": 300, "kind": "kill"}]'}
    killed = subprocess.run(command, env=fault, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert json.loads((directory / "status.json").read_text())["status"] == "running"
    assert len(read_metrics(directory)) < len(straight.rows)
    assert exit_status(main, *command[3:]) == 0
    same_results(replace(straight, directory=directory), straight)
    assert "resumed" in capsys.readouterr().out


# -- Runs survive full disks, damaged files, numbers that explode and clocks that jump; see test_faults_processes ------

RUN = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "optim=momentum",
    "steps=200", "evaluation.every_epochs=20", "trace=true", "checkpoint_every_s=0", "progress=false", "device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    with mock.patch("decentral.report.run_figures.draw"):
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed") / "run"
    assert command(*RUN, f"run_dir={directory}") == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "more", "victim"),
    [(20_000, [], r"\.pt"), (14_000, ["trace=false"], "metrics.jsonl")],
    ids=["checkpoint", "metrics"],
)
def test_a_full_disk_ends_the_run_and_the_same_command_resumes_it(undisturbed, tmp_path, capfd, room, more, victim):
    directory = tmp_path / "run"
    with files_limited_to(room):
        assert command(*RUN, *more, f"run_dir={directory}") == 1
    complaint = capfd.readouterr().err
    assert complaint.count("\n") == 1 and "Free some space" in complaint and re.search(victim, complaint)
    assert (status(directory)["status"], status(directory)["failure"]) == ("failed", "disk_full")
    assert newest_checkpoint(directory) > 0
    with RunStore.open(directory, status(directory)["run_id"], "") as store:
        assert store.newest_checkpoint() is not None and not store.rejected_checkpoints
    assert command(*RUN, *more, f"run_dir={directory}", "progress=true") == 0
    assert "resumed at step" in capfd.readouterr().out
    if not more:
        same(directory, undisturbed)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_whose_numbers_explode_stops_at_the_next_evaluation(tmp_path, processes):
    explosive = [*RUN, "algo=dpsgd", "topology=ring", "lr=1e6", f"processes={processes}", "steps=2000"]
    assert command(*explosive, f"run_dir={tmp_path / 'run'}") == 0
    facts = status(tmp_path / "run")
    assert facts["status"] == "diverged" and facts["step"] <= 80
    values = [row["value"] for row in read_metrics(tmp_path / "run") if row["step"] == facts["step"] - 20]
    assert values and all(map(math.isfinite, values))  # it was well at the evaluation before


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda line: "x" + line, lambda line: re.sub(r'"value": [^,}]*', '"value": "a"', line)]
)
def test_a_damaged_line_in_the_metrics_of_a_finished_run_is_named_with_what_to_do(undisturbed, tmp_path, capfd, damage):
    directory = shutil.copytree(undisturbed, tmp_path / "run")
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    third = damage(lines[2])
    (directory / "metrics.jsonl").write_text("".join([*lines[:2], third, *lines[3:]]))
    assert command(*RUN, f"run_dir={directory}") == 2
    complaint = capfd.readouterr().err.splitlines()[-1]
    assert "line 3 of" in complaint and f"delete the folder {directory}" in complaint
    shutil.rmtree(directory)
    assert command(*RUN, f"run_dir={directory}") == 0
    same(directory, undisturbed)


@pytest.mark.slow
def test_a_clock_that_jumps_back_changes_nothing(undisturbed, tmp_path, monkeypatch):
    now = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    assert command(*RUN, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", undisturbed)
    assert 0 < status(tmp_path / "run")["wall_s"] < 3600  # the clock says hours


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["the folder", "metrics.jsonl"])
@pytest.mark.parametrize("at", [130, 195], ids=["before a checkpoint", "before the end"])
def test_deleted_files_end_a_run_and_the_same_command_repeats_it(undisturbed, tmp_path, monkeypatch, capfd, victim, at):
    directory, step = tmp_path / "results" / "run", Stepper.step

    def delete(self: Stepper) -> None:
        if self.t == at:
            shutil.rmtree(directory.parent) if victim == "the folder" else (directory / victim).unlink()
        step(self)

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "step", delete)
        assert command(*RUN, f"run_dir={directory}") == 2
    complaint = capfd.readouterr().err
    assert complaint.count("\n") == 1 and f"run_dir={directory} cannot be written" in complaint
    assert directory.exists() == (victim != "the folder") and status(directory).get("status") in (None, "failed")
    assert command(*RUN, f"run_dir={directory}") == 0
    same(directory, undisturbed)


def test_a_folder_that_is_moved_while_two_processes_write_to_it_ends_the_run(tmp_path, capfd):
    directory, elsewhere = tmp_path / "results" / "run", tmp_path / "elsewhere"
    endless = [*RUN, "processes=2", "trace=false", "steps=1000000", f"run_dir={directory}"]
    meanwhile = Meanwhile(directory, lambda _: directory.parent.rename(elsewhere))
    assert command(*endless) == 2
    assert meanwhile.nobody_is_left() and not directory.parent.exists()
    assert f"run_dir={directory} cannot be written" in capfd.readouterr().err
