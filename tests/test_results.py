"""What is committed in results/ is read by today's code, gives the same reports, and is what README.md says."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

from decentral.config.files import load
from decentral.config.identity import run_id
from decentral.report.make import make
from decentral.report.pages import report_pages
from decentral.report.results import find, read
from decentral.report.summary import summary
from decentral.store.metrics import AXES
from decentral.study import catalogue

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text()
STUDIES = find(RESULTS)
RUNS = sorted(path for path in (RESULTS / "readme").iterdir())
DRAWN_WITH = "3.11.2"
"""The matplotlib of the committed figures; another version may draw other bytes."""


def between(mark: str) -> str:
    """What README.md says between <!-- mark --> and <!-- /mark -->."""
    return README.partition(f"<!-- {mark} -->\n")[2].partition(f"\n<!-- /{mark} -->")[0]


INCOMPLETE = {"relaysum_table1_vgg11"}  # two of its three cells: time on the GPU was up


def name(directory: Path) -> str:
    return f"{directory.parent.name}-{directory.name}"


def most_telling() -> list[Path]:
    """Of each study the results at the largest scale that was run."""
    scales = ("small", "laptop", "paper")
    known = [path for path in STUDIES if path.name in scales]
    return [
        max((path for path in known if path.parent == study), key=lambda path: scales.index(path.name))
        for study in sorted({path.parent for path in known})
    ]


@pytest.mark.parametrize("directory", most_telling(), ids=name)
def test_a_claim_that_is_not_met_says_why(directory: Path) -> None:
    results = read(directory)
    with open(directory / "verdicts.csv", newline="") as file:
        missed = {row["what"]: row["why"] for row in csv.DictReader(file) if row["verdict"] == "not met"}
        claims = {says: missed[says] for says in (claim.says for claim in results.spec.claims) if says in missed}
    assert {says for says, why in claims.items() if not why.endswith(results.reasons.get(says, "no reason"))} == set()
    assert set(results.reasons) <= set(claims)


# -- studies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", STUDIES, ids=name)
def test_the_results_of_a_study_are_read(directory: Path) -> None:
    results = read(directory)
    assert results.study in catalogue.names() and results.original
    assert results.facts["complete"] == (results.study not in INCOMPLETE)
    assert len(results.values) and results.metric and results.entries()
    assert results.values["status"].isin(["done", "diverged", "not reached"]).all()
    has_curves = any(directory.glob("curves.csv*"))
    assert has_curves == bool(len(results.curves))
    if has_curves:
        assert results.curves[list(AXES)].notna().any(axis=1).all()
    with open(directory / "verdicts.csv", newline="") as file:
        verdicts = list(csv.DictReader(file))
    assert {one["verdict"] for one in verdicts} <= {"met", "not met", "not run", "not compared"}


@pytest.mark.slow
@pytest.mark.parametrize("directory", most_telling(), ids=name)
def test_the_tables_of_a_study_are_made_again_byte_for_byte(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decentral.report.figures.canvas.save", lambda figure, results, lines, output: [])
    compare(directory, tmp_path, {".csv", ".md", ".tex"})


@pytest.mark.slow
@pytest.mark.parametrize("directory", most_telling(), ids=name)
def test_the_figures_of_a_study_are_drawn_again_byte_for_byte(directory: Path, tmp_path: Path) -> None:
    compare(directory, tmp_path, {".png", ".svg"})


def drawn(path: Path) -> bytes:
    """The bytes of a file; clip paths, which matplotlib names by a hash of unrounded numbers, by their order."""
    content = path.read_bytes()
    names = dict.fromkeys(re.findall(rb'clipPath id="(p[0-9a-f]{10})"', content)) if path.suffix == ".svg" else {}
    for number, one in enumerate(names):
        content = content.replace(one, b"clip%d" % number)
    return content


def compare(directory: Path, tmp_path: Path, suffixes: set[str]) -> None:
    """The report that is made from a copy of what the study collected has the same files as `directory`."""
    copy = tmp_path / directory.relative_to(RESULTS)
    copy.mkdir(parents=True)
    given = ("study.", "values.", "curves.csv", "reasons.")
    collected = [path for path in directory.iterdir() if path.name.startswith(given)]
    for path in collected:
        shutil.copy(path, copy)
    reported = {path.name for path in directory.iterdir()} - {path.name for path in collected}
    made = {path.name for path in make(copy).files if path.suffix in suffixes}
    assert made == {file for file in reported if Path(file).suffix in suffixes}
    for file in made:
        if Path(file).suffix not in (".png", ".svg") or matplotlib.__version__ == DRAWN_WITH:
            assert drawn(copy / file) == drawn(directory / file), file


@pytest.mark.slow
def test_the_pages_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    for directory in STUDIES:
        shutil.copytree(directory, copy / directory.relative_to(RESULTS))
    for written_by_hand in RESULTS.glob("*/summary.md"):
        shutil.copy(written_by_hand, copy / written_by_hand.relative_to(RESULTS))
    report_pages(copy)
    written = {path.relative_to(copy) for path in copy.rglob("README.md")}
    papers = ("benchmark", "bluefog", "flex", "relaysum", "thesis", "time", "wagma")
    assert written == {Path("README.md"), *(Path(paper) / "README.md" for paper in papers)}
    for page in written:
        assert (copy / page).read_text() == (RESULTS / page).read_text()


# -- the runs of the README --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", RUNS, ids=lambda directory: directory.name)
def test_a_kept_run_has_the_id_that_its_configuration_has_today(directory: Path) -> None:
    text = (directory / "config.yaml").read_text()
    status = json.loads((directory / "status.json").read_text())
    assert status["status"] == "done"
    assert text.splitlines()[0] == f"# run {status['run_id']}"
    assert run_id(load(text)) == status["run_id"]


# -- README.md agrees --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/readme.py, which fills in the README's numbers."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_accuracies_of_the_kept_runs(script: ModuleType) -> None:
    assert between("results") == script.results_table()


def test_the_readme_has_the_totals_and_table_1(script: ModuleType) -> None:
    assert between("scoreboard") == script.scoreboard()


def test_the_readme_has_the_figures_of_the_benchmarks(script: ModuleType) -> None:
    assert between("bench") == script.bench()


def test_the_readme_shows_the_summary_of_a_kept_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RESULTS / "readme" / "relaysgd-dbt", run)
    (run / "final_metrics.jsonl").rename(run / "metrics.jsonl")
    shown = between("summary").removeprefix("```\n").removesuffix("\n```")
    assert [line.rstrip() for line in summary(run).splitlines()][: len(shown.splitlines())] == shown.splitlines()
