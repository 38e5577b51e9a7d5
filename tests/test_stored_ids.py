"""Ids of runs and of studies' jobs are those that commit 0ffd394 gave, but where a formula is another one since then
(`Algorithm.revision`): stored results count as what they are."""

from __future__ import annotations

import json
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from decentral.cli.study_arguments import chosen_studies
from decentral.config.composition import compose_all, compose_each
from decentral.config.identity import run_id
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.settings import NetworkSettings
from decentral.registry.find import CONTRACTS, ours
from decentral.study import catalogue

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


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the folder with the graph, the problem and the images."""
    monkeypatch.chdir(STORED / "data")


def test_there_are_hundreds_of_them() -> None:
    assert len(IDS["settings"]) > 400 and len(IDS["pairs"]) > 200 and sum(map(len, JOBS.values())) > 1000
    assert len(set(IDS["settings"].values())) > 300  # the others differ in where and how, not in what


def test_a_run_has_the_id_that_it_had_for_a_sample_of_settings() -> None:
    assert differences(dict(list(IDS["settings"].items())[::4])) == {}


def test_a_run_whose_formula_has_changed_has_another_id() -> None:
    """awc with weight decay; neither awc without it, nor atc with it."""
    awc, decay = "algo=dpsgd task=quadratics topology=ring algo.mode=awc", "optim.weight_decay=1e-4"
    own = {f"{awc} {decay}": "d15fc2225f61", f"{awc} {decay} algo.mode=atc": "37626ba707b4"}  # of commit 0ffd394
    assert differences(own).keys() == {f"{awc} {decay}"}
    assert differences({awc: IDS["settings"][awc]}) == {}


@pytest.mark.slow
def test_a_run_has_the_id_that_it_had_whatever_is_set() -> None:
    assert differences(IDS["settings"]) == {}


@pytest.mark.slow
def test_a_run_has_the_id_that_it_had_for_every_algorithm_on_every_topology() -> None:
    assert differences(IDS["pairs"]) == {}


def jobs(name: str, scale: str) -> list[str] | str:
    """The ids of a study's jobs, or why it is refused."""
    (asked,) = chosen_studies([name, f"scale={scale}", "results_dir=nothing"])
    try:
        return sorted(job.id for cell in asked.study.cells(asked.overrides) for job in cell.jobs())
    except ConfigError as error:
        return str(error)


def in_order(known: list[str] | str) -> list[str] | str:
    """The order of cells may change; a refusal is a sentence."""
    return known if isinstance(known, str) else sorted(known)


def studies(scale: str) -> list[str]:
    return [key.split()[0] for key in JOBS if key.split()[1] == scale]


@pytest.mark.parametrize("name", studies("smoke"))
def test_a_study_has_the_jobs_that_it_had(name: str) -> None:
    assert jobs(name, "smoke") == in_order(JOBS[f"{name} smoke"])


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_all_studies_have_the_jobs_that_they_had_at_larger_scales(scale: str) -> None:
    known = {name: in_order(JOBS[f"{name} {scale}"]) for name in studies(scale)}
    assert {name: jobs(name, scale) for name in known} == known


def test_every_study_is_known() -> None:
    assert {key.split()[0] for key in JOBS} <= set(catalogue.names())


NOT_ADAPTED = "algo=allreduce task=quadratics compress=topk"
DRAWN = "algo=dpsgd topology=ring task=quadratics num_workers=4"
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


@pytest.mark.parametrize("setting", IDLE)
def test_a_setting_that_is_not_looked_at_makes_no_other_run(setting: str) -> None:
    if setting.endswith("nsga2"):
        pytest.importorskip("pymoo")
    words = [text.split() for base in IDLE[setting] for text in (base, f"{base} {setting}")]
    idle, idle_too, awake, awake_too = (run_id(config) for config in compose_all(words))
    assert idle == idle_too and awake != awake_too


def test_every_such_setting_is_in_the_table() -> None:
    tried = {setting.partition("=")[0].rpartition(".")[2] for setting in IDLE}
    classes = [NetworkSettings, *(cls for package in CONTRACTS for cls in ours(package).values())]
    fields = {f.name for cls in classes if is_dataclass(cls) for f in dataclass_fields(cls) if "when" in f.metadata}
    assert fields and fields <= tried
