"""kind=timeline: what a method's steps take by the clock alone, beside a baseline with the same delays."""

from __future__ import annotations

from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.measurements.timeline import AGE, SENT, STALE, STEP, THROUGHPUT, WAITING
from decentral.measurements.values import Value
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Study

FREE = ["cluster=free", "cluster.num_parameters=1000"]
SLOW = [*FREE, "cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[0]", "cluster.stragglers.slowdown=3"]
DELAYED = [*FREE, "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1", "cluster.stragglers.slowdown=2"]
WAGMA = {"method": "WAGMA-SGD", "base": ["algo=wagma", "algo.tau=4"]}
ALLREDUCE = {"method": "All-reduce", "base": ["algo=allreduce"]}
DPSGD = {"method": "D-PSGD", "topology": "ring", "base": ["algo=dpsgd", "topology=ring"]}


def study(base: list[str], rows: list[dict], **settings) -> Study:
    values = {
        "kind": "timeline",
        "base": ["task=quadratics", "num_workers=8", *base],
        "rows": rows,
        "baseline": rows[0]["method"],
        "seeds": [1],
        "steps": 12,
    }
    return study_from("mine", {**values, **settings})


def run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
    return [value for cell in cells for value in cell.values()]


def number(values: list[Value], method: str, metric: str, seed: int = 1, **labels: object) -> float:
    wanted = {"method": method, **labels}
    (one,) = [v for v in values if v.metric == metric and v.seed == seed and wanted.items() <= v.labels.items()]
    return one.value


def test_the_numbers_of_one_slow_worker_are_those_that_follow_by_hand(tmp_path: Path) -> None:
    values = run(
        study(SLOW, [ALLREDUCE, {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}]), tmp_path
    )
    assert number(values, "All-reduce", STEP) == pytest.approx(3.0)
    assert number(values, "All-reduce", THROUGHPUT) == pytest.approx(1 / 3)
    assert number(values, "All-reduce", WAITING) == pytest.approx(100 * 7 * 2 / (8 * 3))
    assert number(values, "Alone", WAITING) == 0
    assert number(values, "All-reduce", SENT) == pytest.approx(2 * 7 / 8 * 4 * 1000 / 1e6)


def test_the_speed_up_is_a_ratio_of_times_with_the_same_delays(tmp_path: Path) -> None:
    values = run(study(DELAYED, [WAGMA, ALLREDUCE], seeds=[1, 2]), tmp_path)
    for seed in (1, 2):
        ratio = number(values, "All-reduce", STEP, seed) / number(values, "WAGMA-SGD", STEP, seed)
        assert number(values, "All-reduce", "speed-up of WAGMA-SGD", seed) == pytest.approx(ratio)
        assert ratio > 1.1 and number(values, "WAGMA-SGD", "speed-up of WAGMA-SGD", seed) == 1
    assert number(values, "WAGMA-SGD", STEP, 1) != number(values, "WAGMA-SGD", STEP, 2)
    assert number(values, "WAGMA-SGD", STALE) > 0 and number(values, "WAGMA-SGD", AGE) > 0
    assert not [value for value in values if value.labels["method"] == "All-reduce" and value.metric in (STALE, AGE)]


def test_who_waits_for_everyone_is_as_slow_as_all_reduce_and_who_waits_for_neighbors_is_not(tmp_path: Path) -> None:
    columns = {"columns": {"waits_for": ["neighbors", "everyone"]}, "keys": {"waits_for": "cluster.waits_for"}}
    values = run(study(DELAYED, [ALLREDUCE, DPSGD], **columns), tmp_path)
    speed_up = "speed-up of All-reduce"
    assert number(values, "D-PSGD", speed_up, waits_for="everyone") == pytest.approx(1)
    assert number(values, "D-PSGD", speed_up, waits_for="neighbors") < 0.9


def test_what_is_compared_comes_first_and_has_the_published_key(tmp_path: Path) -> None:
    row = {**ALLREDUCE, "published": "over all-reduce|"}
    columns = {"columns": {"num_workers": [4, 8]}, "published_at": {"num_workers": [4]}}
    columns |= {"setting": "{num_workers} workers"}
    for compares, first in (("speed-up", "speed-up of WAGMA-SGD"), ("throughput", THROUGHPUT)):
        values = run(study(DELAYED, [WAGMA, row], compares=compares, **columns), tmp_path)
        own = [value for value in values if value.labels["method"] == "All-reduce"]
        assert own[0].metric == first and {value.published for value in values[: len(values) - len(own)]} == {""}
        assert [(v.metric, v.published) for v in own if v.published] == [(first, "over all-reduce||4 workers")]


def test_seeds_that_are_known_are_not_computed_again_and_more_can_be_added(tmp_path: Path) -> None:
    first = run(study(DELAYED, [WAGMA]), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("times.jsonl")}
    assert run(study(DELAYED, [WAGMA]), tmp_path) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("times.jsonl")} == files and len(files) == 1
    both = run(study(DELAYED, [WAGMA], seeds=[1, 2]), tmp_path)
    assert [value.value for value in both if value.seed == 1] == [value.value for value in first]


def test_there_is_no_value_before_the_baseline_is_done(tmp_path: Path) -> None:
    cell = study(DELAYED, [WAGMA, ALLREDUCE]).cells([f"results_dir={tmp_path}", "progress=false"])[1]
    own, baseline = cell.jobs()
    own.carry_out()
    assert cell.values() == []
    baseline.carry_out()
    assert cell.values()


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        (["cluster=none"], {}, "cluster=none has no simulated time"),
        (["cluster=free"], {}, "cluster.num_parameters is not given"),
        (FREE, {"baseline": "WAGMA"}, "baseline=WAGMA is the method of no row"),
        (FREE, {"steps": 0}, "steps=0 makes no sense"),
        (FREE, {"published_at": {"workers": [8]}}, "published_at: workers is no column"),
        (FREE, {"rows": [WAGMA, WAGMA]}, "two have the same method"),
        ([*FREE, "network.drop_probability=0.1"], {"rows": [{**DPSGD, "method": "WAGMA-SGD"}]}, "cannot be used"),
    ],
)
def test_what_cannot_be_timed_is_refused(base: list[str], settings: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        study(base, **{"rows": [WAGMA], **settings}).cells([f"results_dir={tmp_path}"])
