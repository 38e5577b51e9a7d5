"""`early_stop.patience`: a run that no longer improves ends, at the same step on all processes and after a resume."""

from __future__ import annotations

import math

import pytest

from configure import configure
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.store.metrics import Metric
from decentral.training.early_stop import Patience

SMALL = ["algo=dpsgd", "topology=ring", "data=digits", "model=mlp", "model.hidden=[8]", "num_workers=4", "steps=60",
         "batch_size=16", "lr=2", "evaluation.every_epochs=0.25", "checkpoint_every_s=0", "precision=fp64"]  # fmt: skip
WATCHED = {
    "the worst accuracy": ("early_stop.patience=3", "accuracy", "worst"),
    "the mean loss": ("early_stop.patience=2 early_stop.metric=loss early_stop.worker=mean", "loss", "mean"),
    "by enough": (
        "early_stop.patience=4 early_stop.worker=averaged early_stop.min_change=0.02",
        "accuracy",
        "averaged",
    ),
}


def expected_end(rows: list[dict], metric: str, worker: str, patience: int, min_change: float) -> int:
    """After which step such a run ends, by the evaluations of one that goes on."""
    best, waited = -math.inf, 0
    for row in rows:
        if (row["split"], row["metric"], row["worker"]) == ("test", metric, worker):
            value = -row["value"] if metric == "loss" else row["value"]
            waited += 1
            if value > best + min_change:
                best, waited = value, 0
            if waited == patience:
                return row["step"]
    raise AssertionError("it improves to the end: choose another case")


@pytest.mark.parametrize("name", WATCHED)
def test_it_ends_where_the_metric_has_not_improved_for_so_long(start, recorded, name):
    settings, metric, worker = WATCHED[name]
    given = dict(word.split("=") for word in settings.split())
    straight = recorded(*SMALL)
    patience, change = int(given["early_stop.patience"]), float(given.get("early_stop.min_change", 0))
    end = expected_end(straight.rows, metric, worker, patience, change)
    assert end < 60
    stopped = recorded(*SMALL, *settings.split())
    assert stopped.status == "done" and stopped.facts["step"] == end
    assert f"ended the run after {end} of 60 steps: test {metric}" in stopped.facts["notes"][0]
    assert [row for row in straight.rows if row["step"] <= end] == stopped.rows

    broken = start(*SMALL, *settings.split(), crash_at=end - 1)
    assert broken.status == "crashed"
    resumed = start(*SMALL, *settings.split())
    assert resumed.rows == stopped.rows and resumed.facts["step"] == end


def test_several_processes_end_at_the_same_step(start, recorded):
    settings = WATCHED["the mean loss"][0].split()
    alone = recorded(*SMALL, *settings)
    several = start(*SMALL, *settings, directory="several", processes=2)
    assert several.status == "done" and several.facts["step"] == alone.facts["step"] < 60
    assert start(*SMALL, *settings, processes=2, crash_at=alone.facts["step"] - 1).status == "crashed"
    assert start(*SMALL, *settings, processes=1).facts["step"] == alone.facts["step"]


def test_the_last_evaluation_is_on_all_test_examples(start):
    settings = ("early_stop.patience=2", "evaluation.examples=50")
    stopped = start(*SMALL, *settings)
    end = stopped.facts["step"]
    assert end < 60
    whole = start(*SMALL, "evaluation.examples=all", "early_stop.patience=1000", f"steps={end}", directory="whole")
    last, expected = (
        {
            (row["metric"], row["worker"]): row["value"]
            for row in run.rows
            if row["step"] == end and row["split"] == "test"
        }
        for run in (stopped, whole)
    )
    assert last == pytest.approx(expected)


@pytest.mark.parametrize(
    "algo", ["algo=wagma topology=complete", "algo=adpsgd topology=ring cluster=one_slow", "algo=async_push_sum"]
)
def test_workers_that_go_on_by_themselves_end_too(start, algo):
    found = start(*SMALL[2:], "topology=one_peer_exponential", *algo.split(), "lr=0", "early_stop.patience=2")
    assert found.status == "done" and found.facts["step"] < 60


def test_a_metric_that_is_watched_has_to_be_there_and_to_have_a_direction():
    metrics = [Metric("test", "accuracy", larger_is_better=True), Metric("test", "kind", larger_is_better=None)]
    for name in ("kind", "f1"):
        settings = configure(*SMALL, "early_stop.patience=1", f"early_stop.metric={name}").early_stop
        with pytest.raises(
            ConfigError, match=f"early_stop.metric={name} is not an evaluated metric .* use test accuracy"
        ):
            Patience(settings, metrics)


def test_patience_is_part_of_the_id_of_a_run():
    ids = {run_id(configure(*SMALL, *more)) for more in ([], ["early_stop.patience=2"], ["early_stop.patience=3"])}
    assert len(ids) == 3 and run_id(configure(*SMALL)) == run_id(configure(*SMALL, "early_stop.patience=null"))
