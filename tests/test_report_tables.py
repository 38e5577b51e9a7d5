"""Tables of studies: what is in each cell, what is bold, what a reader is told."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.report.make import make
from decentral.report.spec import parse
from handmade import PUBLISHED, TABLE, table1, value, write


def made(tmp_path: Path, report: dict, values: list | None = None, scale: str = "paper", **more) -> Path:
    directory = tmp_path / "relaysum" / "mine" / scale
    make(write(directory, table1() if values is None else values, report, **more))
    return directory


def rows(directory: Path) -> list[list[str]]:
    lines = [line for line in (directory / "table.md").read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_a_cell_has_mean_and_standard_deviation_over_its_chosen_runs_and_the_published_number(tmp_path: Path) -> None:
    directory = made(tmp_path, {"caption": "Worst worker.", "table": TABLE, "published": PUBLISHED})
    assert rows(directory) == [
        ["method", "topology", "\N{GREEK SMALL LETTER ALPHA} = 1", "\N{GREEK SMALL LETTER ALPHA} = 0.01"],
        ["---", "---", "---:", "---:"],
        ["RelaySGD", "double binary trees", "87.2 ± 0.1 [87.4]", "**86.0 ± 1.0*** [84.6]"],
        ["D-PSGD", "ring", "**87.4 ± 0.0 (2 of 3 runs)** [87.4]", "51.0 ± 1.4 (1 of 3 diverged) [53.9]"],
    ]
    text = (directory / "table.md").read_text()
    assert text.startswith("Worst worker.\n\n**Test accuracy (%)**\n\n| method")
    assert "at the edge of the grid that was searched: RelaySGD, dbt, alpha=0.01." in text
    assert "In brackets: the published number." in text


def test_at_another_scale_the_published_numbers_stand_apart(tmp_path: Path) -> None:
    directory = made(tmp_path, {"table": TABLE, "published": PUBLISHED}, scale="small")
    text = (directory / "table.md").read_text()
    own, theirs = text.split("<details>")
    assert "[" not in own
    assert "compare with at scale=paper" in theirs
    assert "| D-PSGD | ring | 87.4 | 53.9 |" in theirs


def test_a_cell_says_how_many_of_the_runs_that_it_will_have_are_there(tmp_path: Path) -> None:
    values = [
        value("RelaySGD", "dbt", 1, 80, averaged=90.0),
        value("D2", "ring", 1, 70),
        value("D2", "ring", 0.1, "nan", status="diverged"),
    ]
    wanted = {
        '{"alpha": 1, "method": "RelaySGD", "topology": "dbt"}': 3,
        '{"alpha": 1, "method": "D2", "topology": "ring"}': 1,
        '{"alpha": 0.1, "method": "D2", "topology": "ring"}': 3,
    }
    directory = made(tmp_path, {"table": {**TABLE, "bold": False}}, values, wanted=wanted)
    assert [row[2:] for row in rows(directory)[2:]] == [["80.0 (1 of 3 runs)", "-"], ["70.0", "diverged (1 of 3)"]]
    with open(directory / "table.csv", newline="") as file:
        assert [(line["runs"], line["of_runs"]) for line in csv.DictReader(file)] == [
            ("1", "3"),
            ("1", "1"),
            ("0", "3"),
        ]


@pytest.mark.parametrize(("larger", "best"), [(True, "D-PSGD"), (False, "RelaySGD"), (None, None)])
def test_the_best_of_a_column_is_bold_if_it_is_known_what_is_better(tmp_path: Path, larger, best) -> None:
    values = [value("RelaySGD", "dbt", 1, 71.0), value("D-PSGD", "ring", 1, 72.0)]
    report = {"larger_is_better": larger, "table": {**TABLE, "format": "plain"}}
    directory = made(tmp_path, report, values, metrics={})
    assert [row[0] for row in rows(directory) if "**" in row[2]] == ([best] if best else [])
    assert (directory / "table.tex").read_text().count("\\textbf") == (1 if best else 0)


@pytest.mark.parametrize(("ours", "theirs", "bold"), [
    ((80.0, 82.0, 84.0), (70.0, 72.0, 74.0), True),
    ((80.0, 82.0, 84.0), (83.0, 79.0, 81.0), False),
    ((80.0, 82.0, 84.0), (79.0, 81.0, 83.0), True),  # ahead with every seed
    ((80.0, 80.0, 80.0), (80.0, 80.0, 80.0), False),
    ((11.0, 11.1, 11.2), (9.0, 9.1, 9.2), False),
])  # fmt: skip
def test_ties_within_the_noise_and_cells_at_the_level_of_chance_are_not_bold(
    tmp_path: Path, ours: tuple, theirs: tuple, bold: bool
) -> None:
    values = [value("RelaySGD", "dbt", 1, number, seed) for seed, number in enumerate(ours)]
    values += [value("D-PSGD", "ring", 1, number, seed) for seed, number in enumerate(theirs)]
    directory = made(tmp_path, {"table": TABLE}, values)
    assert [row[0] for row in rows(directory) if "**" in row[2]] == (["RelaySGD"] if bold else [])
    assert (directory / "table.tex").read_text().count("\\textbf") == bold
    said = "Bold: the best of a column, where it is ahead by more than the noise."
    assert all((said in (directory / f"table.{kind}").read_text()) == bold for kind in ("md", "tex"))


def test_the_csv_has_unrounded_numbers_for_each_cell(tmp_path: Path) -> None:
    directory = made(tmp_path, {"table": TABLE, "published": PUBLISHED})
    with open(directory / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["alpha"]) for line in lines] == [
        ("RelaySGD", "1"), ("RelaySGD", "0.01"), ("D-PSGD", "1"), ("D-PSGD", "0.01"),
    ]  # fmt: skip
    assert float(lines[0]["mean"]) == pytest.approx(87.2) and float(lines[0]["std"]) == pytest.approx(0.1)
    assert (lines[1]["at_edge"], lines[1]["rates"], lines[1]["runs"]) == ("True", "0.1", "3")
    assert (lines[3]["diverged"], lines[3]["published"]) == ("1", "53.9")


def test_the_latex_table_escapes_what_latex_would_read(tmp_path: Path) -> None:
    directory = made(tmp_path, {"table": TABLE}, [value("A & B_1", "ring", 1, 50.0)], title="100 % of #1")
    text = (directory / "table.tex").read_text()
    assert "A \\& B\\_1 & ring & " in text
    assert "100 \\% of \\#1" in text and "\\alpha$ = 1" in text
    assert text.index("\\toprule") < text.index("\\midrule") < text.index("\\bottomrule")


@pytest.mark.parametrize(("table", "complaint"), [
    ({"rows": ["metod"]}, "report.table uses a label 'metod'. Did you mean 'method'?"),
    ({"rows": ["method"]}, "report.table has one place for both method=RelaySGD, topology=dbt, alpha=1 and "),
])  # fmt: skip
def test_a_table_that_cannot_be_made_is_refused(tmp_path: Path, table: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match="study mine: ") as refused:
        made(tmp_path, {"table": table})
    assert complaint in str(refused.value)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no study\.json.*run decentral-study first"):
        make(tmp_path)
    directory = write(tmp_path / "relaysum" / "mine" / "small", table1(), {"table": TABLE})
    (directory / "values.csv").write_text("method,value\nD2,1\n")
    with pytest.raises(ConfigError, match="has no column 'topology'"):
        make(directory)
    (directory / "values.csv").unlink()
    with pytest.raises(ConfigError, match=r"values\.csv is missing"):
        make(directory)
    with pytest.raises(ConfigError, match="a label cannot be called 'seed'"):
        make(write(directory, [], {}, labels=["seed"]))


GOOD: dict[str, Any] = {
    "caption": "Stands alone.",
    "table": {"rows": ["method"], "columns": "alpha", "format": "percent", "digits": 2},
    "figures": [
        {"name": "one", "kind": "curves", "metric": "loss", "worker": 0, "x": "epoch", "ylim": [None, 1]},
        {"name": "two", "kind": "scaling", "x": "num_workers", "spread": "none"},
    ],
    "published": {"item": "table1", "tolerance": {"relative": "5e-2"}, "because": "of this", "scales": ["paper"]},
    "claims": [{"says": "so", "kind": "order", "better": {"alpha": 1}, "worse": {"alpha": 0.1}, "by": 5}],
}


def test_a_section_becomes_typed_objects() -> None:
    spec = parse(GOOD, "mine")
    assert spec.table and spec.table.digits == 2
    assert [figure.file for figure in spec.figures] == ["one", "two"]
    assert spec.published and spec.published.tolerance.relative == 0.05
    assert spec.claims[0].says == "so"
    assert parse({}, "mine").table is parse(None, "mine").table is None


@pytest.mark.parametrize(("change", "complaint"), [
    ({"captoin": "x"}, "study mine: report has no key 'captoin'. Did you mean 'caption'?"),
    ({"caption": [1]}, "study mine: report.caption=[1] does not fit: it should be text."),
    ({"table": {"rows": ["a"], "format": "procent"}}, "it should be one of percent, steps, scientific, plain."),
    ({"table": {"rows": ["a"], "digits": 1.5}}, "report.table.digits=1.5 does not fit: it should be a whole number"),
    ({"figures": [{"kind": "curve"}]}, "report.figures[0].kind=curve does not exist. Did you mean 'curves'?"),
    ({"figures": [{"kind": "curves", "name": "a"}] * 2}, "two are called 'a'"),
    ({"published": {"item": "table1", "because": "x", "tolerance": {}}}, "needs one of relative, absolute and factor"),
    ({"published": {"item": "table1", "because": "x", "tolerance": {"factor": 0.5}}}, "factor=0.5 is below 1"),
    ({"claims": [{"says": "so", "kind": "order", "better": {"a": 1}}]}, "'so' needs `worse`"),
    ({"claims": [{"says": "so", "kind": "steady", "across": {"a": [1]}, "within": 1}]}, "at least two of its values"),
])  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_work(change: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^study mine: report") as refused:
        parse({**GOOD, **change}, "mine")
    assert complaint in str(refused.value)
