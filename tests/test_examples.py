"""`examples/`: they run with one process and with two, resume after a kill, are seen by --help, and hold what the
contract asks for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from decentral.store import RunStore

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = CHECKOUT / "examples"
DOCS = "".join((CHECKOUT / "docs" / name).read_text() for name in ("own_components.md", "tasks.md"))
QUICK = (
    "device=cpu",
    "progress=false",
    "checkpoint_every_s=0",
    "restarts=0",
    "evaluation.every_epochs=1",
    "num_workers=4",
)
QUADRATICS = ("topology=ring", "task=quadratics", "steps=12")


class Example(NamedTuple):
    """How it is run, and what --help says of it."""

    settings: tuple[str, ...]
    topic: str
    says: str


CASES = {
    "own_algorithm": Example(
        ("--config-dir", "mine", "algo=partway", *QUADRATICS), "algo=partway", "part of the way to the neighbours' mean"
    ),
    "own_model": Example(
        (
            "data=mymodule:make_data", "data.size=160", "model=mymodule:MyNet", "model.width=8", "batch_size=8",
            "topology=ring", "algo=dpsgd", "steps=12", "precision=fp64",
        ),
        "model=mymodule:MyNet", "model.width=32",
    ),
    "own_package": Example(
        ("algo=pairwise", "algo.period=3", "topology=wheel", *QUADRATICS[1:]), "topology=wheel", "A ring of workers"
    ),
    "own_task": Example(
        (
            "--config-dir", "mine", "task=ordered", "data=digits", "model=mlp", "model.hidden=[8]", "batch_size=64",
            "topology=ring", "algo=dpsgd", "lr=0.01", "steps=12", "precision=fp64",
        ),
        "task=ordered", "Labels 0, 1, 2, ... that are in order",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package of examples/own_package is installed; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLES / "own_package", folder / "own_package")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    install += ["--target", str(folder / "installed"), str(folder / "own_package")]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return folder / "installed"


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, in which the package is installed; the folder of one is the current one."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = [str(request.getfixturevalue("installed")), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "examples"


def command(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"decentral.cli.{name}", *arguments],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def values(run: Path) -> list[float]:
    return [json.loads(line)["value"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_task", pytest.param("own_package", marks=pytest.mark.slow)])
def test_it_is_the_same_with_one_process_and_with_two(folder: Path, name: str) -> None:
    found = []
    for processes in (1, 2):
        run = folder / name / f"run{processes}"
        done = command(folder / name, "run", *CASES[name].settings, *QUICK, f"processes={processes}", f"run_dir={run}")
        assert done.returncode == 0, done.stderr
        assert (RunStore.peek(run) or {})["status"] == "done"
        assert '"own": ' in (run / "config.yaml").read_text() or "\nown:\n" in (run / "config.yaml").read_text()
        found.append(values(run))
    assert found[0] == pytest.approx(found[1], rel=1e-9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [("own_algorithm", 1), ("own_task", 2)])
def test_it_goes_on_after_a_kill(folder: Path, name: str, processes: int) -> None:
    settings = [*CASES[name].settings, *QUICK, f"processes={processes}"]
    fault = json.dumps([{"rank": 0, "step": 7, "kind": "kill"}])
    broken = command(folder / name, "run", *settings, "run_dir=broken", DECENTRAL_FAULTS=fault)
    assert broken.returncode not in (0, 2), broken.stderr
    assert list((folder / name / "broken").glob("checkpoints/*/manifest.json"))
    for run in ("broken", "straight"):
        done = command(folder / name, "run", *settings, f"run_dir={run}")
        assert done.returncode == 0, done.stderr
    assert values(folder / name / "broken") == values(folder / name / "straight")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("own_algorithm", ("algo=partway", "--config-dir", "mine")), ("own_package", ("algo=pairwise", "topology=wheel"))],
)
def test_it_holds_what_the_contract_asks_for(folder: Path, name: str, arguments: tuple[str, ...]) -> None:
    checked = command(folder / name, "check", *arguments)
    assert checked.returncode == 0 and " 0 failed" in checked.stdout, checked.stdout + checked.stderr
    assert "[1 of 12]" in checked.stdout and "FAILED" not in checked.stdout


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_method_with_a_program_runs_in_a_virtual_cluster_and_between_processes(folder: Path, processes: int) -> None:
    settings = ("--config-dir", "mine", "algo=timid", "cluster=two_delayed", "topology=ring", *QUADRATICS[1:], *QUICK)
    done = command(folder / "own_algorithm", "run", *settings, f"processes={processes}", "run_dir=run")
    assert done.returncode == 0, done.stderr
    lines = (folder / "own_algorithm" / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert max(row["step"] for row in rows) == 12
    assert all(("simulated_s" in row) == (processes == 1) for row in rows)


@pytest.mark.slow
def test_what_is_wrong_on_purpose_fails_with_a_sentence_that_names_the_property(folder: Path) -> None:
    checked = command(folder / "own_algorithm", "check", "algo=forgetful", "--config-dir", "mine")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert re.search(r"^the mean is kept +FAILED$", checked.stdout, re.M)
    assert "algo=forgetful fails 'the mean is kept': the mean of the models is not kept" in checked.stdout


COMMANDS = re.findall(r"^(cd \S+|decentral-\w+ .*|pip install .*)$", DOCS, re.M)


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_they_say(folder: Path) -> None:
    here = folder
    ran = 0
    for line in COMMANDS:
        words = [word for word in line.split("#")[0].split() if word]
        if words[0] == "cd":
            here = folder / words[1].removeprefix("examples/")
            assert here.is_dir()
        elif words[0].startswith("decentral-") and "data.path=" not in line:  # the reader's own
            name = words[0].removeprefix("decentral-")
            short = ["steps=2"] if name == "run" and "--help" not in words else []
            done = command(here, name, *words[1:], *short)
            assert done.returncode == (1 if "algo=forgetful" in words else 0), f"{line}\n{done.stdout}{done.stderr}"
            ran += 1
    assert ran >= 8
