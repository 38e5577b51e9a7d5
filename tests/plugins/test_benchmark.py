"""`decentral-benchmark`: trials, targets, submissions and their verification. Times are not looked at."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import exit_status
from decentral.cli.study import ChosenStudy, chosen_studies
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Value
from decentral.plugins.benchmark import command as benchmark_command
from decentral.plugins.benchmark import submission
from decentral.plugins.benchmark.entries import Method, Scenario, methods, trials
from decentral.plugins.benchmark.kinds.benchmark import END, METRICS, Benchmark, BenchmarkCell, Course
from decentral.plugins.benchmark.listings.ranking import Costs, costs
from decentral.plugins.benchmark.step_times import StepTimes
from decentral.plugins.benchmark.stored import StoredCell, stored
from decentral.report.results import read
from decentral.store import read_metrics
from decentral.store.files import write_table
from decentral.study import catalogue
from decentral.study.collect import provenance
from decentral.study.measure import Measure
from decentral.study.study import Cell, Unfinished
from handmade import value, write

INF = math.inf
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm" / "mine"

BY_HAND = Costs(
    methods=[("A",), ("B",), ("C",)],
    problems=["p", "q", "r", "s"],
    seeds=[
        [(1.0, 2.0, 3.0), (4.0, 4.0, 4.0), (10.0, INF, INF), (INF, INF, INF)],
        [(6.0, 4.0, 5.0), (2.0, 2.0, 9.0), (3.0, 3.0, 3.0), (INF, INF, INF)],
        [(2.0, 2.0, 2.0), (INF, 8.0, 8.0), (6.0, 6.0, 6.0), (INF, INF, INF)],
    ],
    left_out=[],
)
"""Medians: A 2 4 never never, B 5 2 3 never, C 2 8 6 never. Best: 2 2 3, and nobody."""


def test_profiles_and_ranks_are_those_that_follow_by_hand() -> None:
    """A method takes the median over its seeds; never is infinite; equals share their ranks."""
    assert np.array_equal(BY_HAND.typical, [[2, 4, INF, INF], [5, 2, 3, INF], [2, 8, 6, INF]])
    assert np.array_equal(BY_HAND.ratios, [[1, 2, INF, INF], [2.5, 1, 1, INF], [1, 4, 2, INF]])
    shares = [[0.25, 0.5, 0.5, 0.5], [0.5, 0.5, 0.75, 0.75], [0.25, 0.5, 0.5, 0.75]]
    assert BY_HAND.profile([1, 2, 2.5, 4]).tolist() == shares
    expected = [(1.5 + 2 + 3 + 2) / 4, (3 + 1 + 1 + 2) / 4, (1.5 + 3 + 2 + 2) / 4]
    assert BY_HAND.ranks().tolist() == pytest.approx(expected)
    assert [BY_HAND.methods[one] for one in BY_HAND.order()] == [("B",), ("A",), ("C",)]


def test_problems_of_a_family_weigh_as_one() -> None:
    """p, q and r are one training seen through three clocks."""
    family = replace(BY_HAND, families=["one", "one", "one", "other"])
    assert family.weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    assert family.ranks().tolist() == pytest.approx([6.5 / 6 + 1, 5 / 6 + 1, 6.5 / 6 + 1])
    assert family.profile([1])[:, 0].tolist() == pytest.approx([1 / 6, 2 / 6, 1 / 6])
    assert np.allclose(BY_HAND.weights, 0.25)


# -- trials, the target, and the clocks of a run -----------------------------------------------------------------------


def scenario(**changes: object) -> Scenario:
    known = {
        "title": "A",
        "base": ["optim=sgd"],
        "clocks": ["even"],
        "steps": 5,
        "target": Measure(),
        "because": "so",
        "rates": [0.01, 1],
        "margin": 1,
    }
    return Scenario(**{"name": "one", **known, **changes})


def test_everybody_has_the_same_trials_their_own_choices_first() -> None:
    method = Method("m", "M", [], {"topology": ["ring", "chain"], "algo.gamma": {"low": 0.1, "high": 1.0}})
    found = trials(method, scenario(), 4)
    assert found[0].setting == "topology=ring algo.gamma=0.316 lr=0.1"
    assert [one.lr for one in found] == [0.1, 0.0316, 0.316, 0.0178]  # 1/2, and then 1/4, 3/4, 1/8 of the way
    assert [one.overrides[0] for one in found[1:]] == [
        "topology=chain",
        "topology=ring",
        "topology=ring",
    ]  # 2/3 1/9 4/9
    assert trials(method, scenario(), 9)[:4] == found
    momentum = Method("m", "M", [], {"optim.momentum": [0.9]}, times=0.5)
    assert trials(momentum, scenario(), 1)[0].lr == pytest.approx(0.1 * 0.1 * 0.5)
    assert trials(momentum, scenario(base=["optim=adam"]), 1)[0].setting == "lr=0.05"
    either = Method("m", "M", [], {"optim": ["sgd", "adam"]}, times=0.5)
    adam = scenario(base=["optim=adam"], sgd_rates=[1, 100])
    assert [one.setting for one in trials(either, adam, 2)] == ["optim=sgd lr=5", "optim=adam lr=0.0158"]
    assert trials(either, scenario(), 1)[0].setting == "lr=0.05"
    more = Method("m", "M", [], {"compress": ["topk compress.keep=0.1"]})
    assert trials(more, scenario(), 1)[0].overrides == ["compress=topk", "compress.keep=0.1"]


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"margin": 0}, "scenario one: give either margin > 0 or target.to_reach"),
    ({"target": Measure(to_reach=90)}, "scenario one: give either margin > 0 or target.to_reach"),
    ({"target": Measure(metric="loss")}, "scenario one: give target.larger_is_better, true or false, for metric=loss"),
    ({"rates": [1]}, "scenario one: rates=[1] must be [low, high] with 0 < low <= high"),
    ({"sgd_rates": [1]}, "scenario one: sgd_rates=[1] must be [low, high] with 0 < low <= high"),
    ({"tune_seed": 3}, "scenario one: tune_seed=3 is one of seeds=[1, 2, 3, 4, 5]"),
])  # fmt: skip
def test_an_invalid_scenario_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        scenario(**changes)


def test_a_target_has_to_be_held_for_three_evaluations() -> None:
    places = {axis: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] for axis in METRICS}
    course = Course([1, 5, 2, 5, 6, 7], places, "done", 0.0)
    assert course.reached(5, 1)["step"] == 3.0 and course.end == 5 + 1 / 3 + 2 / 3
    assert math.isnan(course.reached(6, 1)["step"])  # twice only
    assert course.reached(2, -1)["step"] != course.reached(2, -1)["step"]
    assert Course([3, 2, 2, 1], places, "done", 0.0).reached(2, -1)["simulated_s"] == 1.0


@pytest.mark.parametrize("words", [
    ["algo=relaysgd", "topology=dbt", "communication.every=2"],
    ["algo=choco", "topology=ring", "compress=topk", "compress.keep=0.1"],
    ["algo=diloco", "algo.period_steps=3"],
], ids=" ".join)  # fmt: skip
def test_clocks_of_a_run_without_time_are_those_of_the_run_in_the_cluster(words: list[str], start, tmp_path) -> None:
    base = ["data=digits", "model=mlp", "model.hidden=[8]", "num_workers=8", "batch_size=8", "steps=9", *words]
    clusters = ["cluster=heavy_tailed", "cluster.num_parameters=1000000"]
    config = compose([*base, "cluster=none", f"results_dir={tmp_path}"])
    (cluster,) = [compose([*base, *clusters]).cluster]
    job = StepTimes(config, {}, {"it": config}, {"heavy_tailed": cluster})
    job.carry_out()
    (line,) = job.found()
    rows = read_metrics(start(*base, *clusters, "evaluation.every_epochs=0.1", "save=none").directory)
    at = {row["step"]: row for row in rows}
    assert len(at) > 3 and line["clock"] == "heavy_tailed"
    for step, row in at.items():
        assert line["simulated_s"][step] == pytest.approx(row["simulated_s"], rel=1e-8)
        assert line["bytes_sent"][step] == pytest.approx(row["bytes_sent"])


def test_the_command_of_each_run_is_that_run() -> None:
    study = catalogue.load(benchmark_command.STUDY, "smoke")
    study.methods = methods(["dpsgd", "wagma"])
    for cell in study.cells([]):
        for job in cell.jobs():
            if isinstance(job, TrainingRun):
                _, *words = shlex.split(job.command)
                assert run_id(compose(words)) == job.id


def test_costs_are_read_from_what_a_study_wrote(tmp_path: Path) -> None:
    def row(method: str, scenario: str, value: float | str, seed: int) -> dict[str, object]:
        status = "not reached" if value == "" else "done"
        labels = {"method": method, "scenario": scenario}
        return {**labels, "metric": "steps", "value": value, "seed": seed, "status": status, "chosen": True}

    rows = [row("A", "p", 3, 1), row("A", "p", "", 2), row("A", "q", 5, 1), row("B", "p", 4, 1)]
    folder = write(tmp_path / "mine" / "study" / "small", rows, {}, labels=["method", "scenario"])
    found = costs(read(folder), "steps", "scenario", ["method"])
    assert found.methods == [("A",)] and found.left_out == [("B",)]
    assert found.seeds == [[(3.0, INF), (5.0,)]]


# -- what is run -------------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    exit = exit_status(benchmark_command.main, *arguments)
    captured = capsys.readouterr()
    assert exit == status, captured.err
    return captured.out + captured.err


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["scale=tiny"], "scale=tiny is not a scale of the benchmark. Choose one of:"),
    (["scale=smoke", "methods=[relaysdg]"], "methods=[relaysdg] does not exist. Did you mean 'relaysgd'?"),
    (["relaysgd"], "relaysgd is not a setting: write methods=[relaysgd]"),
    (["scale=smoke", "lr=0.1"], "lr=0.1 cannot be set, because benchmark_methods sets lr for each of its runs"),
])  # fmt: skip
def test_wrong_arguments_are_refused_in_a_sentence(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in " ".join(said(capsys, *arguments, status=2).split())


@pytest.mark.parametrize(("file", "text", "complaint"), [
    ("methods.yaml", "mine: {base: [algo=dpsgd]}", "method mine.title is missing: give text"),
    ("methods.yaml", "dpsgd: {title: D, base: []}", "dpsgd is the name of a built-in entry: rename it"),
    ("methods.yaml", "mine: {title: D, base: [], search: {lr: 1}}", "method mine: search.lr=1 must be a list of"),
    ("scenario/mine.yaml", "title: M", "scenario mine.base is missing"),
    (
        "scenario/mine.yaml",
        "{title: M, base: [], clocks: [even], steps: 5, target: {metric: loss}, because: so, rates: [1]}",
        "scenario mine: give either margin > 0 or target.to_reach",
    ),
])  # fmt: skip
def test_a_wrong_method_or_scenario_file_is_refused(
    file: str, text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "benchmark" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    said_ = said(capsys, "scale=smoke", "--plan", "--config-dir", str(tmp_path), status=2)
    assert complaint in " ".join(said_.split())


def runs(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("runs/*/status.json")}


def shown(folder: Path) -> list[str]:
    with open(folder / "benchmark" / benchmark_command.STUDY / "smoke" / "ranks.csv", newline="") as file:
        return sorted(row["method"] for row in csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
def test_a_method_of_ones_own_enters_with_one_file_and_is_submitted_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The smoke scale, from an empty folder: then a folder with one algorithm, which has no line anywhere."""
    monkeypatch.chdir(tmp_path)
    Path("mine/algorithms").mkdir(parents=True)
    shutil.copy(EXAMPLE / "algorithms" / "partway.py", "mine/algorithms")
    mine, results = ["scale=smoke", "methods=[partway]", "--config-dir", "mine"], Path("results/own")
    said(capsys, "scale=smoke", "methods=[dpsgd]")
    before = runs(results)
    said(capsys, *mine)
    assert shown(results) == ["D-PSGD", "partway"]
    assert len(runs(results) - before) == 4 and before < runs(results)  # two scenarios, a trial and a seed
    assert "nothing was computed" in said(capsys, *mine)
    monkeypatch.setenv("DECENTRAL_OWN", "")
    said(capsys, "scale=smoke", "methods=[dpsgd]")  # which knows nothing of that folder: its results stay
    assert shown(results) == ["D-PSGD", "partway"]
    assert "partway" in (results / "benchmark" / "README.md").read_text()

    # the runs of others are gone: what was collected of them stays, and where it comes from
    made = results / "benchmark" / benchmark_command.STUDY / "smoke"
    commit = json.loads((made / "study.json").read_text())["git_commit"]
    for name in before:
        shutil.move(results / "runs" / name, name)
    said(capsys, *mine)
    assert shown(results) == ["D-PSGD", "partway"]
    assert len(runs(results)) == 6  # its own, and the baseline's where that sets the target
    assert json.loads((made / "study.json").read_text())["git_commit"] == commit

    assert "2 cells" in said(capsys, "--submit", "ours", *mine)
    assert Path("ours/mine/algorithms/partway.py").exists()
    shutil.rmtree("mine")
    verify = [sys.executable, "-m", "decentral.plugins.benchmark.command", "--verify", "ours", "repeat=1"]
    told = subprocess.run(verify, capture_output=True, text=True, check=True).stdout
    assert "it agrees (1 run repeated)" in told and "Repeating 1 of 4 runs" in told
    assert json.loads(Path("ours/verification.json").read_text())["agrees"] is True
    values = Path("ours/values.csv").read_text()
    Path("ours/values.csv").write_text(values.replace("1", "2", 1))
    assert "values.csv was changed since it was submitted" in said(capsys, "--verify", "ours", "repeat=0", status=1)
    assert json.loads(Path("ours/verification.json").read_text())["agrees"] is False


def test_results_of_other_scenarios_and_methods_are_kept(tmp_path: Path) -> None:
    names = ("scenario", "method", "topology")

    line = {key: word for key, word in value("D-PSGD", "ring", 1, 7.0).items() if key != "alpha"}
    rows = [line | {"scenario": scenario} for scenario in ("digits", "cifar10", "gone")]
    wanted = {'{"method": "D-PSGD", "scenario": "cifar10", "topology": "ring"}': 3}
    write(tmp_path / "own" / "study" / "laptop", rows, {}, labels=names, wanted=wanted)
    composed = [StoredCell({"scenario": "digits", "method": "D-PSGD", "topology": "ring"}, [])]
    _, (kept,) = stored(composed, tmp_path / "own" / "study" / "laptop", lambda labels: labels["scenario"] != "gone")
    assert kept.labels == {"scenario": "cifar10", "method": "D-PSGD", "topology": "ring"} and kept.wanted() == 3
    assert [one.value for one in kept.values()] == [7.0]
    assert stored(composed, tmp_path, lambda labels: True) == ({}, [])


def test_numbers_of_a_scenario_with_other_rules_are_not_shown_beside_those_of_today(tmp_path: Path) -> None:
    (chosen,) = chosen_studies([benchmark_command.STUDY, "scale=smoke", f"results_dir={tmp_path}"])
    now = chosen.study.further_facts()["scenarios"]
    then = [now[0] | {"because": "other words"}, now[1] | {"target": "a nearer one"}]
    directory = tmp_path / "benchmark" / benchmark_command.STUDY / "smoke"
    directory.mkdir(parents=True)
    (directory / "study.json").write_text(json.dumps({"scenarios": then}))
    same = benchmark_command._same_rules(chosen, directory)
    assert [same({"scenario": one["scenario"]}) for one in now] == [True, False]
    assert not same({"scenario": "of somebody else"})


def test_a_setting_of_one_scenario_makes_it_another_study() -> None:
    def chosen(*words: str) -> ChosenStudy:
        (found,) = chosen_studies(["benchmark_methods", "scale=smoke", *words])
        return found

    ours, theirs = chosen(), chosen("quadratic.num_workers=4")
    assert ours.changed == [] and theirs.changed == ["quadratic.num_workers=4"]
    assert theirs.directory.name.startswith("smoke-") and ours.directory.name == "smoke"
    assert chosen("quadratic.device=cpu").changed == []


# -- published results, submissions, and what a verification finds ----------------------------------------------------


def smoke(folder: Path, *names: str) -> tuple[ChosenStudy, list[BenchmarkCell]]:
    """The cells of these methods on the quadratic, and the baseline's; nothing is carried out."""
    (chosen,) = chosen_studies([benchmark_command.STUDY, "scale=smoke", f"results_dir={folder}", "device=cpu"])
    study = chosen.study
    assert isinstance(study, Benchmark)
    study.methods, study.scenarios = methods(list(names)), [one for one in study.scenarios if one.name == "quadratic"]
    cells = [cell for cell in study.cells(chosen.overrides) if isinstance(cell, BenchmarkCell)]
    return chosen, cells


def carry_out(cells: Sequence[Cell]) -> None:
    source = Unfinished(cells)
    while pending := source.pending():
        pending[0].carry_out()


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """D-PSGD on the quadratic of scale=smoke, as it was submitted."""
    folder = tmp_path_factory.mktemp("submitted")
    chosen, cells = smoke(folder / "results", "dpsgd")
    carry_out(cells)
    assert isinstance(chosen.study, Benchmark) and all(submission.is_whole(cell) for cell in cells)
    facts = {"study": chosen.name, "scale": "smoke", **provenance(job.directory for job in cells[0].sources())}
    submission.write(folder / "ours", chosen.study, cells, facts, None)
    return folder / "ours"


def verified(folder: Path, scratch: Path, number: int) -> list[str]:
    """What is found to be wrong where so many runs are repeated."""
    _, cells = smoke(scratch, "dpsgd")
    same, others = stored(cells, folder, lambda _: True)
    checks, wrong = submission.checks(cells, [*same.values(), *others])
    assert submission.choose(checks, number).runs == min(number, 2)
    carry_out(checks)
    return [*wrong, *(words for check in checks for words in check.differences())]


def test_a_submission_says_what_it_is_and_names_no_machine(submitted: Path) -> None:
    names = {path.name for path in submitted.iterdir()}
    assert names == {"README.md", "curves.csv", "study.json", "submission.json", "values.csv"}
    facts = submission.read(submitted)
    assert facts["methods"][0]["search"]["topology"] and facts["rules"] == 2 and facts["scale"] == "smoke"
    assert submission.damage(submitted, facts) == [] and submission.hash_of(facts) == facts["hash"]
    text = "".join(path.read_text() for path in submitted.iterdir())
    assert socket.gethostname() not in text and str(submitted.parent) not in text
    rows = list(csv.DictReader((submitted / "values.csv").read_text().splitlines()))
    assert {row["setting"] for row in rows} == {"topology=ring optim.momentum=0 lr=0.3"} and all(
        row["run"] for row in rows
    )


def test_a_number_that_was_changed_is_known_by_the_hash(submitted: Path, tmp_path: Path) -> None:
    """Whichever it is."""
    tried = 0
    for name in ("values.csv", "study.json", "submission.json", "curves.csv"):
        text = (submitted / name).read_text()
        places = [found.start() for found in re.finditer(r"\d", text)]
        for place in places[:: max(1, len(places) // 25)]:
            shutil.copytree(submitted, tmp_path / "copy", dirs_exist_ok=True)
            digit = str((int(text[place]) + 1) % 10)
            (tmp_path / "copy" / name).write_text(text[:place] + digit + text[place + 1 :])
            facts = submission.read(tmp_path / "copy")
            assert submission.damage(tmp_path / "copy", facts), (name, text[place - 40 : place + 40])
            tried += 1
    assert tried >= 100
    (tmp_path / "copy" / "mine").mkdir()
    (tmp_path / "copy" / "mine" / "more.py").write_text("")
    assert any("mine/more.py was added" in one for one in submission.damage(tmp_path / "copy", facts))


def test_an_honest_submission_agrees_and_a_forgery_with_new_hashes_where_it_is_computed_again(
    submitted: Path, tmp_path: Path
) -> None:
    assert verified(submitted, tmp_path / "all", 9) == []

    def forged(name: str, seed: int, factor: float, number: int = 1, *metrics: str) -> list[str]:
        copy = tmp_path / name
        shutil.copytree(submitted, copy)
        with (copy / "values.csv").open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if row["metric"] in metrics and row["seed"] == str(seed):
                row["value"] = f"{factor * float(row['value']):.9g}"
        with (copy / "values.csv").open("w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        submission.seal(copy, {key: one for key, one in submission.read(copy).items() if key not in ("files", "hash")})
        assert submission.damage(copy, submission.read(copy)) == []
        return verified(copy, tmp_path / "again", number)

    time, sent, steps = METRICS.values()
    (found,) = forged("time", 1000, 0.9, 0, time)  # which is not repeated
    assert "simulated seconds to the target" in found and "seed 1000" in found
    assert len(forged("sent", 1, 1.01, 0, sent)) == 1
    assert len(forged("end", 1000, 2, 9, END)) == 1
    assert forged("not repeated", 1000, 2, 1, END) == []  # as docs/benchmark.md says
    # Time and bytes are of another step, and the repetition does not reach the target there.
    assert len(forged("step", 1, 0, 1, steps)) >= 2


def test_a_forged_description_of_a_submission_is_refused_or_does_not_agree(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good = {key: one for key, one in submission.read(submitted).items() if key not in ("files", "hash")}
    method, cell = good["methods"][0], good["cells"][0]
    for number, (status, change) in enumerate([
        *((2, {key: 5}) for key in ("methods", "cells", "packages", "scale", "version")),
        *((2, {"cells": cells}) for cells in ([5], [{}], [{"scenario": 1}])),
        (2, {"methods": [{**method, "times": "abc"}]}),
        (1, {"methods": [{key: one for key, one in method.items() if key != "base"}]}),
        (1, {"cells": []}),
        (1, {"methods": [{**method, "base": [*method["base"], "run_dir=elsewhere"]}]}),
        (1, {"cells": [*good["cells"], {**cell, "scenario": "other.even"}]}),
    ]):  # fmt: skip
        shutil.copytree(submitted, copy := tmp_path / str(number))
        submission.seal(copy, {**good, **change})
        told = said(capsys, "--verify", str(copy), "repeat=0", status=status)
        assert ("is not a submission" in told) == (status == 2), (change, told)
    forged = Method("dpsgd", "D-PSGD", ["algo=dpsgd", "run_dir=elsewhere"])
    monkeypatch.setattr("decentral.plugins.benchmark.kinds.benchmark.methods", lambda *_, **__: [forged])
    with pytest.raises(ConfigError, match="method dpsgd sets run_dir, which the benchmark decides"):
        smoke(tmp_path / "own", "dpsgd")


def test_a_benchmark_without_a_finished_cell_is_reported(tmp_path: Path) -> None:
    empty = Costs([], [], [], [])
    assert empty.order() == [] and empty.ratios.shape == (0, 0) and empty.profile([1.0]).shape == (0, 1)
    assert Costs([], ["a", "b"], [], [("x",)]).order() == []


def test_cells_are_shown_as_published_from_a_wheel_if_their_own_runs_are_the_same(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package has results/ beside conf/; the ids of a target's runs are not among a cell's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark_command, "conf_directory", lambda: tmp_path / "package" / "conf")
    chosen, cells = smoke(tmp_path / "own", "dpsgd", "relaysgd")
    published = tmp_path / "package" / "results" / "benchmark" / benchmark_command.STUDY / "smoke"
    benchmark_command._with_known(chosen, [*cells], cells[1:])
    assert "1 of 2 cells have no results, neither run here nor published for scale=smoke" in capsys.readouterr().out
    shutil.copytree(submitted, published)
    known = benchmark_command._with_known(chosen, [*cells], cells[1:])
    assert "1 of 2 cells are shown as published" in capsys.readouterr().out
    assert isinstance(known[0], StoredCell) and known[0].curves() and known[1] is cells[1]
    text = (published / "values.csv").read_text()
    with monkeypatch.context() as patched:  # as long ones are
        patched.setattr("decentral.store.files.PACKED_FROM_BYTES", 0)
        for name in ("values.csv", "curves.csv"):
            write_table(published / name, (published / name).read_text())
    assert {path.name for path in published.glob("*.csv*")} == {"values.csv.gz", "curves.csv.gz"}
    packed = benchmark_command._with_known(chosen, [*cells], cells[1:])[0]
    assert packed.values() == known[0].values() and packed.curves() == known[0].curves()
    write_table(published / "values.csv", text.replace(cells[0].sources()[0].id, "0123456789ab"))
    assert benchmark_command._with_known(chosen, [*cells], cells[1:])[0] is cells[0]


def test_the_trial_that_counts_has_to_be_the_best_one(tmp_path: Path) -> None:
    """By the rows themselves: nothing is carried out."""
    (chosen,) = chosen_studies([benchmark_command.STUDY, f"results_dir={tmp_path}"])
    study = chosen.study
    assert isinstance(study, Benchmark)
    study.methods, study.scenarios = methods(["dpsgd"]), [one for one in study.scenarios if one.name == "quadratic"]
    cell = study.cells([])[0]
    assert isinstance(cell, BenchmarkCell)

    def rows(choice: int, seconds: list[float]) -> StoredCell:
        found = []
        for run in cell.runs(choice):
            own = cell.entry.trials[run.trial]
            first = Value(cell.labels, 1.0, "", run.seed, own.lr, run.counts, run=run.jobs[0].id, setting=own.setting)
            for metric in [*METRICS.values(), *([] if run.counts else [END])]:
                time = metric == METRICS["simulated_s"] and not run.counts
                found.append(first._replace(metric=metric, value=seconds[run.trial] if time else 1.0))
        return StoredCell(cell.labels, found)

    seconds = [5, math.nan, 3, 4, 9]
    assert submission.checks([cell], [rows(2, seconds)])[1] == []
    (words,) = submission.checks([cell], [rows(3, seconds)])[1]
    assert "quadratic.even, D-PSGD: another trial is better than the submitted one" in words
    (words,) = submission.checks([cell], [StoredCell(cell.labels, rows(2, seconds).values()[:-1])])[1]
    assert "the rows do not belong to the runs of its configuration" in words


@pytest.mark.slow
def test_another_rounding_changes_a_run_by_less_than_the_tolerance(tmp_path: Path) -> None:
    """In double precision every number is rounded otherwise: more than another processor would do it."""
    study = catalogue.load(benchmark_command.STUDY, "small")
    assert isinstance(study, Benchmark)
    study.methods, study.scenarios = (
        methods(["choco"]),
        [one for one in study.scenarios if one.name == "digits_different"],
    )
    cell = next(iter(study.cells([f"results_dir={tmp_path}", "num_workers=8", "device=cpu", "processes=1"])))
    assert isinstance(cell, BenchmarkCell)
    run = next(run for run in cell.runs(0) if run.counts).jobs[0]
    assert isinstance(run, TrainingRun)
    courses = []
    for precision in (Precision.fp32, Precision.fp64):
        job = replace(run, config=replace(run.config, precision=precision))
        job.carry_out()
        rows = [row for row in read_metrics(job.directory) if row["worker"] == "mean" and row["metric"] == "accuracy"]
        values, steps = [100 * row["value"] for row in rows], [float(row["step"]) for row in rows]
        courses.append(Course(values, dict.fromkeys(METRICS, steps), "done", 0.0))
    one, other = courses
    assert abs(one.end - other.end) < submission.POINTS
    for target in (90, 95, 97):
        assert submission.is_near(one.reached(target, 1)["step"], other, target, cell.entry), target
        assert submission.is_near(other.reached(target, 1)["step"], one, target, cell.entry), target
    assert not submission.is_near(0.8 * one.reached(89, 1)["step"], one, 90, cell.entry)


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--submit", "new", "scale=smoke"], "--submit needs a method: add methods=[mine]"),
    (["--submit", "new", "scale=smoke", "methods=[dpsgd]", "study.trials=2"], "study.trials=2 changes the benchmark"),
    (["--submit", ".", "scale=smoke", "methods=[dpsgd]"], "--submit . exists already: choose a new folder"),
    (["--submit", "new", "scale=smoke", "methods=[dpsgd]"], "no finished cell of these methods: first run"),
    (["--verify", "."], ". is not a submission: its submission.json is missing or damaged"),
    (["--verify", ".", "repeat=some"], "repeat=some is not a number of runs"),
    (["--verify", ".", "--config-dir", "."], "--verify reads components from mine: leave --config-dir out"),
])  # fmt: skip
def test_what_cannot_be_submitted_or_verified_is_said(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    assert complaint in " ".join(said(capsys, *arguments, status=2).split())
    assert not (tmp_path / "new").exists()
