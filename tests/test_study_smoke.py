"""Every study, at scale=smoke: it plans, runs, reports, and has nothing left to do afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from decentral.cli import study as command
from decentral.study import catalogue

NAMES = [name for name in catalogue.names() if "smoke" in catalogue.scales(name)]


QUICK = {"relaysum_fig2"}
STUDIES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES]


def start(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    return exit.value.code


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("results")


def test_every_study_has_the_scale_smoke():
    assert catalogue.names() == NAMES


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_reports_and_is_then_done(name: str, results: Path, capsys: pytest.CaptureFixture):
    arguments = [name, "scale=smoke", f"results_dir={results}", "progress=false", "launcher.slots=1"]
    assert start(*arguments) == 0, capsys.readouterr().out
    study = catalogue.load(name, "smoke")
    directory = results / study.paper / name / "smoke"
    facts = json.loads((directory / "study.json").read_text())
    assert facts["study"] == name and facts["failed"] == 0 and facts["jobs"] > 0
    with open(directory / "values.csv") as file:
        assert list(csv.DictReader(file)), "the study found nothing"
    for figure in study.report.get("figures", []):
        assert (directory / f"{figure.get('name', 'figure')}.png").stat().st_size > 5000
        assert (directory / f"{figure.get('name', 'figure')}.svg").exists()
    if "table" in study.report:
        assert all((directory / f"table.{suffix}").exists() for suffix in ("csv", "md", "tex"))
    assert (results / "README.md").exists() and (results / study.paper / "README.md").exists()
    capsys.readouterr()
    assert start(*arguments) == 0
    assert "nothing was computed" in capsys.readouterr().out
