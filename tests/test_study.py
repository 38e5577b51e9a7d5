"""Every study composes at every scale; it plans, runs, reports, and has nothing left to do. How rates are searched."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import exit_status
from decentral.cli import study as command
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.host import machine
from decentral.published import key as published_key
from decentral.report.published import numbers
from decentral.report.spec import parse
from decentral.store import Metric, RunStore, Status
from decentral.store.files import read_table, write_json
from decentral.study import catalogue
from decentral.study.kinds.comparison import TunedCell
from decentral.study.measure import Measure
from decentral.study.measured import MeasuredCell
from decentral.study.tuning.rule import Choice, Fixed, Grid, PowersOfTwo

# -- smoke ----------------------------------------------------------------------------------------------------------

STUDIES = [
    *("bluefog_consensus_simulated", "relaysum_fig4", "relaysum_fig5"),
    *("benchmark_methods", "bluefog_consensus", "bluefog_consensus_graphs", "bluefog_fig11", "bluefog_fish_school"),
    *("bluefog_table2_time", "flex_choice_map", "flex_cost_table", "flex_honest", "relaysum_fig3", "relaysum_fig9"),
    *("time_map", "time_measured", "time_validation", "wagma_ablations_time", "certificates", "data_graphs"),
    *("relaysum_fig7_rates", "relaysum_table13", "wagma_fig10_measured", "wagma_fig1_groups", "wagma_fig6"),
]
STUDIES = [name for name in STUDIES if name in catalogue.names()]
"""One of each kind, those of plug-ins if they are there."""


def test_each_kind_of_study_has_one_that_is_carried_out():
    kinds = {name: catalogue.load(name, "smoke").name for name in catalogue.names()}
    assert {kinds[name] for name in STUDIES} == set(kinds.values())


def start(*arguments: str) -> int:
    return exit_status(command.main, *arguments)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "relaysum_fig5" else pytest.mark.slow) for name in STUDIES]
)
@pytest.mark.usefixtures("here", "few_pages")
def test_a_study_runs_reports_and_is_then_done(name: str, results: Path, capsys: pytest.CaptureFixture):
    arguments = [name, "scale=smoke", f"results_dir={results}", "progress=false", "launcher.slots=1"]
    assert start(*arguments) == 0, capsys.readouterr().out
    study = catalogue.load(name, "smoke")
    directory = results / study.paper / name / "smoke"
    facts = json.loads((directory / "study.json").read_text())
    assert facts["study"] == name and facts["failed"] == 0 and facts["jobs"] > 0
    assert list(csv.DictReader(read_table(directory / "values.csv").splitlines())), "the study found nothing"
    for figure in study.report.get("figures", []):
        assert (directory / f"{figure.get('name', 'figure')}.png").stat().st_size > 5000
    if "table" in study.report:
        assert all((directory / f"table.{suffix}").exists() for suffix in ("csv", "md", "tex"))
    assert (results / "README.md").exists() and (results / study.paper / "README.md").exists()
    capsys.readouterr()
    assert start(*arguments) == 0
    assert "nothing was computed" in capsys.readouterr().out


# -- all studies ----------------------------------------------------------------------------------------------------

FILES = {f"data={name}" for name in ("agnews", "imagefolder", "imagenet", "multi30k", "parallel", "shakespeare")}
SPEAKERS = [
    f"{kind} {name}"
    for kind in ("FIRST", "SECOND")
    for name in ("LORD", "LADY", "CLOWN", "KING", "PAGE", "DUKE", "HEIR", "MAID")
]


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory) -> Path:
    """What looks like ImageNet in small, and a few sentences."""
    path = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val", "test"):
        folder = path / split / "cat"
        folder.mkdir(parents=True)
        for number in range(128 if split == "train" else 1):
            (folder / f"{number}.jpeg").touch()
    Image.new("RGB", (32, 32)).save(path / "train" / "cat" / "0.jpeg")
    for split in ("train", "newstest2014", "test_2016_flickr"):
        for language in ("en", "de"):
            (path / f"{split}.{language}").write_text(16 * "A .\n")
    for split in ("train", "test"):
        (path / f"{split}.csv").write_text('"1","a title","some news"\n' * 8000)
    (path / "play_gut.txt").write_text("".join(f"\n\n{name}.\n" + "What light?\n" * 300 for name in SPEAKERS))
    return path


def published_keys(cell: Any) -> list[str]:
    """The published numbers that the values of a cell are compared with."""
    if isinstance(cell, TunedCell):
        return [cell.published]
    if not isinstance(cell, MeasuredCell):
        return []
    at = getattr(cell.job, "at", None) or [0]
    return [published_key(cell.line, cell.setting, **cell.labels | {"after_steps": step}) for step in at]


UNDEFINED = ("network C2",)
"""Of flexible communication, which nowhere says what it is."""


COMPOSED = ("thesis_fig5_3", "wagma_fig5", "flex_adaptive")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in COMPOSED else pytest.mark.slow) for name in catalogue.names()]
)
def test_every_study_composes_at_every_scale_and_has_a_cell_for_every_published_number(name, tmp_path, imagenet):
    for scale in catalogue.scales(name):
        study = catalogue.load(name, scale)
        if "env=habitat" in study.base or (name, scale) == ("benchmark_methods", "laptop"):  # need what is not here
            continue
        data = [f"data.path={imagenet}", "batch_size=1"] if FILES & set(study.base) else []
        cells = study.cells([f"results_dir={tmp_path}", "device=cpu", *data])
        spec = parse(study.report, name)
        assert cells and spec.caption and any(cell.jobs() for cell in cells)
        if scale == "paper" and spec.published is not None:
            keys = {key for cell in cells for key in published_keys(cell)}
            theirs = numbers(study.paper, spec.published.item, spec.published.keys)
            assert {number.key for number in theirs if not number.key.endswith(UNDEFINED)} <= keys


def test_the_thesis_studies_run_what_its_experiment_says(tmp_path):
    study = catalogue.load("thesis_fig5_2", "paper")
    job = study.cells([f"results_dir={tmp_path}"])[-1].final
    same = compose(["experiment=thesis_cifar10", "algo=model_averaging", "alpha=0.01", "lr=0.1"])
    assert run_id(job.config) == run_id(same)


PLANNED = """
kind: comparison
paper: mine
base: [task=quadratics, num_workers=4, steps=20, device=cpu]
rows:
  - {method: D-PSGD, topology: ring, base: [algo=dpsgd, topology=ring]}
  - {method: All-reduce, topology: complete, base: [algo=allreduce]}
columns: {alpha: [1, 0.1]}
tune: {rule: powers_of_two, at_most: 3}
seeds: [1, 2, 3]
measure: {split: objective, metric: suboptimality, worker: averaged, percent: false, larger_is_better: false}
scales: {smoke: {}}
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command gets beside the study's name: a study of one's own, and folders that only this test has."""
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "mine.yaml").write_text(PLANNED)
    monkeypatch.setattr(machine, "num_gpus", lambda: 0)
    folder = ["--config-dir", str(tmp_path / "conf"), f"results_dir={tmp_path / 'results'}", "scale=smoke"]
    return [*folder, "launcher.slots=1"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert exit_status(command.main, *arguments) == 0
    return capsys.readouterr().out


def rows_of(plan: str) -> list[dict[str, str]]:
    """The lines of the table, by the heads of the columns; the last one is the total."""
    head, rule, *lines = plan.partition("\n\n")[0].splitlines()
    places = [match.span() for match in re.finditer("-+", rule)]
    return [{head[a:b].strip(): line[a:b].strip() for a, b in places} for line in lines]


@pytest.mark.parametrize("name", ["mine", *(name for name in STUDIES if name == "relaysum_fig7_rates")])
def test_rows_add_up_to_the_total_for_a_job_of_several_cells_is_counted_once(name: str, given: list[str], capsys):
    plan = said(capsys, name, *given, "--plan")
    *cells, total = rows_of(plan)
    assert total[next(iter(total))] == "total"
    for column in ("jobs known", "done", "to come"):
        assert sum(int(row[column]) for row in cells) == int(total[column])
    assert f"{total['jobs known']} jobs known so far" in plan and "Time:     unknown until a job is finished" in plan
    assert (f"plus {total['to come']} after the learning-rate searches" in plan) == (total["to come"] != "0")


@pytest.mark.slow
def test_time_follows_from_finished_runs(given: list[str], tmp_path: Path, capsys):
    """One run of each method took 40 s."""
    said(capsys, "mine", *given, "progress=false", "study.seeds=[1]", "study.tune={rule: fixed}")
    for run in (tmp_path / "results" / "runs").iterdir():
        facts = json.loads((run / "status.json").read_text())
        write_json(run / "status.json", facts | {"wall_s": 40.0})
    more = ["study.tune={rule: fixed}"]
    plan = said(capsys, "mine", *given, *more, "--plan")
    assert "6 jobs known so far (2 done, 4 to do)" in plan
    assert "Time:     about 2 min 40 s sequentially." in plan


def test_a_plan_of_data_that_are_not_here_loads_nothing(given: list[str], tmp_path: Path, capsys):
    arguments = [*given[:-2], "scale=paper", "device=cpu", f"data.path={tmp_path / 'absent'}"]
    assert rows_of(said(capsys, "thesis_fig5_2", *arguments, "--plan"))[-1]["jobs known"] == "45"


# -- Comparisons: learning rates are searched, seeds follow, runs are judged as the study says. Nothing is trained -----

ROW = {"method": "D-PSGD", "topology": "ring", "base": ["algo=dpsgd", "topology=ring"], "lr": 0.1}


def cells_of(tmp_path, **values):
    """A comparison of one method (or `rows`), small enough to be composed at once."""
    known = {"kind": "comparison", "rows": [ROW], "seeds": [1, 2], "base": ["model=mlp", "num_workers=2", "steps=4"]}
    study = catalogue.study_from("study test", known | values)
    return study.cells([f"results_dir={tmp_path}"])


def finish(job, *accuracies: float, diverged: bool = False, epoch: float = 1.0):
    """Record a run as if it had been carried out: the workers' test accuracies."""
    with RunStore.open(job.directory, job.id, "") as store:
        store.describe([Metric("test", "accuracy", larger_is_better=True, unit="%")])
        place = {
            "step": int(epoch),
            "epoch": epoch,
            "split": "test",
            "metric": "accuracy",
            "wall_s": 0.0,
            "bytes_sent": 0,
        }
        known = {**dict(enumerate(accuracies)), "averaged": 0.99, "worst": 0.0, "mean": 0.0}
        store.append([place | {"worker": worker, "value": value} for worker, value in known.items()])
        store.set_status(Status.diverged if diverged else Status.done, wall_s=1.0)


def finish_all(
    cell, score: Callable[[float, int], float], diverges: Callable[[float, int], bool] = lambda lr, seed: False
):
    """Finish whatever the cell asks for until it asks for nothing; returns the rates and seeds in turn."""
    asked = []
    while left := [job for job in cell.jobs() if job.finished() is None]:
        for job in left:
            lr, seed = job.config.lr, job.config.seed
            finish(job, score(lr, seed), score(lr, seed), diverged=diverges(lr, seed))
            asked.append((lr, seed))
    return asked


@pytest.mark.parametrize(("rule", "score", "chosen"), [
    (PowersOfTwo(), lambda lr: -abs(math.log2(lr / 0.8)), Choice(0.8, False)),
    (PowersOfTwo(), lambda lr: -lr if lr >= 0.025 else -1.0, Choice(0.025, False)),
    (PowersOfTwo(), lambda lr: 1.0 if lr in (0.1, 0.2) else 0.0, Choice(0.1, False)),  # the smaller of equals
    (PowersOfTwo(), lambda lr: lr if lr < 0.15 else math.nan, Choice(0.1, False)),
    (PowersOfTwo(at_most=6), lambda lr: math.nan if lr > 0.02 else lr, Choice(0.0125, False)),
    (PowersOfTwo(at_most=5), lambda lr: math.nan, None),
    (Grid(values=[0.1, 0.01, 0.05]), lambda lr: lr, Choice(0.1, True)),
    (Grid(values=[0.1, 0.01, 0.05]), lambda lr: -abs(lr - 0.05), Choice(0.05, False)),
    (Grid(values=[0.1, 0.01, 0.05]), lambda lr: lr if lr < 0.1 else math.nan, Choice(0.05, False)),
    (Fixed(), lambda lr: 0.0, Choice(0.1, False)),
])  # fmt: skip
def test_a_rule_finds_the_best_rate_and_says_whether_it_lies_at_the_edge_of_its_grid(rule, score, chosen):
    tried: dict[float, float] = {}
    while rates := rule.wanted(tried, 0.1):
        tried |= {lr: score(lr) for lr in rates}
    assert rule.chosen(tried) == chosen
    if chosen == Choice(0.8, False):
        assert sorted(tried) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6])


def test_the_search_runs_on_its_own_seeds_and_the_best_rate_on_all(tmp_path):
    (cell,) = cells_of(tmp_path, tune={"rule": "grid", "values": [0.1, 0.2, 0.4]}, tune_seeds=[1])
    asked = finish_all(cell, lambda lr, seed: 0.9 - abs(lr - 0.2))
    assert asked == [(0.1, 1), (0.2, 1), (0.4, 1), (0.2, 2)]
    chosen = [value for value in cell.values() if value.chosen]
    assert [(value.lr, value.seed, value.value) for value in chosen] == [(0.2, 1, 90.0), (0.2, 2, 90.0)]
    assert [value.chosen for value in cell.values()].count(False) == 2


def test_a_rate_with_which_a_seed_diverges_does_not_count_and_neither_does_the_next_one(tmp_path):
    (cell,) = cells_of(tmp_path, tune={"rule": "grid", "values": [0.1, 0.2, 0.4]})
    asked = finish_all(cell, lambda lr, seed: lr, lambda lr, seed: lr >= 0.2 and seed == 2)
    assert asked[3:] == [(0.4, 2), (0.2, 2), (0.1, 2)]
    assert {value.lr for value in cell.values() if value.chosen} == {0.1}


def test_a_damaged_run_is_refused_with_what_to_do(tmp_path):
    (cell,) = cells_of(tmp_path)
    for job in cell.jobs():
        finish(job, 0.5)
    damaged = cell.jobs()[0].directory
    (damaged / "metrics.jsonl").write_text("nothing\n")
    with pytest.raises(ConfigError, match=f"delete the folder {damaged}"):
        cell.values()


def test_the_worst_worker_is_the_worst_of_their_means_over_the_last_epochs(tmp_path):
    cell, *_ = cells_of(tmp_path)
    job = cell.jobs()[0]
    finish(job, 0.0, 0.0, epoch=190)
    finish(job, 0.5, 0.9, epoch=196)
    finish(job, 0.9, 0.6, epoch=200)
    found = Measure(last_epochs=5).of(job.directory)  # (50 + 90) / 2 and (90 + 60) / 2
    assert (found.value, found.worst, found.mean) == pytest.approx((70.0, 70.0, 72.5))
    assert Measure(last_epochs=0).of(job.directory).value == pytest.approx(60.0)
    with pytest.raises(ConfigError, match=r"worker=7 does not exist in .*: it has 2 workers"):
        Measure(worker="7").of(job.directory)


def test_a_run_that_diverged_has_no_number_unless_the_study_gives_it_one(tmp_path):
    cell, *_ = cells_of(tmp_path)
    job = cell.jobs()[0]
    finish(job, 0.5, 0.9, diverged=True)
    for measure, number in ((Measure(), math.nan), (Measure(when_diverged=10.0), 10.0)):
        found = measure.of(job.directory)
        assert found.status == "diverged"
        assert (found.value, found.worst, found.mean, found.averaged) == pytest.approx([number] * 4, nan_ok=True)


def test_the_command_of_a_job_is_that_run(tmp_path):
    from decentral.config.composition import compose
    from decentral.config.identity import run_id

    (cell,) = cells_of(tmp_path, rows=[ROW], columns={"alpha": [0.5]}, tune_base=["steps=2"])
    job = cell.jobs()[0]
    program, *overrides = job.command.split()
    assert program == "decentral-run" and run_id(compose(overrides)) == job.id
    assert Path(cell.jobs()[0].directory).parent == tmp_path / "runs"
