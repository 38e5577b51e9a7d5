"""What a method's steps take by the clock alone, beside a baseline with the same delays, and over links: maps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.measurements.timeline import AGE, SENT, STALE, STEP, THROUGHPUT, WAITING
from decentral.measurements.values import Value
from decentral.report.figures.map import Map
from decentral.report.results import Results, read
from decentral.report.tables import as_markdown
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Study
from handmade import TABLE, value, write

# -- timeline -------------------------------------------------------------------------------------------------------

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


# -- map ------------------------------------------------------------------------------------------------------------

MAP_SLOW = [
    "cluster=free",
    "cluster.num_parameters=1000",
    "cluster.stragglers.mode=fixed",
    "cluster.stragglers.workers=[0]",
    "cluster.stragglers.slowdown=2",
]
MAP_ALLREDUCE = {"method": "All-reduce", "base": ["algo=allreduce"]}
ALONE = {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}


def map_study(base: list[str], **settings: Any) -> Study:
    values = {
        "kind": "timeline_map",
        "base": ["task=quadratics", "num_workers=4", *base],
        "rows": [MAP_ALLREDUCE, ALONE],
        "slowdowns": [2, 5],
        "gbps": [1.0e-6, 1],
        "steps": 6,
    }
    return study_from("mine", {**values, **settings})


def map_run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in (job for cell in cells for job in cell.jobs()):
        assert job.carry_out() is Status.done
    return [one for cell in cells for one in cell.values()]


def test_the_time_of_a_step_at_each_place_follows_by_hand(tmp_path: Path) -> None:
    values = map_run(map_study(MAP_SLOW), tmp_path)
    found = {(v.labels["method"], v.labels["slowdown"], v.labels["gbps"]): v.value for v in values}
    assert len(values) == len(found) == 8 and {v.metric for v in values} == {STEP}
    for slowdown in (2, 5):
        for gbps in (1.0e-6, 1):  # a ring: 2 (n - 1) / n rows of 4,000 bytes
            assert found["All-reduce", slowdown, gbps] == pytest.approx(slowdown + 1.5 * 4000 * 8e-9 / gbps)
    assert found["Alone", 5, 1] > found["Alone", 2, 1]


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        (MAP_SLOW, {"slowdowns": [1]}, "slowdowns=1 makes no sense: it has to be above 1"),
        (MAP_SLOW, {"gbps": []}, "gbps=.. make no map"),
        (MAP_SLOW, {"steps": 0}, "steps=0 makes no sense"),
        (["cluster=none"], {}, "cluster"),
        ([*MAP_SLOW, "cluster.num_parameters=null"], {}, "cluster.num_parameters is not given"),
    ],
)
def test_what_has_no_map_is_refused(base: list[str], settings: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        map_study(base, **settings).cells([f"results_dir={tmp_path}"])


# The figure

PLACES = ("method", "topology", "slowdown", "gbps")
TIMES = {"A": [[1, 2], [3, 4]], "B": [[2, 1], [3.003, 8]]}


def mapped(folder: Path, times: dict[str, list[list[float]]], **facts: Any) -> Results:
    rows = [
        value(method, "", 1, seconds, metric=STEP, slowdown=slowdown, gbps=gbps)
        for method, table in times.items()
        for slowdown, line in zip((2, 4), table, strict=True)
        for gbps, seconds in zip((1, 10), line, strict=True)
    ]
    rows = [{key: number for key, number in row.items() if key != "alpha"} for row in rows]
    known = {"metrics": {STEP: {"larger_is_better": False}}} | facts
    return read(write(folder / "time" / "mine" / "paper", rows, {}, labels=PLACES, **known))


def test_a_map_says_who_is_best_where_and_by_how_much(tmp_path: Path) -> None:
    results = mapped(tmp_path, TIMES)
    figure = Map(x="gbps", y="slowdown", lines=["method"], against="B")
    region = figure.regions(results, figure.data(results))[""]
    assert (region.x, region.y, region.keys) == ([1, 10], [2, 4], [("A",), ("B",)])
    assert region.best.tolist() == [[0, 1], [0, 0]]
    np.testing.assert_allclose(region.ahead, [[2, 2], [1.001, 2]])
    assert region.gain is not None
    np.testing.assert_allclose(region.gain, [[2, 1], [1.001, 2]])


def test_where_larger_is_better_the_largest_wins(tmp_path: Path) -> None:
    results = mapped(tmp_path, TIMES, metrics={STEP: {"larger_is_better": True}})
    figure = Map(x="gbps", y="slowdown", lines=["method"])
    assert figure.regions(results, figure.data(results))[""].best.tolist() == [[1, 0], [1, 1]]


def test_a_map_is_drawn_with_the_names_of_large_regions(tmp_path: Path) -> None:
    results = mapped(tmp_path, {"A": [[1, 1], [1, 1]], "B": [[2, 2], [2, 3]]})
    figure = Map(x="gbps", y="slowdown", lines=["method"], against="B", logx=True)
    drawn = figure.draw(results, figure.data(results))
    assert "A" in [text.get_text() for text in drawn.axes[0].texts]
    assert "B" not in [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"y": ""}, "needs `x`, `y` and `lines`"),
        ({"close": 1}, "close=1, which is no share"),
        ({"against": "C"}, "has against=C"),
        ({"y": "method"}, "is a map over method, but A is no number"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(settings: dict, said: str, tmp_path: Path) -> None:
    results = mapped(tmp_path, TIMES)
    with pytest.raises(ConfigError, match=said):
        figure = Map(**{"x": "gbps", "y": "slowdown", "lines": ["method"], **settings})
        figure.regions(results, figure.data(results))


def test_a_map_needs_a_direction(tmp_path: Path) -> None:
    results = mapped(tmp_path, TIMES, metrics={})
    figure = Map(x="gbps", y="slowdown", lines=["method"])
    with pytest.raises(ConfigError, match="neither larger nor smaller is better"):
        figure.regions(results, figure.data(results))


# Never


def test_a_table_says_never_where_no_run_gets_to_its_target(tmp_path: Path) -> None:
    never = {"status": "not reached"}
    rows = [
        *(value("D2", "ring", 1, math.nan, seed=seed, **never) for seed in (1, 2)),
        *(value("D-PSGD", "ring", 1, 7.0, seed=1), value("D-PSGD", "ring", 1, math.nan, seed=2, **never)),
    ]
    text = as_markdown(read(write(tmp_path / "relaysum" / "mine" / "small", rows, {"table": TABLE})))
    assert "| D2 | ring | never |" in text and "7.0 (1 of 2 never)" in text
