"""The pages of results/ and the command decentral-report."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from decentral.cli import report as command
from decentral.errors import ConfigError
from decentral.report.make import make, report_all, report_pages
from decentral.store.files import alone
from decentral.study import catalogue
from decentral.study.study import Study
from handmade import PUBLISHED, TABLE, courses, table1, value, write

CLAIMS = [
    {"says": "RelaySGD wins.", "kind": "order", "better": {"method": "RelaySGD", "alpha": 0.01},
     "worse": {"method": "D-PSGD", "alpha": 0.01}},
    {"says": "D-PSGD is steady.", "kind": "steady", "cell": {"method": "D-PSGD"}, "across": {"alpha": [1, 0.01]},
     "within": 1},
]  # fmt: skip
FIGURE = {"name": "course", "kind": "curves", "worker": "worst", "panels": "alpha", "lines": ["method"],
          "spread": "range", "caption": "Accuracy over steps"}  # fmt: skip
REPORT = {"caption": "Worst.", "table": TABLE, "figures": [FIGURE], "published": PUBLISHED, "claims": CLAIMS}


def report(words: list[str]) -> None:
    """`decentral-report`, which has to end well."""
    with pytest.raises(SystemExit) as exit:
        command.main(words)
    assert exit.value.code == 0


@pytest.fixture(autouse=True)
def only_two_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue: relaysum_table1, of which there are results, and thesis_tableA_1, of which there are none."""
    item = {"item": "tableA.1", "tolerance": {"absolute": 1}, "because": "one run each"}
    known = {
        "relaysum_table1": ("relaysum", "Table 1", REPORT),
        "thesis_tableA_1": ("thesis", "Table A.1", {"published": item, "claims": CLAIMS}),
    }

    class Loaded(Study):
        def cells(self, overrides):  # type: ignore[no-untyped-def]
            return []

    def load(name: str, scale: str, config_dir: str | None = None) -> Study:
        paper, item, report = known[name]
        return Loaded(title=f"Title of {name}", paper=paper, item=item, report=report, needs="a GPU")

    monkeypatch.setattr(catalogue, "names", lambda config_dir=None: sorted(known))
    monkeypatch.setattr(catalogue, "scales", lambda name, config_dir=None: ["small", "paper"])
    monkeypatch.setattr(catalogue, "load", load)


@pytest.fixture
def results_dir(tmp_path: Path) -> Path:
    curves = courses("RelaySGD", "dbt", 1, 90)
    for scale in ("paper", "small", "smoke"):
        write(tmp_path / "relaysum" / "relaysum_table1" / scale, table1(), REPORT, curves)
    (tmp_path / "runs" / "abc").mkdir(parents=True)
    return tmp_path


def rows(path: Path) -> dict[str, list[str]]:
    lines = [
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in path.read_text().splitlines()
        if line.startswith("| [")
    ]
    return {cells[0]: [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_scoreboard_has_a_row_for_every_item_run_or_not(results_dir: Path) -> None:
    report_all(results_dir)
    assert rows(results_dir / "README.md") == {
        "[Table 1](relaysum/README.md#relaysum_table1)": [
            "Title of relaysum_table1", "paper, small", "2 / 2 / 26", "", "1 / 1 / 0", "2 min 2 s",
        ],
        "[Table A.1](thesis/README.md#thesis_tableA_1)": [
            "Title of thesis_tableA_1", "not run (needs a GPU)", "0 / 0 / 14", "", "0 / 0 / 2", "",
        ],
    }  # fmt: skip
    text = (results_dir / "README.md").read_text()
    assert "1 of 2 items were run. Published numbers: 2 of 4 met (50 %), 40 not run." in text
    assert "Claims: 1 of 2 met (50 %), 2 not run." in text


def test_a_papers_page_has_claim_command_result_departures_and_provenance(results_dir: Path) -> None:
    report_all(results_dir)
    text = (results_dir / "relaysum" / "README.md").read_text()
    assert text.startswith("# RelaySum for Decentralized Deep Learning on Heterogeneous Data")
    for part in (
        "## Table 1: Title of relaysum_table1",
        "- RelaySGD wins.\n- D-PSGD is steady.",
        "### Table 1 at scale=paper\n\n```\ndecentral-study relaysum_table1 scale=paper\n```",
        "| D-PSGD | ring | **87.4 ± 0.0 (2 of 3 runs)** [87.4] |",
        "![Accuracy over steps](relaysum_table1/paper/course.png)\n\n*Accuracy over steps.* Line: mean of 2 seeds; "
        "band: lowest to highest of 2 seeds. [SVG](relaysum_table1/paper/course.svg)",
        "**Published numbers** (table1): 2 met, 2 not met, 26 not run. Tolerance: 0.5 percentage points, because seeds",
        "| dpsgd\\|ring\\|alpha=0.01 | 51 ± 1.4 | 53.9 |",
        "| D-PSGD is steady. | **not met** | within 1 |",
        "**Departures**:\n\n- Digits instead of CIFAR-10.",
        "commit 0123456789ab, version 0.1.0, scale=paper, 12 runs, 1 min 1 s, 2 cores; ended 2026-01-02",
        "Published numbers that no study compares itself with: table10-learning-rates (30), ",
    ):
        assert part in text, part
    assert "at scale=small" in text and "at scale=smoke" not in text
    other = (results_dir / "thesis" / "README.md").read_text()
    assert "**Not run.** It needs a GPU. Command: `decentral-study thesis_tableA_1 scale=paper`" in other
    for link in ("relaysum_table1/paper/course.png", "relaysum_table1/paper/verdicts.csv"):
        assert (results_dir / "relaysum" / link).is_file()


def test_a_changed_study_is_a_variant_that_counts_for_nothing(results_dir: Path) -> None:
    report_all(results_dir)
    board = (results_dir / "README.md").read_bytes()
    wins = [value("RelaySGD", "dbt", 0.01, 90.0), value("D-PSGD", "ring", 0.01, 10.0)]
    for scale in ("paper", "small"):
        changed = results_dir / "relaysum" / "relaysum_table1" / f"{scale}-a1b2c3"
        write(changed, wins, REPORT, scale=scale, changed=["study.seeds=[1]"])
    made, _, _ = report_all(results_dir, scale="paper")
    assert (results_dir / "README.md").read_bytes() == board
    (variant,) = [one for one in made if not one.results.original]
    assert {one.why for one in variant.verdicts if one.kind == "number"} == {"the study was changed: study.seeds=[1]"}
    assert variant.summary().startswith("relaysum_table1, scale=paper (changed): ")
    text = (results_dir / "relaysum" / "README.md").read_text()
    line = "[small-a1b2c3](relaysum_table1/small-a1b2c3) at scale=small: `study.seeds=[1]`; claims: 1 met, 0 not met, 1"
    assert "**Variants** (not counted):\n\n- [paper-a1b2c3]" in text and line in text


@pytest.mark.slow
def test_a_directory_that_is_no_study_is_left_out_with_a_remark(results_dir: Path, capsys) -> None:
    report_all(results_dir)
    board = (results_dir / "README.md").read_text()
    foreign = {
        "json": "{",
        "labels": '{"study": "a", "scale": "small", "labels": 7}',
        "values": '{"study": "a", "scale": "b"}',
    }
    for name, text in foreign.items():
        (results_dir / "own" / name / "small").mkdir(parents=True)
        (results_dir / "own" / name / "small" / "study.json").write_text(text)
    write(results_dir / "own" / "report" / "small", table1(), ["no keys"])  # type: ignore[arg-type]
    write(results_dir / "own" / "wanted" / "small", table1(), {}, wanted={"no labels": 3})
    wrong = [{"says": "So.", "kind": "order", "better": {"metod": "D2"}, "worse": {"method": "D2"}}]
    write(results_dir / "own" / "claims" / "small", table1(), {"claims": wrong})
    report([f"results_dir='{results_dir}'"])
    said = capsys.readouterr().out
    remarks = [line.removeprefix("Note:     ") for line in said.splitlines() if " is left out: " in line]
    assert sorted(remark.split("/")[1] for remark in remarks) == sorted([*foreign, "claims", "report", "wanted"])
    assert "Made:     3 reports" in said
    text = (results_dir / "README.md").read_text()
    assert all(f"- {remark}\n" in text for remark in remarks)
    assert [line for line in text.splitlines() if " is left out: " not in line and line] == [
        line for line in board.splitlines() if line
    ]
    with pytest.raises(ConfigError, match="names a label 'metod'"):
        report_all(results_dir, ["claims"])


def test_a_claim_met_within_the_noise_is_counted_apart(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 80.1 + seed, seed) for seed in (0, 2)]
    values += [value("D-PSGD", "ring", 0.01, 82 - seed, seed) for seed in (0, 2)]
    made = make(write(tmp_path / "relaysum" / "relaysum_table1" / "small", values, REPORT))
    assert "Claims:   1 met (1 of them within the noise), 0 not met, 1 not run" in made.summary()
    report_pages(tmp_path)
    line = rows(tmp_path / "README.md")["[Table 1](relaysum/README.md#relaysum_table1)"]
    assert line[4] == "1 / 0 / 1 (1 within the noise)"
    text = (tmp_path / "README.md").read_text()
    assert "Claims: 1 of 1 met (100 %), 1 of them within the noise, 3 not run." in text


def test_two_studies_that_publish_at_once_wait_for_each_other(results_dir: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with alone(results_dir):
            other = pool.submit(report_pages, results_dir)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.5)
            assert not (results_dir / "README.md").exists()
        other.result(timeout=240)
        assert (results_dir / "README.md").exists()


# The command


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["relaysum_tabel1"], "there is no study relaysum_tabel1. Did you mean 'relaysum_table1'?"),
    (["results_dr=x"], "decentral-report has no setting 'results_dr'. Did you mean 'results_dir'?"),
    (["figures.width=colum"], "figures.width=colum is no width: it should be screen, column (3.25 inches)"),
    (["results_dir=/nowhere"], "results_dir=/nowhere holds no results: run decentral-study first."),
    (["thesis_tableA_1", "scale=paper"], "of thesis_tableA_1 at scale=paper yet: run decentral-study first, or give"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(results_dir: Path, monkeypatch, capsys, arguments, complaint) -> None:
    monkeypatch.chdir(results_dir)
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.startswith("decentral-report: ") and said.count("\n") == 1
    assert complaint in said
