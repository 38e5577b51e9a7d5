"""The axes of a curve: step, epoch, seconds and bytes, from a run's metrics to studies, claims and figures."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.measurements.values import NOT_REACHED, Curve, Meaning, Point, Value
from decentral.report.figures.curves import Curves
from decentral.report.make import make
from decentral.report.results import read
from decentral.report.verdicts import judge
from decentral.store import RunStore, Status, read_metrics
from decentral.study import collect
from decentral.study.catalogue import study_from
from decentral.study.measure import Measure
from decentral.study.study import Cell
from handmade import courses, table1, value, write

ACCURACIES = {0: (0.1, 0.5, 0.8, 0.95), 1: (0.1, 0.7, 0.9, 0.91)}
"""Of two workers after 0, 10, 20 and 30 steps."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An epoch is 10 steps of 2 s, in which 1 kB is sent."""
    with RunStore.open(tmp_path / "run", "aaa", "seed: 1\n") as store:
        for number in range(4):
            both = [ACCURACIES[worker][number] for worker in (0, 1)]
            aggregates = {"worst": min(both), "mean": sum(both) / 2, "averaged": max(both)}
            place = {"step": 10 * number, "epoch": float(number), "wall_s": 2.0 * number, "bytes_sent": 1000 * number}
            store.append(
                place | {"worker": worker, "split": "test", "metric": "accuracy", "value": value}
                for worker, value in {0: both[0], 1: both[1], **aggregates}.items()
            )
        store.set_status(Status.done, step=30, wall_s=6.0)
    return tmp_path / "run"


# What a run is judged by


@pytest.mark.parametrize(
    ("at", "expected"),
    [({"bytes_sent": 2500}, 80.0), ({"step": 10}, 50.0), ({"wall_s": 3.9}, 50.0), ({"epoch": 99}, 91.0),
     ({"epoch": 3, "bytes_sent": 0}, 10.0)],
)  # fmt: skip
def test_the_value_at_a_place_is_that_of_the_last_evaluation_not_beyond_it(run, at, expected):
    assert Measure(at=at).of(run).value == pytest.approx(expected)


def test_the_mean_over_the_last_epochs_ends_at_the_place(run):
    assert Measure(at={"bytes_sent": 2500}, last_epochs=2, worker="0").of(run).value == pytest.approx(65.0)


def test_a_place_is_part_of_the_name_of_the_number(run):
    found = Measure(at={"bytes_sent": 1e9}).of(run)
    assert found.label == "test accuracy (%) at bytes_sent 1e+09" and found.meaning.larger_is_better


def test_a_place_before_the_first_evaluation_has_no_number(run):
    found = Measure(at={"wall_s": -1}).of(run)
    assert found.status == "damaged" and "up to wall_s -1" in found.remark


@pytest.mark.parametrize(
    ("axis", "expected"),
    [("step", (20, 20, 20, 10)), ("bytes_sent", (2000, 2000, 2000, 1000)), ("wall_s", (4, 4, 4, 2))],
)
def test_a_target_is_reached_at_the_place_of_the_first_value_that_is_good_enough(run, axis, expected):
    found = Measure(to_reach=70, axis=axis).of(run)
    assert (found.value, found.worst, found.mean, found.averaged) == expected
    assert found.label == f"{axis} to test accuracy 70 %" and found.status == "done"
    assert found.meaning == Meaning(larger_is_better=False) and found.score == -found.value


def test_a_target_that_is_not_reached_has_no_place(run):
    found = Measure(to_reach=94, axis="bytes_sent").of(run)
    assert math.isnan(found.value) and found.status == NOT_REACHED == "not reached"
    assert found.averaged == 3000


def test_of_a_metric_that_should_be_small_the_target_is_reached_from_above(run):
    found = Measure(to_reach=0.6, worker="1", percent=False, larger_is_better=False).of(run)
    assert found.value == 0 and found.label == "step to test accuracy 0.6"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"at": {"bytes": 1}}, "measure.at=bytes is no axis. Did you mean"),
        ({"to_reach": 90, "axis": "second"}, "measure.axis=second is no axis"),
        ({"to_reach": 90, "at": {"step": 5}}, "leave out measure.at"),
        ({"to_reach": 90, "last_epochs": 5}, "leave out measure.last_epochs"),
        ({"to_reach": math.nan}, "measure.to_reach=nan must be a finite number"),
        ({"at": {"step": math.nan}}, "measure.at.step=nan must be a finite number"),
        ({"last_epochs": -1}, "measure.last_epochs=-1 must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Measure(**values)


def test_the_study_file_has_them(run):
    values: dict[str, Any] = {"kind": "comparison", "measure": {"at": {"bytes_sent": "1e3"}}, "name": "mine"}
    study = study_from("mine", values | {"also": [{"to_reach": 70, "axis": "wall_s"}]})
    assert study.measure.of(run).value == pytest.approx(50.0)
    assert [one.of(run).value for one in study.also] == [4]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"split": "train", "metric": "loss"}, (1.5, 1.5, 0.75, math.nan)),
        ({"split": "train", "metric": "loss", "worker": "mean", "last_epochs": 2}, (1.0, 2.0, 1.0, math.nan)),
        ({"split": "model", "metric": "consensus_distance", "worker": "mean"}, (0.125, math.nan, 0.125, math.nan)),
        ({"split": "train", "metric": "loss", "to_reach": 1, "worker": "mean", "axis": "bytes_sent"},
         (3000, math.nan, 3000, math.nan)),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_taken_worker_by_worker_has_the_aggregates_that_are_recorded(run, values, expected):
    with RunStore.open(run, "aaa", "seed: 1\n") as store:
        for epoch, worst, mean, distance in ((2.0, 2.5, 1.25, 0.5), (3.0, 1.5, 0.75, 0.125)):
            place = {"step": int(10 * epoch), "epoch": epoch, "wall_s": 2 * epoch, "bytes_sent": 1000 * epoch}
            loss, consensus = {"split": "train", "metric": "loss"}, {"split": "model", "metric": "consensus_distance"}
            store.append([place | loss | {"worker": "mean", "value": mean}])
            store.append([place | loss | {"worker": "worst", "value": worst}])
            store.append([place | consensus | {"worker": "mean", "value": distance}])
        store.set_status(Status.done, step=30, wall_s=6.0)
    found = Measure(**values).of(run)
    assert found[:4] == pytest.approx(expected, nan_ok=True) and found.status == "done"
    missing = Measure(split="model", metric="consensus_distance", worker="worst").of(run)
    assert missing.status == "damaged" and "it has only the mean of this metric" in missing.remark


def test_a_run_may_have_places_on_some_axes_only(tmp_path):
    with RunStore.open(tmp_path / "run", "aaa", "seed: 1\n") as store:
        row = {"step": 3, "epoch": 1.0, "worker": 0, "split": "test", "metric": "accuracy", "value": 0.5}
        store.append([row])
        with pytest.raises(AssertionError, match="a row has the keys"):
            store.append([row | {"seconds": 1.0}])
        with pytest.raises(AssertionError, match="a row has the keys"):
            store.append([{key: value for key, value in row.items() if key != "epoch"}])
        store.set_status(Status.done)
    assert read_metrics(tmp_path / "run") == [row]
    assert Measure(worker="0").of(tmp_path / "run").value == 50.0
    reached = Measure(worker="0", to_reach=40, axis="wall_s").of(tmp_path / "run")
    assert reached.status == "damaged" and "has no test accuracy over wall_s" in reached.remark


# Curves


class TwoCurves(Cell):
    """One with places on all axes, one with seconds only."""

    def __init__(self, run: Path) -> None:
        self.run, self.labels = run, {"method": "ours", "topology": "ring", "alpha": 1}

    def jobs(self) -> list:
        return []

    def values(self) -> list[Value]:
        return [Value(self.labels, 91.0, "test accuracy (%)", 1), Value(self.labels, 2e3, "bytes_sent to 70 %", 1)]

    def curves(self) -> list[Curve]:
        seconds = [Point(0.5, {"wall_s": 1.5}), Point(0.25, {"wall_s": 3.0})]
        own = Measure().curves(self.run, ["worst"], self.labels, 1)
        return [*own, Curve(self.labels, "error", "", 1, seconds)]

    def meanings(self) -> dict[str, Meaning]:
        return {"test accuracy (%)": Meaning(True, "%", 10.0), "bytes_sent to 70 %": Meaning(False)}


@pytest.fixture
def collected(run: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "relaysum" / "mine" / "paper"
    facts = {"study": "mine", "scale": "paper"}
    collect.collect(study_from("mine", {"kind": "comparison"}), [TwoCurves(run)], directory, facts)
    return directory


def test_curves_have_a_column_for_each_axis_that_is_known(collected):
    header, first, *_, last = csv.reader((collected / "curves.csv").read_text().splitlines())
    assert header[3:] == ["metric", "worker", "seed", "step", "epoch", "wall_s", "bytes_sent", "value"]
    assert first[3:] == ["test accuracy (%)", "worst", "1", "0", "0", "0", "0", "10"]
    assert last[3:] == ["error", "", "1", "", "", "3", "", "0.25"]


@pytest.mark.parametrize(
    ("x", "expected"),
    [("step", [0, 10, 20, 30]), ("epoch", [0, 1, 2, 3]), ("wall_s", [0, 2, 4, 6]), ("bytes_sent", [0, 1e3, 2e3, 3e3])],
)
def test_a_figure_is_drawn_over_any_axis(collected, x, expected):
    (line,) = Curves(x=x, worker="worst", metric="test accuracy (%)").data(read(collected))
    assert line.x == expected and line.y == [10, 50, 80, 91]


def test_a_curve_over_seconds_alone_has_no_place_on_other_axes(collected):
    (line,) = Curves(x="wall_s", metric="error").data(read(collected))
    assert line.x == [1.5, 3.0]
    with pytest.raises(ConfigError, match=r"has x=step, but its curves only have a place on .*: use one of these"):
        Curves(x="step", metric="error").data(read(collected))


def test_an_axis_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"has x=bytes_send\. Did you mean 'bytes_sent'\?"):
        Curves(x="bytes_send")


def test_curves_that_are_older_have_steps_and_epochs(tmp_path):
    directory = write(tmp_path / "p" / "mine" / "paper", table1(), {}, courses("RelaySGD", "dbt", 1, 90, seeds=(1,)))
    (line,) = Curves(x="epoch", worker="worst").data(read(directory))
    assert line.x == [0, 5, 10, 15]
    with pytest.raises(ConfigError, match="x=bytes_sent, but its curves only have a place on step, epoch"):
        Curves(x="bytes_sent", worker="worst").data(read(directory))


def test_curves_of_stragglers_that_are_older_keep_their_seconds_where_steps_are(tmp_path):
    curves = courses("RelaySGD", "dbt", 1, 90, seeds=(1,))
    directory = write(tmp_path / "p" / "mine" / "paper", table1(), {}, curves, kind="straggler")
    for x in ("wall_s", "step"):
        (line,) = Curves(x=x, worker="worst").data(read(directory))
        assert line.x == [0, 10, 20, 30]


# What reports take from the metrics that a study had


def test_a_study_keeps_what_is_known_of_its_metrics(collected):
    results = read(collected)
    assert results.larger_is_better() is True and results.larger_is_better("bytes_sent to 70 %") is False
    assert results.chance() == 10.0


BYTES = "bytes_sent to test accuracy 70 %"


def two_methods(**facts: Any) -> dict[str, Any]:
    table = {"rows": ["method"], "format": "plain", "digits": 0}
    claim = {"says": "RelaySGD sends less", "kind": "order", "better": {"method": "RelaySGD", "metric": BYTES}}
    claim |= {"worse": {"method": "D-PSGD", "metric": BYTES}}
    return {"report": {"table": table, "claims": [claim]}, **facts}


def test_claims_and_tables_know_the_direction_of_each_metric(tmp_path):
    values = [value("RelaySGD", "dbt", 1, 80.0), value("D-PSGD", "dbt", 1, 70.0)]
    values += [value("RelaySGD", "dbt", 1, 1e3, metric=BYTES), value("D-PSGD", "dbt", 1, 2e3, metric=BYTES)]
    metrics = {"test accuracy (%)": Meaning(True)._asdict(), BYTES: Meaning(False)._asdict()}
    own = two_methods()
    directory = write(tmp_path / "p" / "mine" / "paper", values, metrics=metrics, **own)
    (verdict,) = judge(read(directory))
    assert verdict.verdict == "met"
    make(directory)
    table = (directory / "table.md").read_text()
    assert "**80**" in table and "**1000**" in table


def test_a_run_counts_as_lost_near_the_chance_level_that_the_runs_say(tmp_path):
    published = {"item": "table5-dropped-messages", "tolerance": {"absolute": 0.5}, "because": "seeds differ"}
    key = "d2+momentum|ring|drop=0.1"  # which diverges, the paper says
    said = {"metrics": {"test accuracy (%)": Meaning(True, "%", 1.0)._asdict()}}
    found = {}
    for name, facts in (("unsaid", {}), ("hundred", said)):
        values = [value("D2", "ring", 0.01, 15.0, seed, published=key) for seed in (1, 2, 3)]
        directory = write(tmp_path / "relaysum" / name / "paper", values, {"published": published}, **facts)
        (found[name],) = [one for one in judge(read(directory)) if one.what == key]
    assert found["unsaid"].verdict == "met" and "or end below 20 %" in found["unsaid"].tolerance
    assert found["hundred"].verdict == "not met" and "or end below 2 %" in found["hundred"].tolerance
