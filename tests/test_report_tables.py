"""Tables of studies: what is in each cell, what is bold, what a reader is told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.report.make import make
from decentral.report.tables import together
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


def test_a_cell_without_runs_says_how_many_are_missing_and_one_that_only_diverged_says_so(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", alpha, 80, seed) for alpha in (1, 0.1) for seed in (1, 2)]
    values += [value("D2", "ring", 1, "nan", seed, status="diverged") for seed in (1, 2)]
    cells = {(row[0], i): text for row in rows(made(tmp_path, {"table": TABLE}, values)) for i, text in enumerate(row)}
    assert cells["D2", 2] == "diverged (2 of 2)"
    assert cells["D2", 3] == "-"


def test_a_cell_says_how_many_of_the_runs_that_it_will_have_are_there(tmp_path: Path) -> None:
    values = [
        value("RelaySGD", "dbt", 1, 80),
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


@pytest.mark.parametrize(("words", "wanted"), [
    ({"format": "percent"}, "1234.6"),
    ({"format": "steps", "digits": 0}, "1235"),
    ({"format": "scientific"}, "1.2e+03"),
    ({"format": "plain"}, "1234.568"),
])  # fmt: skip
def test_numbers_have_the_format_that_was_asked_for(tmp_path: Path, words: dict, wanted: str) -> None:
    directory = made(tmp_path, {"table": {"rows": ["method"], **words}}, [value("D2", "ring", 1, 1234.5678)])
    assert rows(directory)[-1] == ["D2", wanted]


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


def test_who_does_not_reach_the_target_never_does_though_the_averaged_model_did(tmp_path: Path) -> None:
    metric = {"metric": "simulated_s to test accuracy 95 %"}
    values = [value("D-PSGD", "ring", 1, 80.0, averaged=80.0, mean="", **metric)]
    values += [value("D2", "ring", 1, 80.0, averaged=80.0, mean=90.0, **metric)]
    directory = made(tmp_path, {"table": {**TABLE, "format": "plain", "digits": 1, "of": ["averaged", "mean"]}}, values)
    assert [row[2] for row in rows(directory) if row[0] in ("D-PSGD", "D2")] == ["80.0", "80.0", "never", "90.0"]


def test_a_cell_that_is_alone_in_its_column_is_not_the_best_of_it(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", alpha, 80.0 + seed, seed) for alpha in (1, 0.01) for seed in (1, 2)]
    values += [value("D-PSGD", "ring", 1, 60.0 + seed, seed) for seed in (1, 2)]
    directory = made(tmp_path, {"table": TABLE}, values)
    assert ["RelaySGD", "double binary trees", "**81.5 ± 0.7**", "81.5 ± 0.7"] in rows(directory)


def test_worst_mean_and_averaged_have_tables_of_their_own(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 1, 80.0, worst=80.0, averaged=90.0)]
    directory = made(tmp_path, {"table": {**TABLE, "of": ["value", "averaged"]}}, values)
    assert [row[2] for row in rows(directory) if row[0] == "RelaySGD"] == ["80.0", "90.0"]
    assert "**Test accuracy (%), averaged model**" in (directory / "table.md").read_text()


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


def test_a_study_without_any_values_yet_has_an_empty_table(tmp_path: Path) -> None:
    directory = made(tmp_path, {"table": TABLE, "figures": [{"kind": "curves", "lines": ["method"]}]}, [], labels=())
    assert rows(directory) == []


def test_the_learning_rate_may_be_a_label(tmp_path: Path) -> None:
    directory = write(tmp_path / "a" / "b" / "small", [], {"table": {"rows": ["lr"], "columns": "method"}})
    (directory / "values.csv").write_text(
        "method,lr,metric,value,seed,rate,chosen,at_edge,status,worst,mean,averaged,published,run,wall_s\n"
        "D2,0.10,accuracy,80,1,0.1,True,False,done,,,,,r,1\n"
    )
    facts = json.loads((directory / "study.json").read_text())
    (directory / "study.json").write_text(json.dumps(facts | {"labels": ["method", "lr"]}))
    make(directory)
    assert rows(directory)[0] == ["learning rate", "D2"] and rows(directory)[-1] == ["0.1", "80.000"]


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


def test_remarks_that_differ_in_numbers_only_are_one() -> None:
    ended = [f"stop_after_simulated_s=9.5 ended the run after {steps} of 400 steps" for steps in (30, 120, 60)]
    assert together([ended[0], "the data are CIFAR-10 (JPEG)", *ended[1:]]) == [
        "stop_after_simulated_s=9.5 ended the run after 30 to 120 of 400 steps",
        "the data are CIFAR-10 (JPEG)",
    ]
