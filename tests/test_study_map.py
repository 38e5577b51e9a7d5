"""kind=timeline_map and its figure: which method is fast where; and targets that are never got to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.measurements.timeline import STEP
from decentral.measurements.values import Value
from decentral.report.figures.map import Map
from decentral.report.results import Results, read
from decentral.report.tables import as_markdown
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Study
from handmade import TABLE, value, write

SLOW = [
    "cluster=free",
    "cluster.num_parameters=1000",
    "cluster.stragglers.mode=fixed",
    "cluster.stragglers.workers=[0]",
    "cluster.stragglers.slowdown=2",
]
ALLREDUCE = {"method": "All-reduce", "base": ["algo=allreduce"]}
ALONE = {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}


def study(base: list[str], **settings: Any) -> Study:
    values = {
        "kind": "timeline_map",
        "base": ["task=quadratics", "num_workers=4", *base],
        "rows": [ALLREDUCE, ALONE],
        "slowdowns": [2, 5],
        "gbps": [1.0e-6, 1],
        "steps": 6,
    }
    return study_from("mine", {**values, **settings})


def run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in (job for cell in cells for job in cell.jobs()):
        assert job.carry_out() is Status.done
    return [one for cell in cells for one in cell.values()]


def test_the_time_of_a_step_at_each_place_follows_by_hand(tmp_path: Path) -> None:
    values = run(study(SLOW), tmp_path)
    found = {(v.labels["method"], v.labels["slowdown"], v.labels["gbps"]): v.value for v in values}
    assert len(values) == len(found) == 8 and {v.metric for v in values} == {STEP}
    for slowdown in (2, 5):
        for gbps in (1.0e-6, 1):  # a ring: 2 (n - 1) / n rows of 4,000 bytes
            assert found["All-reduce", slowdown, gbps] == pytest.approx(slowdown + 1.5 * 4000 * 8e-9 / gbps)
    assert found["Alone", 5, 1] > found["Alone", 2, 1]


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        (SLOW, {"slowdowns": [1]}, "slowdowns=.1.0. makes no sense: give numbers above 1"),
        (SLOW, {"gbps": []}, "gbps=.. makes no sense"),
        (SLOW, {"steps": 0}, "steps=0 makes no sense"),
        (["cluster=none"], {}, "cluster"),
        ([*SLOW, "cluster.num_parameters=null"], {}, "cluster.num_parameters is not given"),
    ],
)
def test_what_has_no_map_is_refused(base: list[str], settings: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        study(base, **settings).cells([f"results_dir={tmp_path}"])


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
