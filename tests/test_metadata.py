"""What a run says of its metrics, and that whoever reports them reads it there and guesses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decentral.measurements.values import Meaning
from decentral.report.series import read_curves
from decentral.report.summary import overview, summary
from decentral.store import Metric, RunStore, Status, read_metadata
from decentral.study.measure import Measure

REWARD = Metric("test", "success_rate", larger_is_better=True, unit="%", chance=0.25)
PERPLEXITY = Metric("test", "perplexity", unit="")
ENTROPY = Metric("test", "entropy", larger_is_better=None, unit="nats")


def make_run(path: Path, values: dict[tuple[str, str], dict[Any, float]], metrics: list[Metric] | None) -> Path:
    with RunStore.open(path, "aaa", "seed: 1\n") as store:
        if metrics is not None:
            store.describe(metrics)
        store.append(
            {"step": 10, "epoch": 1.0, "worker": worker, "split": split, "metric": name, "value": value}
            | {"wall_s": 1.0, "bytes_sent": 100}
            for (split, name), each in values.items()
            for worker, value in each.items()
        )
        store.set_status(Status.done, step=10, wall_s=1.0)
    return path


VALUES = {
    ("test", "perplexity"): {0: 30.0, 1: 20.0, "worst": 30.0, "mean": 25.0, "averaged": 22.0},
    ("test", "success_rate"): {0: 0.5, 1: 0.75, "worst": 0.5, "mean": 0.625, "averaged": 0.7},
}


def test_a_run_stores_split_unit_direction_and_chance_level_of_each_metric(start):
    run = start("data=digits", "model=mlp", "model.hidden=[4]", "partition=iid", "num_workers=2", "steps=1")
    assert json.loads((run.directory / "metrics.json").read_text())["metrics"][0] == {
        "split": "test", "name": "accuracy", "larger_is_better": True, "unit": "%", "chance": 0.1,
    }  # fmt: skip
    known = read_metadata(run.directory)
    assert list(known) == [("test", "accuracy"), ("test", "loss"), ("train", "loss"), ("model", "consensus_distance")]
    assert known["test", "loss"].unit == known["train", "loss"].unit == "nats"
    assert known["test", "loss"].larger_is_better is False
    assert known["model", "consensus_distance"].larger_is_better is None
    assert {(row["split"], row["metric"]) for row in run.rows} <= known.keys()


def test_a_run_of_quadratics_says_that_smaller_is_better(start):
    known = read_metadata(start("task=quadratics", "num_workers=2", "steps=1").directory)
    assert known["objective", "suboptimality"] == Metric("objective", "suboptimality", larger_is_better=False)


def test_what_the_run_says_decides_order_unit_and_best_worker(tmp_path):
    run = make_run(tmp_path / "run", VALUES, [REWARD, PERPLEXITY])
    assert list(read_curves(run).series) == [("test", "success_rate"), ("test", "perplexity")]
    lines = [line.split() for line in summary(run).splitlines()]
    assert ["test", "success", "rate", "50.00", "%", "62.50", "%", "70.00", "%", "75.00", "%"] in lines
    assert ["test", "perplexity", "30", "25", "22", "20"] in lines
    assert overview(run)[:3] == ["done", "test success rate", "50.00 %"]


def test_a_run_that_is_older_is_read_as_it_was_then(tmp_path):
    accuracy = {0: 0.5, 1: 0.75, "worst": 0.5, "mean": 0.625, "averaged": 0.7}
    values = {("model", "consensus_distance"): {"mean": 1.0}, ("train", "loss"): {"mean": 2.0}}
    values |= {("test", "loss"): VALUES["test", "perplexity"], ("test", "accuracy"): accuracy}
    run = make_run(tmp_path / "run", values, None)
    assert not (run / "metrics.json").exists()
    order = [("test", "accuracy"), ("test", "loss"), ("train", "loss"), ("model", "consensus_distance")]
    assert list(read_curves(run).series) == order
    assert "75.00 %" in summary(run)
    assert next(line for line in summary(run).splitlines() if "test loss" in line).split()[-1] == "20"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"metrics": 3}',
        '{"metrics": [{"name": "accuracy"}]}',
        '{"metrics": [{"split": ["a"], "name": {}}]}',
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path, content):
    (tmp_path / "metrics.json").write_text(content)
    assert read_metadata(tmp_path, [("test", "accuracy")])["test", "accuracy"].percent


def test_a_later_version_may_say_more_of_a_metric(tmp_path):
    one = {"split": "test", "name": "bleu", "larger_is_better": True, "smoothing": "exp"}
    (tmp_path / "metrics.json").write_text(json.dumps({"metrics": [one]}))
    assert read_metadata(tmp_path)["test", "bleu"] == Metric("test", "bleu", larger_is_better=True)


# What a study measures


def test_a_study_takes_unit_and_direction_from_the_run(tmp_path):
    run = make_run(tmp_path / "run", VALUES, [REWARD, PERPLEXITY])
    found = Measure(metric="success_rate").of(run)
    assert (found.label, found.value, found.score) == ("test success rate (%)", 50.0, 50.0)
    assert found.meaning == Meaning(larger_is_better=True, unit="%", chance=25.0)
    found = Measure(metric="perplexity").of(run)
    assert (found.label, found.value, found.score) == ("test perplexity", 30.0, -30.0)


def test_unless_the_study_says_otherwise(tmp_path):
    run = make_run(tmp_path / "run", VALUES, [REWARD, PERPLEXITY])
    found = Measure(metric="success_rate", percent=False, larger_is_better=False).of(run)
    assert (found.label, found.value, found.score) == ("test success rate", 0.75, -0.75)


def test_a_metric_that_judges_nothing_is_counted_as_smaller_is_better(tmp_path):
    run = make_run(tmp_path / "run", {("test", "entropy"): {0: 1.0, 1: 2.0, "averaged": 1.0}}, [ENTROPY])
    assert Measure(metric="entropy").of(run).value == 2.0
