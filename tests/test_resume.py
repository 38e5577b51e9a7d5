"""A run that breaks off and is started again has the very iterates and metrics that it would have had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from decentral.cli.run import main
from decentral.registry import components
from decentral.store import read_metrics
from table import ALGORITHMS, OPTIMIZERS, TASKS, VARIANTS
from toy_problems import DriftingQuadratics
from worlds import carry_out

OFTEN = ["checkpoint_every_s=0", "trace=true"]
CASES = [pytest.param(name, [], id=name) for name in ALGORITHMS] + [
    pytest.param(name, [variant], id=f"{name}-{variant}", marks=pytest.mark.slow)
    for name in VARIANTS
    for variant in VARIANTS[name]
]
FAULTS = [{"crash_at": 13}, {"interrupt_at": 9}]  # between evaluations, and at one


def settings(name: str, folder: Path) -> list[str]:
    case = ALGORITHMS[name]
    lossy = ["network.drop_probability=0.2"] if components("algorithms")[name].survives_loss else []
    noise = ["task.noise=0.1"] if case.task == "quadratics" else []
    return [
        f"algo={name}", f"task={case.task}", "task.dimension=5", *noise, *case.nets[0].overrides(folder),
        *case.overrides, *lossy, *OFTEN, "optim=momentum", "steps=20", "evaluation.every_epochs=5"
    ]  # fmt: skip


def same(one, other) -> None:
    assert one.status == other.status == "done"
    if (other.directory / "trace.npz").exists():
        assert np.array_equal(one.iterates, other.iterates)
    assert one.rows == other.rows
    for fact in ("bytes_sent", "messages_sent", "step", "epoch"):
        assert one.facts[fact] == other.facts[fact]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_an_algorithm_goes_on_bit_for_bit(start, tmp_path, name, variant):
    overrides = [*settings(name, tmp_path), *variant]
    straight = start(*overrides, directory="straight")
    for fault in FAULTS:
        broken = start(*overrides, directory=f"{fault}", **fault)
        assert broken.status == ("crashed" if "crash_at" in fault else "interrupted")
        assert broken.facts["status"] == ("failed" if "crash_at" in fault else "interrupted")
        same(start(*overrides, directory=f"{fault}"), straight)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.slow
def test_an_algorithm_goes_on_with_another_number_of_processes(start, tmp_path, name):
    overrides = settings(name, tmp_path)
    straight = start(*overrides, directory="straight")
    for before, after in ((5, 2), (1, 5)):
        directory = f"{before} then {after}"
        assert start(*overrides, directory=directory, processes=before, crash_at=13).status == "crashed"
        resumed = start(*overrides, directory=directory, processes=after)
        assert resumed.status == "done" and resumed.iterates.shape == straight.iterates.shape
        scale = np.abs(straight.iterates).max()
        np.testing.assert_allclose(resumed.iterates, straight.iterates, rtol=0, atol=1e-12 * scale)
        assert resumed.facts["bytes_sent"] == straight.facts["bytes_sent"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(start, name):
    overrides = ["task=quadratics", *OPTIMIZERS[name], *OFTEN, "num_workers=5", "steps=20", "evaluation.every_epochs=5"]
    straight = start(*overrides, directory="straight")
    start(*overrides, crash_at=13)
    same(start(*overrides), straight)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_goes_on_bit_for_bit(start, name):
    epochs = f"evaluation.every_epochs={0.5 if 'model' in components('tasks')[name].uses else 5}"
    overrides = [
        f"task={name}",
        *TASKS[name],
        *OFTEN,
        epochs,
        "algo=dpsgd",
        "topology=ring",
        "num_workers=4",
        "steps=40",
    ]
    straight = start(*overrides, directory="straight")
    start(*overrides, crash_at=37)
    same(start(*overrides), straight)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 5)])
def test_a_problem_that_remembers_something_goes_on_with_another_number_of_processes(tmp_path, worlds, before, after):
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
    resumed = iterates("broken", (before, 13), (after, -1))
    np.testing.assert_allclose(resumed, straight, rtol=0, atol=1e-12 * np.abs(straight).max())


@pytest.mark.parametrize("processes", [1, 2])
def test_checkpoints_are_written_between_evaluations_too(start, processes):
    overrides = ["task=quadratics", "num_workers=5", "trace=true", "steps=60", "evaluation.every_epochs=1000"]
    overrides += ["checkpoint_every_s=0.000001"]
    straight = start(*overrides, directory="straight", processes=processes)
    broken = start(*overrides, crash_at=37, processes=processes)
    assert {int(path.name) for path in broken.directory.glob("checkpoints/*")} & set(range(1, 37))
    same(start(*overrides, processes=processes), straight)


def test_the_newest_checkpoint_that_is_whole_is_used(start, capsys):
    overrides = ["task=quadratics", "num_workers=5", *OFTEN, "steps=20", "evaluation.every_epochs=5"]
    straight = start(*overrides, directory="straight")
    broken = start(*overrides, crash_at=13)
    parts = sorted(broken.directory.glob("checkpoints/*/*.pt"), key=lambda part: int(part.parent.name))
    assert [int(part.parent.name) for part in parts] == [5, 10]
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    same(start(*overrides), straight)
    assert "checkpoint" in capsys.readouterr().out


@pytest.mark.timeout(120)
def test_a_run_that_is_killed_goes_on_with_the_same_command(start, tmp_path, capsys):
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
    with pytest.raises(SystemExit) as end:
        main(command[3:])
    assert not end.value.code
    same(replace(straight, directory=directory), straight)
    assert "resumed" in capsys.readouterr().out
