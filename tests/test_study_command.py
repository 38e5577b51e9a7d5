"""`decentral-study`: what it accepts, what it refuses, and where it puts things."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import exit_status
from decentral.cli import study as command
from decentral.cli.report import main as report_command
from decentral.cli.study import chosen_studies
from decentral.registry import plugins

STUDY = """
kind: comparison
title: Two small runs
paper: mine
item: first
base: [task=quadratics, num_workers=4, steps=20, topology=ring]
rows:
  - {method: D-PSGD, topology: ring, base: [algo=dpsgd]}
  - {method: D2, topology: ring, base: [algo=d2]}
tune: {rule: fixed}
seeds: [1]
measure: {split: objective, metric: suboptimality, worker: averaged, percent: false, larger_is_better: false}
scales: {smoke: {}, small: {base: [steps=30]}}
report:
  table: {rows: [method], format: scientific}
"""


pytestmark = pytest.mark.usefixtures("inline", "few_pages")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "two.yaml").write_text(STUDY)
    return tmp_path / "conf"


def study(*arguments: object) -> int:
    return exit_status(command.main, *map(str, arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["relaysum_tabel1"], "Did you mean 'relaysum_table1'?"),
        (["relaysum_table1", "scale=big"], "scale=big"),
        (["two", "scale=paper"], "scale=paper is not defined for two"),
        (["two", "topolgy=ring"], "Did you mean 'topology'?"),
        (["two", "study.seeds=[x]"], "seeds"),
        (["two", "algo=relaysgd"], "tree"),
        (["two", "launcher.slots=0"], "slots"),
        (["two", "seed=3"], "two sets seed for each"),
        (["two", "study.seeds=[1"], "study.seeds=[1"),
        (
            ["two", "figures.title=false"],
            "belongs to decentral-report",
        ),
        (["scale=small"], "name of a study"),
        (["two", "--plan", "--report"], "give one of them"),
        (["two", "--device=cpu"], "settings have no dashes; write device=... instead"),
        (["two", "--report"], "no results"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence_before_any_run(
    arguments: list[str], said: str, folder: Path, tmp_path: Path, capsys
):
    results = tmp_path / "results"
    assert study(*arguments, "--config-dir", folder, f"results_dir={results}") == 2
    complaint = capsys.readouterr().err
    assert said in complaint and len(complaint.strip().splitlines()) == 1
    assert not results.exists()


def test_the_listing_is_grouped_by_paper_fits_100_columns_and_marks_scales_with_results(
    folder: Path, tmp_path: Path, monkeypatch, capsys
):
    (folder / "study" / "long.yaml").write_text(STUDY.replace("item: first", f"item: {'word ' * 40}"))
    monkeypatch.chdir(tmp_path)
    for results, scale in (("results/own", "smoke"), ("results", "small")):
        (tmp_path / results / "mine" / "two" / scale).mkdir(parents=True)
        (tmp_path / results / "mine" / "two" / scale / "study.json").write_text("{}")
    assert study("--config-dir", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    own = lines[lines.index("mine") + 1 :]
    assert own[0].split()[:3] == ["long", "word", "word"] and "... " in own[0] and own[0].endswith("  smoke small")
    assert own[1].split() == ["two", "first", "smoke*", "small*"]
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(names) == sorted(command.catalogue.names(str(folder)))
    assert any(line.startswith("RelaySum for Decentralized") for line in lines)
    assert any(line.startswith("Bohl's thesis: Exploring") for line in lines)


@pytest.mark.slow
def test_other_settings_are_another_study_with_a_directory_of_its_own(folder: Path, tmp_path: Path):
    arguments = ["two", "--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false"]
    assert study(*arguments, "scale=smoke") == 0
    assert study(*arguments, "scale=smoke", "lr=0.01") == 0
    assert study(*arguments, "scale=smoke", "study.seeds=[1,2]") == 0
    made = sorted(path.name for path in (tmp_path / "r" / "mine" / "two").iterdir())
    assert len(made) == 3 and made[0] == "smoke"
    facts = [json.loads((tmp_path / "r" / "mine" / "two" / name / "study.json").read_text()) for name in made]
    assert sorted(one["jobs"] for one in facts) == [2, 2, 4]


PLUG_IN = pytest.mark.skipif(not plugins.shipped(), reason="a study of a plug-in")


@pytest.mark.parametrize(
    ("study", "counts", "does_not"),
    [
        ("thesis_table5_1", ["device=cuda", "processes=1", "network.transport=torch"], ["network.timeout_s=9"]),
        pytest.param("bluefog_fig11", ["network.transport=shared_memory"], ["device=cpu"], marks=PLUG_IN),
        pytest.param("bluefog_consensus", ["network.transport=torch"], ["checkpoint_every_s=5"], marks=PLUG_IN),
        ("relaysum_table1_vgg11_milder", [], ["device=cuda", "processes=1", "network.transport=torch"]),
    ],
)
def test_a_study_that_takes_times_is_another_one_where_it_is_computed_in_another_way(study, counts, does_not):
    (usual,) = chosen_studies([study, "scale=smoke"])
    for override in (*counts, *does_not):
        (other,) = chosen_studies([study, "scale=smoke", override])
        assert other.changed == [override] * (override in counts)
        assert (other.directory == usual.directory) == (override in does_not)


@pytest.mark.slow
def test_results_of_an_earlier_definition_keep_its_words_and_say_so(folder: Path, tmp_path: Path, capsys):
    """Otherwise a departure of today would stand beside numbers of yesterday's set-up. What is measured shows in no
    job."""
    arguments = ["two", "--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false", "scale=smoke"]
    assert study(*arguments) == 0
    made, yaml = tmp_path / "r" / "mine" / "two" / "smoke", folder / "study" / "two.yaml"
    base = json.loads((made / "study.json").read_text())["base"]
    shutil.rmtree(tmp_path / "r" / "runs")
    new_words = STUDY.replace("report:", "report:\n  caption: Something new")
    for text in (new_words.replace("steps=20", "steps=25"), new_words.replace("worker: averaged", "worker: worst")):
        yaml.write_text(text)
        capsys.readouterr()
        assert study(*arguments, "--report") == 0
        assert "belong to an earlier definition of two and keep its text" in capsys.readouterr().out
        assert json.loads((made / "study.json").read_text())["base"] == base
        assert "Something new" not in (made / "table.md").read_text()
        assert "From an earlier definition of this study" in (made.parents[1] / "README.md").read_text()
    yaml.write_text(new_words)
    assert study(*arguments, "--report") == 0
    assert "earlier definition" not in capsys.readouterr().out
    assert "Something new" in (made / "table.md").read_text()
    assert "earlier definition" not in (made.parents[1] / "README.md").read_text()


@pytest.mark.slow
def test_a_start_that_was_killed_in_its_report_makes_it_the_next_time(
    folder: Path, tmp_path: Path, monkeypatch, capsys
):
    from decentral.report import make

    def killed(*arguments: object) -> None:
        raise SystemExit(137)

    arguments = ["two", "--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false", "scale=smoke"]
    with monkeypatch.context() as patch:
        patch.setattr(make, "report_pages", killed)
        assert study(*arguments) == 137
    capsys.readouterr()
    assert study(*arguments) == 0
    assert "nothing was computed.\nIts results are collected from them." in capsys.readouterr().out
    assert (tmp_path / "r" / "README.md").exists()


def test_a_second_start_computes_nothing_imports_nothing_heavy_and_says_so(folder: Path, tmp_path: Path):
    arguments = ["two", "--config-dir", str(folder), f"results_dir={tmp_path / 'r'}", "progress=false"]
    assert study(*arguments) == 0
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "r").rglob("*") if file.is_file()}
    check = (
        "import sys; from decentral.cli.study import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    again = subprocess.run([sys.executable, "-c", check, *arguments], capture_output=True, text=True)
    assert again.returncode == 0 and "nothing was computed" in again.stdout, again.stderr
    assert re.search(r"^\| D-PSGD \| [\d.]", again.stdout, re.M)  # its table
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "r").rglob("*") if file.is_file()}


def test_a_report_that_is_no_longer_of_the_study_is_made_again(folder: Path, tmp_path: Path, capsys):
    arguments = ["two", "--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false", "scale=smoke"]
    assert study(*arguments) == 0
    table = tmp_path / "r" / "mine" / "two" / "smoke" / "table.md"
    before = table.read_text()
    table.write_text(before.replace("D-PSGD", "nothing"))
    assert study(*arguments) == 0 and table.read_text() == before
    (folder / "study" / "two.yaml").write_text(STUDY.replace("title: Two small runs", "title: Another title"))
    capsys.readouterr()
    assert study(*arguments) == 0
    said = capsys.readouterr().out
    assert "Its results are collected from them." in said and "Another title" in said


@pytest.mark.slow
def test_a_failed_run_is_named_does_not_stop_the_others_and_is_tried_again(
    folder: Path, tmp_path: Path, monkeypatch, capsys
):
    text = STUDY.replace("base: [algo=d2]}", "base: [algo=d2, 'optim.weight_decay=1']}")
    for name in ("bad", "twin"):  # have the same runs
        (folder / "study" / f"{name}.yaml").write_text(text)
    arguments = ["--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false", "launcher.retries=0"]
    facts = tmp_path / "r" / "mine" / "bad" / "small" / "study.json"
    fault = '[{"rank": 0, "step": 5, "kind": "raise"}]'
    with monkeypatch.context() as patch:
        patch.setenv("DECENTRAL_FAULTS", fault)
        assert study("bad", *arguments) == 1
    told, warned = capsys.readouterr()
    assert warned.count("failed    ") == 2, "without progress, on stderr"
    assert "failed" in told and "resumes" in told and json.loads(facts.read_text())["failed"] == 2
    assert study("twin", *arguments) == study("bad", *arguments) == 0
    found = json.loads(facts.read_text())
    assert (found["failed"], found["complete"]) == (0, True)
    values = facts.with_name("values.csv")
    before = values.read_bytes()
    shutil.rmtree(tmp_path / "r" / "runs")
    monkeypatch.setenv("DECENTRAL_FAULTS", fault)
    assert study("bad", *arguments) == 1 and "keeps its complete results" in capsys.readouterr().out
    assert values.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("seeds: [1]", "seeds: []", "nothing to run"),
        ("seeds: [1]", "seeds: [1, 1]", "repeats a seed"),
        ("method: D2, topology: ring, base: [algo=d2]", "method: D-PSGD, topology: ring, base: [algo=d2]", "two cells"),
        ("paper: mine", "paper: ../mine", "must be one word"),
    ],
)
def test_a_study_with_a_mistake_in_it_is_refused_before_anything_starts(
    before: str, after: str, said: str, folder: Path, tmp_path: Path, capsys
):
    assert before in STUDY
    (folder / "study" / "wrong.yaml").write_text(STUDY.replace(before, after))
    assert study("wrong", "--config-dir", folder, f"results_dir={tmp_path / 'results'}") == 2
    complaint = capsys.readouterr().err
    assert said in complaint and len(complaint.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_run_whose_metrics_were_cut_afterwards_is_named_in_one_sentence(folder: Path, tmp_path: Path, capsys):
    arguments = ["two", "--config-dir", folder, f"results_dir={tmp_path / 'r'}", "progress=false", "scale=smoke"]
    assert study(*arguments) == 0
    metrics = min((tmp_path / "r" / "runs").glob("*/metrics.jsonl"))
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert study(*arguments, "--report") == 2
    said = capsys.readouterr().err
    assert f"{metrics} is incomplete" in said and f"Delete the folder {metrics.parent}" in said
    assert said.count("\n") == 1


def git(*words: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    return subprocess.run(["git", *who, *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_study_and_a_report_change_no_tracked_file(folder: Path, tmp_path: Path, monkeypatch, capsys):
    """In a checkout with results of this very study, as they are committed."""
    (tmp_path / ".gitignore").write_text((Path(__file__).parents[1] / ".gitignore").read_text())
    monkeypatch.chdir(tmp_path)
    words = ["two", "--config-dir", "conf", "progress=false", "scale=smoke"]
    assert study(*words, "results_dir=results") == 0
    (tmp_path / "results" / ".gitignore").unlink()  # as its comment says: what is here is to be committed
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "the evidence")
    assert "results/mine/two/smoke/values.csv" in git("ls-files")
    capsys.readouterr()
    assert study(*words) == 0
    note = "Note:     results/mine/two/smoke has results of this study; this run repeats it in results/own."
    assert note in capsys.readouterr().out and (tmp_path / "results" / "own" / "mine" / "two" / "smoke").is_dir()
    assert study(*words, "--report") == 0
    assert exit_status(report_command) == 0
    assert note not in capsys.readouterr().out and git("status", "--porcelain") == ""
