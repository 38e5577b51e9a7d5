"""The notebooks run on whatever results there are, and are kept without outputs."""

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

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
STUDIES = {"bluefog": "bluefog_linear_regression", "relaysum": "relaysum_table1", "thesis": "thesis_fig5_2"}
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


def test_there_is_one_per_paper() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(STUDIES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
