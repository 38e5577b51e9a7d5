"""Runs that the program stored before the rooms (commit 0ffd394) count as done, or go on to the end that they had then.

tests/stored/README.md says how they were made. Every test works on a copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decentral.cli.run import main
from decentral.config.composition import compose_all
from decentral.config.files import load
from decentral.config.identity import run_id
from decentral.config.schema import Config
from decentral.network.world import World
from decentral.runtime.launch import launch
from decentral.store import read_metrics
from worlds import carry_out

STORED = Path(__file__).parent / "stored"
RUNS = sorted(path.name for path in (STORED / "runs").iterdir())
INTERRUPTED = sorted(path.name for path in (STORED / "ends").iterdir())
FINISHED = [name for name in RUNS if name not in INTERRUPTED]
OTHER_NUMBERS = {
    "images-momentum": 2,
    "images-relaysgd": 3,
    "images-two-processes": 1,
    "quadratics-gradient_tracking": 2,
    "quadratics-relaysgd": 3,
    "quadratics-relaysgd-two-processes": 3,
    "quadratics-sgp": 3,
    "quadratics-gradient-tracking-two-processes": 1,
}
"""Run -> another number of processes than it had."""


def facts(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "status.json").read_text())


def typed(name: str) -> list[str]:
    """What the user typed after decentral-run."""
    return json.loads((STORED / "runs" / name / "provenance.json").read_text())["command_line"][1:]


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], tuple[Path, Config]]:
    """name -> a copy of that run's directory, and its configuration with the copy as `run_dir`."""

    def _copy(name: str) -> tuple[Path, Config]:
        directory = tmp_path / name
        shutil.copytree(STORED / "runs" / name, directory)
        config = load((directory / "config.yaml").read_text())
        return directory, replace(config, run_dir=str(directory), progress=False)

    return _copy


def at_the_same_end(directory: Path, name: str) -> None:
    """The run is done, with the numbers that the code before arrived at."""
    expected, found = STORED / "ends" / name, facts(directory)
    assert {key: found[key] for key in facts(expected)} == facts(expected)
    accuracy = 1e-5 if name == "images-single-precision" else 1e-12
    rows = {key(row): row for row in read_metrics(directory) if row["step"] == found["step"]}
    for row in read_metrics(expected / "metrics.jsonl"):
        value, others = row.pop("value"), rows[key(row)]
        assert others["value"] == pytest.approx(value, rel=accuracy, abs=accuracy), key(row)
        assert {name: others[name] for name in row} == row
    if (expected / "trace.npz").exists():
        ours, theirs = (np.load(path / "trace.npz")["iterates"] for path in (directory, expected))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())
    assert not list(directory.glob("checkpoints/*"))
    resumed_at = max(int(path.name) for path in (STORED / "runs" / name / "checkpoints").iterdir())
    before = {key(row): row for row in read_metrics(STORED / "runs" / name) if row["step"] < resumed_at}
    after = {key(row): row for row in read_metrics(directory)}
    assert before and {one: after[one] for one in before} == before  # times, too: they were not computed again


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"], row["worker"], row["split"], row["metric"]


def test_each_kind_is_there() -> None:
    assert {facts(STORED / "runs" / name)["status"] for name in FINISHED} == {"done", "diverged"}
    before = {facts(STORED / "runs" / name)["status"] for name in INTERRUPTED}
    assert before == {"running", "interrupted", "failed"}  # killed; told to stop; one of two processes killed
    assert all(list((STORED / "runs" / name).glob("checkpoints/*/manifest.json")) for name in INTERRUPTED)


def test_the_commands_that_were_typed_have_the_ids_that_they_had() -> None:
    configs = compose_all([typed(name) for name in RUNS])
    found = {name: run_id(config) for name, config in zip(RUNS, configs, strict=True)}
    assert found == {name: facts(STORED / "runs" / name)["run_id"] for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_the_stored_configuration_has_the_id_that_it_had(name: str) -> None:
    text = (STORED / "runs" / name / "config.yaml").read_text()
    assert text.splitlines()[0] == f"# run {run_id(load(text))}"


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_done_and_stays_as_it_is(copy: Callable[[str], tuple[Path, Config]], name: str) -> None:
    directory, config = copy(name)
    before = contents(directory)
    outcome = launch(config)
    assert outcome.done_before and outcome.status == facts(directory)["status"]
    assert contents(directory) == before


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_goes_on_to_the_end_that_it_had(
    copy: Callable[[str], tuple[Path, Config]], worlds: Callable[[int], Any], name: str
) -> None:
    directory, config = copy(name)
    if config.processes == "1":
        assert carry_out(World(0, 1, torch.device("cpu")), config, -1, -1) == "done"
    else:
        assert worlds(int(config.processes)).call(carry_out, config, -1, -1) == ["done"] * int(config.processes)
    at_the_same_end(directory, name)


@pytest.mark.parametrize("name", OTHER_NUMBERS)
def test_an_interrupted_run_goes_on_with_another_number_of_processes(
    copy: Callable[[str], tuple[Path, Config]], worlds: Callable[[int], Any], name: str
) -> None:
    directory, config = copy(name)
    if OTHER_NUMBERS[name] == 1:
        assert carry_out(World(0, 1, torch.device("cpu")), config, -1, -1) == "done"
    else:
        assert set(worlds(OTHER_NUMBERS[name]).call(carry_out, config, -1, -1)) == {"done"}
    at_the_same_end(directory, name)


@pytest.mark.parametrize("name", ["images-momentum", "quadratics-relaysgd-two-processes"])
def test_the_same_command_goes_on(
    copy: Callable[[str], tuple[Path, Config]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = copy(name)
    with pytest.raises(SystemExit) as ended:
        main([*(word for word in typed(name) if not word.startswith("run_dir=")), f"run_dir={directory}"])
    assert not ended.value.code, capsys.readouterr().err
    at_the_same_end(directory, name)


def test_another_configuration_is_refused_in_a_stored_directory(
    copy: Callable[[str], tuple[Path, Config]], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = copy("finished-quadratics")
    before = contents(directory)
    words = [word for word in typed("finished-quadratics") if not word.startswith("run_dir=")]
    with pytest.raises(SystemExit) as ended:
        main([*words, f"run_dir={directory}", "seed=7"])
    assert ended.value.code == 2 and facts(directory)["run_id"] in capsys.readouterr().err
    assert contents(directory) == before
