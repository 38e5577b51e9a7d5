"""Ids of runs and of studies' jobs are those that commit 0ffd394 gave, but where a formula is another one since then
(`Algorithm.revision`): stored results count as what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decentral.cli.study_arguments import chosen_studies
from decentral.config.composition import compose_each
from decentral.config.identity import run_id
from decentral.config.schema import Config
from decentral.errors import ConfigError
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
        return [job.id for cell in asked.study.cells(asked.overrides) for job in cell.jobs()]
    except ConfigError as error:
        return str(error)


def studies(scale: str) -> list[str]:
    return [key.split()[0] for key in JOBS if key.split()[1] == scale]


@pytest.mark.parametrize("name", studies("smoke"))
def test_a_study_has_the_jobs_that_it_had(name: str) -> None:
    assert jobs(name, "smoke") == JOBS[f"{name} smoke"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_all_studies_have_the_jobs_that_they_had_at_larger_scales(scale: str) -> None:
    known = {name: JOBS[f"{name} {scale}"] for name in studies(scale)}
    assert {name: jobs(name, scale) for name in known} == known


def test_every_study_is_known() -> None:
    assert {key.split()[0] for key in JOBS} <= set(catalogue.names())
