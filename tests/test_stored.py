"""Ids of runs and of studies' jobs are those that commit 0ffd394 gave, but where a formula is another one since then
(`Algorithm.revision`): what it stored counts as what it is, and what had broken off goes on. Every test works on a
copy; tests/stored/README.md says how they were made."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import exit_status
from decentral.cli.run import main
from decentral.cli.study import ChosenStudy, chosen_studies
from decentral.cli.study import main as study_main
from decentral.config.composition import compose_all, compose_each
from decentral.config.identity import run_id
from decentral.config.parsing import load
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.settings import NetworkSettings
from decentral.network.world import World
from decentral.registry.find import CONTRACTS, ours
from decentral.runtime.launch import launch
from decentral.scheduling.job import Job
from decentral.store import Status, read_metrics
from decentral.study import catalogue
from decentral.study.study import Cell
from worlds import carry_out

pytestmark = pytest.mark.usefixtures("undrawn")

STORED = Path(__file__).parent / "stored"
IDS: dict[str, dict[str, str]] = json.loads((STORED / "ids.json").read_text())
JOBS: dict[str, list[str]] = json.loads((STORED / "jobs.json").read_text())
"""'study scale' -> ids; without what needs data that are not here."""


def differences(known: dict[str, str]) -> dict[str, str]:
    """Overrides whose run has another id today, with it, or why they are refused."""
    commands = list(known)
    composed = zip(commands, compose_each([command.split() for command in commands]), strict=True)
    today = {command: run_id(config) if isinstance(config, Config) else str(config) for command, config in composed}
    return {command: found for command, found in today.items() if found != known[command]}


@pytest.fixture
def beside_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the beside_data with the graph, the problem and the images."""
    monkeypatch.chdir(STORED / "data")


@pytest.mark.usefixtures("beside_data")
def test_a_run_has_the_id_that_it_had_for_a_sample_of_settings() -> None:
    assert differences(dict(list(IDS["settings"].items())[::9])) == {}


@pytest.mark.usefixtures("beside_data")
def test_a_run_whose_formula_has_changed_has_another_id() -> None:
    """awc with weight decay; neither awc without it, nor atc with it."""
    awc, decay = "algo=dpsgd task=quadratics topology=ring algo.mode=awc", "optim.weight_decay=1e-4"
    own = {f"{awc} {decay}": "d15fc2225f61", f"{awc} {decay} algo.mode=atc": "37626ba707b4"}  # of commit 0ffd394
    assert differences(own).keys() == {f"{awc} {decay}"}
    assert differences({awc: IDS["settings"][awc]}) == {}


@pytest.mark.usefixtures("beside_data")
@pytest.mark.slow
def test_a_run_has_the_id_that_it_had_whatever_is_set() -> None:
    assert differences(IDS["settings"]) == {}


@pytest.mark.usefixtures("beside_data")
@pytest.mark.slow
def test_a_run_has_the_id_that_it_had_for_every_algorithm_on_every_topology() -> None:
    assert differences(IDS["pairs"]) == {}


def job_ids(name: str, scale: str) -> list[str] | str:
    """The ids of a study's job_ids, or why it is refused."""
    (asked,) = chosen_studies([name, f"scale={scale}", "results_dir=nothing"])
    try:
        return sorted(job.id for cell in asked.study.cells(asked.overrides) for job in cell.jobs())
    except ConfigError as error:
        return str(error)


def in_order(known: list[str] | str) -> list[str] | str:
    """The order of cells may change; a refusal is a sentence."""
    return known if isinstance(known, str) else sorted(known)


def names_of(scale: str) -> list[str]:
    return [key.split()[0] for key in JOBS if key.split()[1] == scale]


@pytest.mark.slow
@pytest.mark.usefixtures("beside_data")
@pytest.mark.parametrize("name", names_of("smoke"))
def test_a_study_has_the_jobs_that_it_had(name: str) -> None:
    assert job_ids(name, "smoke") == in_order(JOBS[f"{name} smoke"])


@pytest.mark.usefixtures("beside_data")
@pytest.mark.slow
def test_all_studies_have_the_jobs_that_they_had_at_the_scale_of_the_papers() -> None:
    known = {name: in_order(JOBS[f"{name} paper"]) for name in names_of("paper")}
    assert {name: job_ids(name, "paper") for name in known} == known


NOT_ADAPTED = "algo=allreduce task=quadratics compress=topk"
DRAWN = "algo=dpsgd topology=ring task=quadratics num_workers=4"
REGRESSION = "algo=dpsgd topology=ring task=regression num_workers=4"
IDLE = {
    "compress.candidates=[0.1,0.2]": (NOT_ADAPTED, f"{NOT_ADAPTED} compress.adapt=knee cluster=even"),
    "compress.explore_steps=3": (NOT_ADAPTED, f"{NOT_ADAPTED} compress.adapt=knee cluster=even"),
    "compress.solver=nsga2": (NOT_ADAPTED, f"{NOT_ADAPTED} compress.adapt=knee cluster=even"),
    "compress.grid=3": (NOT_ADAPTED, f"{NOT_ADAPTED} compress.adapt=knee cluster=even"),
    "compress.var_stat=variance": (
        "algo=allreduce compress=artopk",
        "algo=allreduce compress=artopk compress.select=var",
    ),
    "compress.window_steps=3": ("algo=allreduce compress=artopk", "algo=allreduce compress=artopk compress.select=var"),
    "compress.smoothing=0.1": ("algo=allreduce compress=artopk", "algo=allreduce compress=artopk compress.select=var"),
    "compress.wait_for_window=true": (
        "algo=allreduce compress=artopk",
        "algo=allreduce compress=artopk compress.select=var",
    ),
    "availability.detect_s=3": (
        "cluster=even availability=failures availability.crash=false",
        "cluster=even availability=failures",
    ),
    "network.measure_every_steps=3": ("task=quadratics", "task=quadratics network.measure=true"),
    "network.measure_bytes=2000000": ("task=quadratics", "task=quadratics network.measure=true"),
    "schedule.warmup_from=0.5": ("schedule=multistep schedule.warmup_epochs=0", "schedule=multistep"),
    "schedule.gamma=0.5": ("schedule=multistep schedule.milestones=[]", "schedule=multistep"),
    "topology.drawn_rounds=3": (
        "algo=dpsgd topology=random_regular",
        "algo=dpsgd topology=random_regular topology.changing=true",
    ),
    "task.dimension=3": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.singular_min=0.1": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.singular_max=0.7": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.zeta2=2": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.initial_distance=1": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.problem_seed=3": (f"{DRAWN} task.problem=problem.npz", DRAWN),
    "task.samples_per_worker=3": (f"{REGRESSION} task.samples=samples.npz", REGRESSION),
    "task.noise=2": (f"{REGRESSION} task.samples=samples.npz", REGRESSION),
    "task.heterogeneity=2": (f"{REGRESSION} task.samples=samples.npz", REGRESSION),
    "lr=0.5": ("task=mean_estimation algo=relay_mean topology=chain", "task=mean_estimation algo=dpsgd topology=chain"),
    "optim=adam": (
        "task=mean_estimation algo=relay_mean topology=chain",
        "task=mean_estimation algo=dpsgd topology=chain",
    ),
    "optim.momentum=0.5": (
        "task=mean_estimation algo=relay_mean topology=chain",
        "task=mean_estimation algo=dpsgd topology=chain",
    ),
    "schedule=inverse": (
        "task=mean_estimation algo=relay_mean topology=chain",
        "task=mean_estimation algo=dpsgd topology=chain",
    ),
}
"""Setting -> others with which it is not looked at, and with which it is."""


@pytest.mark.usefixtures("beside_data")
def test_a_setting_that_is_not_looked_at_makes_no_other_run() -> None:
    known = {setting: bases for setting, bases in IDLE.items() if not setting.endswith("nsga2") or find_spec("pymoo")}
    texts = {text for setting, bases in known.items() for base in bases for text in (base, f"{base} {setting}")}
    ids = dict(zip(texts, map(run_id, compose_all([text.split() for text in texts])), strict=True))
    for setting, (idle, awake) in known.items():
        assert ids[idle] == ids[f"{idle} {setting}"] and ids[awake] != ids[f"{awake} {setting}"], setting


@pytest.mark.usefixtures("beside_data")
def test_every_such_setting_is_in_the_table() -> None:
    tried = {setting.partition("=")[0].rpartition(".")[2] for setting in IDLE}
    classes = [NetworkSettings, *(cls for package in CONTRACTS for cls in ours(package).values())]
    fields = {f.name for cls in classes if is_dataclass(cls) for f in dataclass_fields(cls) if "when" in f.metadata}
    assert fields and fields <= tried


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


def test_the_commands_that_were_typed_have_the_ids_that_they_had() -> None:
    configs = compose_all([typed(name) for name in RUNS])
    found = {name: run_id(config) for name, config in zip(RUNS, configs, strict=True)}
    assert found == {name: facts(STORED / "runs" / name)["run_id"] for name in RUNS}


def test_the_stored_configuration_has_the_id_that_it_had() -> None:
    for name in RUNS:
        text = (STORED / "runs" / name / "config.yaml").read_text()
        assert text.splitlines()[0] == f"# run {run_id(load(text))}"


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_done_and_stays_as_it_is(copy: Callable[[str], tuple[Path, Config]], name: str) -> None:
    directory, config = copy(name)
    before = contents(directory)
    outcome = launch(prepare(config))
    assert outcome.done_before and outcome.status == facts(directory)["status"]
    assert contents(directory) == before


@pytest.mark.parametrize(("name", "other"), [*((name, None) for name in INTERRUPTED), *OTHER_NUMBERS.items()])
def test_an_interrupted_run_resumes_to_the_end_that_it_had(
    copy: Callable[[str], tuple[Path, Config]], worlds: Callable[[int], Any], name: str, other: int | None
) -> None:
    """With its own number of processes or another one."""
    directory, config = copy(name)
    processes = other or int(config.processes)
    if processes == 1:
        assert carry_out(World(0, 1, torch.device("cpu")), config, -1, -1) == "done"
    else:
        assert set(worlds(processes).call(carry_out, config, -1, -1)) == {"done"}
    at_the_same_end(directory, name)


def test_another_configuration_is_refused_in_a_stored_directory(
    copy: Callable[[str], tuple[Path, Config]], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = copy("finished-quadratics")
    before = contents(directory)
    words = [word for word in typed("finished-quadratics") if not word.startswith("run_dir=")]
    ended = exit_status(main, *words, f"run_dir={directory}", "seed=7")
    assert ended == 2 and facts(directory)["run_id"] in capsys.readouterr().err
    assert contents(directory) == before


STORED_STUDIES = Path(__file__).parent / "stored" / "studies"
STUDIES = sorted(path.name for path in STORED_STUDIES.iterdir() if path.name in catalogue.names())
KINDS = {"searches", "simulations", "facts", "consensus", "races", "schools", "exchange_times", "throughput", "runs"}
COMPUTED = ("searches", "simulations", "facts", "consensus", "schools")
"""Kinds of jobs whose numbers are not times: what they compute again is what they had."""
KNOWN_JOBS = sorted(
    f"{path.parents[1].name}/{path.parent.name}/{path.name}"
    for kind in KINDS
    for path in STORED_STUDIES.glob(f"*/{kind}/*")
)
BROKEN_OFF = [next(job for job in KNOWN_JOBS if job.split("/")[1] == kind) for kind in COMPUTED]


@pytest.fixture
def study_copy(tmp_path: Path) -> Callable[[str], Path]:
    """study -> a copy of its results directory."""

    def _copy(study: str) -> Path:
        return Path(shutil.copytree(STORED_STUDIES / study, tmp_path / study))

    return _copy


def asked(study: str, results_dir: Path) -> ChosenStudy:
    (one,) = chosen_studies([study, "scale=smoke", f"results_dir={results_dir}", *here(study)])
    return one


def here(study: str) -> list[str]:
    """What was typed besides."""
    (facts,) = STORED_STUDIES.glob(f"{study}/*/{study}/smoke/study.json")
    words = json.loads(facts.read_text())["command"].split()
    return [word for word in words if word.startswith(("device=", "progress=", "launcher."))]


def study_jobs(study: str, results_dir: Path) -> Iterator[tuple[Cell, Job]]:
    known = asked(study, results_dir)
    for cell in known.study.cells(known.overrides):
        for job in cell.jobs():
            yield cell, job


def study_files(directory: Path) -> dict[str, bytes]:
    """Every file but locks and figures."""
    files = (path for path in directory.rglob("*") if path.is_file())
    files = (path for path in files if not path.name.endswith(".lock") and path.suffix not in (".png", ".svg"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def values(file: bytes) -> list[dict[str, str]]:
    """The rows of values.csv, less how long each took: what several values share was counted for each of them."""
    rows = csv.DictReader(io.StringIO(file.decode()))
    return [{column: value for column, value in row.items() if column != "wall_s"} for row in rows]


@pytest.mark.parametrize("study", STUDIES)
def test_the_jobs_of_a_study_are_those_that_are_stored_and_stay_as_they_are(
    study_copy: Callable[[str], Path], study: str
) -> None:
    results_dir = study_copy(study)
    before = study_files(results_dir)
    found = {job.id: job for _, job in study_jobs(study, results_dir)}
    for job in found.values():
        assert job.directory.is_dir() and job.directory.is_relative_to(results_dir)
        assert job.finished() in (Status.done, Status.diverged)
        assert job.carry_out() is job.finished()
    assert set(found) == {path.name for kind in KINDS for path in results_dir.glob(f"{kind}/*")}
    assert study_files(results_dir) == before


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("study", STUDIES[::4])
def test_a_finished_study_computes_nothing(
    study_copy: Callable[[str], Path], study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where what is collected of a study has changed, the first start collects; no start runs a job."""
    results_dir = study_copy(study)
    stored = study_files(results_dir)
    for _ in range(2):
        before = study_files(results_dir)
        ended = exit_status(study_main, study, "scale=smoke", f"results_dir={results_dir}", *here(study))
        shown = capsys.readouterr()
        assert ended == 0, shown.err
        assert "nothing was computed" in shown.out
    after = study_files(results_dir)
    assert after == before, "the second start changes nothing"
    kept = [name for name in stored if name.split("/")[0] in KINDS]
    assert {name: after[name] for name in kept} == {name: stored[name] for name in kept}
    (collected,) = (name for name in stored if name.endswith("/values.csv"))
    assert sorted(map(str, values(after[collected]))) == sorted(map(str, values(stored[collected])))


@pytest.mark.parametrize("name", [name for name in BROKEN_OFF if name.partition("/")[0] in STUDIES])
def test_a_job_that_broke_off_goes_on(study_copy: Callable[[str], Path], name: str) -> None:
    study, kind, id = name.split("/")
    results_dir = study_copy(study)
    directory = results_dir / kind / id
    lines, kept = break_off(directory)
    job = next(job for _, job in study_jobs(study, results_dir) if job.id == id)
    assert job.finished() is None and job.carry_out() is Status.done
    again = read(lines)
    assert again[: len(kept)] == kept
    original = STORED_STUDIES / study / kind / id
    assert by_value(again) == approximately(by_value(read(original / lines.name)))


def break_off(directory: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Leave what a kill in the middle leaves: the first half of the lines, and a job that says that it runs."""
    (lines,) = (path for path in directory.glob("*.jsonl") if path.name != "metrics.jsonl")
    kept = lines.read_text().splitlines(keepends=True)
    lines.write_text("".join(kept[: len(kept) // 2]))
    status = json.loads((directory / "status.json").read_text())
    status.pop("wall_s")
    (directory / "status.json").write_text(json.dumps(status | {"status": "running"}))
    return lines, read(lines)


def read(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text().splitlines()]


def by_value(lines: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    """In an order that does not depend on who was tried first."""
    return sorted((sorted(flat(line)) for line in lines), key=str)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and words in nested lists and dictionaries, each with its place."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(one, f"{path}/{key:>6}")
    else:
        yield path, value


def approximately(lines: list[list[tuple[str, Any]]]) -> Any:
    """Equal but for the last digits of numbers."""
    close = lambda one: pytest.approx(one, rel=1e-9, abs=1e-12) if isinstance(one, float) else one  # noqa: E731
    return [[(path, close(value)) for path, value in line] for line in lines]
