"""Comparisons: learning rates are searched, seeds follow, runs are judged as the study says. Nothing is trained."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from decentral.store import RunStore, Status
from decentral.study import catalogue
from decentral.study.measure import Measure
from decentral.study.tuning.rule import Choice, Fixed, Grid, PowersOfTwo

ROW = {"method": "D-PSGD", "topology": "ring", "base": ["algo=dpsgd", "topology=ring"], "lr": 0.1}


def cells_of(tmp_path, **values):
    """A comparison of one method (or `rows`), small enough to be composed at once."""
    known = {"kind": "comparison", "rows": [ROW], "seeds": [1, 2], "base": ["model=mlp", "num_workers=2", "steps=4"]}
    study = catalogue.study_from("study test", known | values)
    return study.cells([f"results_dir={tmp_path}"])


def finish(job, *accuracies: float, diverged: bool = False, epoch: float = 1.0):
    """Record a run as if it had been carried out: the workers' test accuracies."""
    with RunStore.open(job.directory, job.id, "") as store:
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


def test_a_damaged_run_that_counts_has_no_number_and_a_remark(tmp_path):
    (cell,) = cells_of(tmp_path)
    first, second = cell.jobs()
    finish(first, 0.5)
    finish(second, 0.7)
    (first.directory / "metrics.jsonl").write_text("nothing\n")
    damaged, whole = cell.values()
    assert (damaged.status, damaged.chosen, math.isnan(damaged.value)) == ("damaged", True, True)
    assert (whole.status, whole.value) == ("done", 70.0)
    (remark,) = cell.remarks()
    assert f"delete the folder {first.directory}" in remark
    assert all(job.finished() for job in cell.jobs())


def test_a_search_waits_for_a_damaged_run_to_be_computed_anew(tmp_path):
    values = {"tune": {"rule": "grid", "values": [0.1, 0.2]}, "seeds": [1]}
    (cell,) = cells_of(tmp_path, **values)
    first, second = cell.jobs()
    finish(first, 0.5)
    with RunStore.open(second.directory, second.id, "") as store:
        store.set_status(Status.done)
    assert all(job.finished() for job in cell.jobs())
    assert [(value.lr, value.status, value.chosen) for value in cell.values()] == [
        (0.1, "done", False),
        (0.2, "damaged", False),
    ]
    assert "has no test accuracy" in cell.remarks()[0]
    shutil.rmtree(second.directory)
    (again,) = cells_of(tmp_path, **values)
    finish_all(again, lambda lr, seed: 0.9)
    assert [value.lr for value in again.values() if value.chosen] == [0.2] and not again.remarks()


def test_the_worst_worker_is_the_worst_of_their_means_over_the_last_epochs(tmp_path):
    cell, *_ = cells_of(tmp_path)
    job = cell.jobs()[0]
    finish(job, 0.0, 0.0, epoch=190)
    finish(job, 0.5, 0.9, epoch=196)
    finish(job, 0.9, 0.6, epoch=200)
    found = Measure(last_epochs=5).of(job.directory)  # (50 + 90) / 2 and (90 + 60) / 2
    assert (found.value, found.worst, found.mean) == pytest.approx((70.0, 70.0, 72.5))
    assert Measure(last_epochs=0).of(job.directory).value == pytest.approx(60.0)
    missing = Measure(worker="7").of(job.directory)
    assert missing.status == "damaged" and "2 workers" in missing.remark


def test_the_chosen_rate_is_the_value_of_a_study_of_rates_and_comes_with_the_effective_one(tmp_path):
    row = {"method": "RelaySGD", "topology": "chain", "base": ["algo=relaysgd", "topology=chain"], "lr": 0.2}
    base = ["model=mlp", "num_workers=4", "steps=4"]
    values = {"rows": [row], "base": base, "tune": {"rule": "powers_of_two"}}
    (rates,) = cells_of(tmp_path, kind="chosen_rates", **values)
    (accuracies,) = cells_of(tmp_path, kind="comparison", **values)
    assert rates.values() == []
    finish_all(accuracies, lambda lr, seed: 1 - lr if lr >= 0.1 else 0.0)
    found = [(value.metric, value.value, value.seed) for value in rates.values()]
    assert found == [("learning rate", 0.1, 1), ("effective learning rate", pytest.approx(0.1 / 1.5), 1)]


def test_the_command_of_a_job_is_that_run(tmp_path):
    from decentral.config.composition import compose
    from decentral.config.identity import run_id

    (cell,) = cells_of(tmp_path, rows=[ROW], columns={"alpha": [0.5]}, tune_base=["steps=2"])
    job = cell.jobs()[0]
    program, *overrides = job.command.split()
    assert program == "decentral-run" and run_id(compose(overrides)) == job.id
    assert Path(cell.jobs()[0].directory).parent == tmp_path / "runs"
