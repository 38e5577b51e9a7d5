"""What follows from formulas and graphs alone: collectives, groups, distributions of times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.measurements.collectives import CROSSOVERS, FACTOR, SCHEMES, SECONDS, Link, crossover, term
from decentral.measurements.groups import HOPS, PERIOD, REACH, called
from decentral.measurements.values import Value
from decentral.report.published import numbers
from decentral.store import Status
from decentral.study import catalogue
from decentral.study.catalogue import study_from
from decentral.study.study import Cell, Study
from decentral.topology.groups import group_period, grouping, versions_to_reach_all

# -- collectives ----------------------------------------------------------------------------------------------------

RING = {"method": "Ring", "scheme": "ring"}
MAP = {"kind": "collective_map", "num_parameters": 1000, "num_workers": [4, 8], "keep": [0.1, 0.01]}
LINKS = {"latency_ms": [1.0, 2.0, 3.0], "gbps": [1.0, 10.0]}


def run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
        assert job.carry_out() is Status.done  # nothing is added to what there is
    return [value for cell in cells for value in cell.values()]


@pytest.mark.parametrize("n", [4, 6, 8, 13, 16, 64])
def test_crossovers_are_those_of_the_slides(n: int) -> None:
    log = math.log2(n)
    expected = {
        "c1": (log - (n - 1) / n) / (n - 1 - log),
        "c2": 1 - 1 / n - log / (2 * (n - 1)),
        "c3": (n - 1) / log - 1.5,
    }
    for name, pair in CROSSOVERS.items():
        assert crossover(*pair, n) == pytest.approx(expected[name], abs=1e-12)


@pytest.mark.parametrize("pair", CROSSOVERS.values())
def test_at_a_crossover_both_cost_the_same_and_below_it_the_first_less(pair: tuple[str, str]) -> None:
    n, parameters, keep, beta = 16, 1e6, 0.01, 1e-9
    there = crossover(*pair, n) * 4 * parameters * keep * beta
    for factor, sign in ((0.9, -1), (1.0, 0), (1.1, 1)):
        first, second = (SCHEMES[scheme](n, parameters, keep, Link(factor * there, beta)) for scheme in pair)
        difference = (first - second) / second
        assert abs(difference) < 1e-12 if sign == 0 else difference * sign > 1e-3


def test_factors_of_the_first_table() -> None:
    found = {scheme: (term(scheme, "latency", 8), term(scheme, "volume", 8)) for scheme in ("star", "ring", "tree")}
    assert found == {"star": (2, 14), "ring": (14, 1.75), "tree": (6, 6)}


def test_only_what_the_second_slide_swaps_differs(tmp_path: Path) -> None:
    study = catalogue.load("flex_cost_table", "paper")
    values = run(study, tmp_path)
    published = {one.key: one.value for one in numbers("flex", "cost-tables")}
    assert {value.metric for value in values} == {FACTOR}
    compared = [value for value in values if value.published]
    assert {value.published for value in compared} == set(published)
    wrong = {
        v.published for v in compared if not math.isclose(v.value, published[v.published], rel_tol=1e-5, abs_tol=1e-6)
    }
    assert wrong and wrong == {key for key in published if key.startswith(("ring|table 2", "tree|table 2"))}


def test_each_place_of_a_map_has_the_time_of_its_formula(tmp_path: Path) -> None:
    rows = [RING, {"method": "AG-Topk", "scheme": "topk_allgather"}]
    values = run(study_from("mine", MAP | LINKS | {"rows": rows, "base": ["task=quadratics"]}), tmp_path)
    assert len(values) == 2 * 2 * 2 * 3 * 2 and {value.metric for value in values} == {SECONDS}
    for value in values:
        n, keep, latency, gbps = (float(value.labels[name]) for name in ("num_workers", "keep", "latency_ms", "gbps"))
        alpha, beta, phases = latency / 1000, 8e-9 / gbps, math.log2(n)
        ring = 2 * (n - 1) * alpha + 2 * (n - 1) / n * 4000 * beta
        gathered = phases * alpha + (n - 1) * 8 * 1000 * keep * beta
        assert value.value == pytest.approx(ring if value.labels["method"] == "Ring" else gathered, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": [{"method": "Ring", "scheme": "rings"}]}, "scheme=rings is unknown"),
        ({"keep": [2]}, "keep=2 makes no sense: it has to be above 0 and at most 1"),
        ({"gbps": []}, "gbps=.. makes no map"),
        ({"num_workers": [1]}, "num_workers=1 makes no sense"),
        ({"num_parameters": 0}, "num_parameters=0 makes no sense"),
    ],
)
def test_a_map_of_nothing_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_from("mine", MAP | LINKS | {"rows": [RING]} | settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rows": [{"method": "Ring", "scheme": "c4"}]}, "scheme=c4 is unknown"),
        ({"num_workers": [2]}, "num_workers=2 makes no sense: it has to be at least 4"),
    ],
)
def test_facts_of_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_from("mine", {"kind": "collective_facts", "rows": [RING], "num_workers": [8]} | settings)


# -- groups ---------------------------------------------------------------------------------------------------------


def groups_run(values: dict, folder: Path) -> list[Cell]:
    cells = study_from("mine", values).cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
    return cells


def test_following_a_contribution_gives_the_formula_for_how_far_it_comes(tmp_path: Path) -> None:
    sizes = [[2, 2], [8, 4], [16, 8], [64, 8], [64, 4]]
    for (n, size), cell in zip(
        sizes, groups_run({"kind": "groups", "base": ["task=quadratics"], "sizes": sizes}, tmp_path), strict=True
    ):
        found = {value.metric: value.value for value in cell.values()}
        assert found == {REACH: versions_to_reach_all(n, size), PERIOD: group_period(n, size), HOPS: n.bit_length() - 1}
        groups = [curve for curve in cell.curves() if curve.metric == "group"]
        for version in range(group_period(n, size)):
            members = grouping(version, n, size).tolist()
            assert [members[int(curve.points[version].value)].count(int(curve.worker)) for curve in groups] == [1] * n


def test_the_tree_of_the_papers_figure_1() -> None:
    assert called(1, 4) == ([1, 1, 0, 1], [1, 0, 2, 1])


@pytest.mark.parametrize("size", [[8, 3], [12, 4], [4, 8], [4, 1], [4]])
def test_sizes_that_do_not_exist_are_refused(size: list[int]) -> None:
    with pytest.raises(ConfigError):
        study_from("mine", {"kind": "groups", "sizes": [size]})


def test_the_times_of_gradients_are_those_of_the_distribution(tmp_path: Path) -> None:
    base = ["task=quadratics", "num_workers=4", "cluster=paper_wagma_transformer"]
    values = {"kind": "gradient_times", "base": base, "rows": [{"method": "T"}], "steps": 300}
    (cell,) = groups_run(values, tmp_path)
    found = {value.metric: value.value for value in cell.values()}
    assert found["least (s)"] == pytest.approx(1024 * 2e-4) and found["most (s)"] == pytest.approx(8192 * 2e-4)
    assert found["mean (s)"] == pytest.approx(4608 * 2e-4, rel=0.05)
    (curve,) = cell.curves()
    assert [point.value for point in curve.points] == list(range(101))
