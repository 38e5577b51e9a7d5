"""The notebooks run on whatever results there are, and are kept with what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decentral.report.notebook import Studies
from decentral.report.spec import parse
from decentral.study import catalogue
from handmade import TABLE, courses, table1, write

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
TRAINING = FOLDER / "training.ipynb"
NOTEBOOKS = sorted(set(FOLDER.glob("*.ipynb")) - {TRAINING})
STUDIES = {
    "benchmark": "benchmark_methods",
    "bluefog": "bluefog_linear_regression",
    "flex": "flex_choice_map",
    "relaysum": "relaysum_table1",
    "thesis": "thesis_fig5_2",
    "time": "time_readme",
    "wagma": "wagma_fig5",
}
FIGURE = {"kind": "curves", "worker": "worst", "panels": "alpha", "lines": ["method"]}
RUN = """
import json, sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=60).execute()
shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
print(json.dumps(shown))
"""


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def test_there_is_one_per_paper_and_one_for_our_own_studies() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(STUDIES)


def shown(path: Path) -> list[dict[str, str]]:
    """What the cells of a notebook show, as it is kept, by the kind of what it is."""
    outputs = [output["data"] for cell in cells(path) for output in cell.get("outputs", [])]
    return [{kind: "".join(value) for kind, value in data.items()} for data in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_is_what_is_shown_of_the_stored_results(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(path)],
        cwd=FOLDER, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    for kept, found in zip(shown(path), json.loads(done.stdout), strict=True):
        assert kept.get("text/markdown") == found.get("text/markdown"), "make notebooks"
        assert ("image/png" in kept) == ("image/png" in found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_has_been_carried_out_and_the_file_stays_small(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert path.stat().st_size < 1e6


ONE_IS_QUICK = [path if path.stem == "relaysum" else pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", ONE_IS_QUICK, ids=lambda path: path.stem)
def test_a_notebook_draws_what_was_run_and_says_how_to_run_the_rest(path: Path, tmp_path: Path) -> None:
    report = {"table": TABLE, "figures": [FIGURE], "claims": []}
    write(tmp_path / path.stem / STUDIES[path.stem] / "smoke", table1(), report, courses("RelaySGD", "dbt", 1, 90))
    environment = os.environ | {"DECENTRAL_RESULTS": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    shown = json.loads(done.stdout)
    assert any("image/png" in data for data in shown)
    texts = [data.get("text/markdown", "") for data in shown]
    assert any("| RelaySGD |" in text for text in texts)
    if path.stem != "benchmark":  # which is a single study
        assert any("has no results in" in text and "run `decentral-study" in text for text in texts)
    assert list(tmp_path.iterdir()) == [tmp_path / path.stem]


def test_a_notebook_never_shows_a_changed_study(tmp_path: Path) -> None:
    changed = tmp_path / "relaysum" / "mine" / "small-a1b2c3"
    write(changed, table1(), {"table": TABLE}, scale="small", changed=["lr=1"])
    assert Studies("relaysum", tmp_path).results("mine") is None
    original = write(tmp_path / "relaysum" / "mine" / "smoke", table1(), {"table": TABLE})
    found = Studies("relaysum", tmp_path).results("mine")
    assert found is not None and found.directory == original


def test_every_study_is_in_the_notebook_of_its_paper() -> None:
    for name in catalogue.names():
        paper = catalogue.load(name, catalogue.scales(name)[0]).paper
        text = (NOTEBOOKS[0].parent / f"{paper}.ipynb").read_text()
        assert re.search(rf"\b{name}\b", text), f"{name} is missing in notebooks/{paper}.ipynb"


def test_every_figure_that_a_notebook_names_exists() -> None:
    for path in NOTEBOOKS:
        text = " ".join("".join(cell["source"]) for cell in cells(path))
        for study, figure in re.findall(r'paper\.figure\("(\w+)"(?:, "(\w+)")?\)', text):
            report = parse(catalogue.load(study, catalogue.scales(study)[0]).report, study)
            assert (figure or report.figures[0].file) in [one.file for one in report.figures], (study, figure)


@pytest.mark.slow
def test_the_notebook_on_training_shows_what_it_does_and_does_it_again(tmp_path: Path) -> None:
    kept = [cell for cell in cells(TRAINING) if cell["cell_type"] == "code"]
    figures = [output for cell in kept for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(figures) == 2 and all(cell["execution_count"] for cell in kept)
    command = [sys.executable, "-W", "ignore", "-c", RUN.replace("timeout=60", "timeout=300"), str(TRAINING)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    texts = [data.get("text/plain", "") for data in json.loads(done.stdout)]
    assert any("% of the test examples, by the averaged model" in text for text in texts)
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 3
