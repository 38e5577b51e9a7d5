"""kind=groups and kind=gradient_times: what they find is what follows from the groups, and from the distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.measurements.groups import HOPS, PERIOD, REACH, called
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Cell
from decentral.topology.groups import group_period, grouping, versions_to_reach_all


def run(values: dict, folder: Path) -> list[Cell]:
    cells = study_from("mine", values).cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
    return cells


def test_following_a_contribution_gives_the_formula_for_how_far_it_comes(tmp_path: Path) -> None:
    sizes = [[2, 2], [8, 4], [16, 8], [64, 8], [64, 4]]
    for (n, size), cell in zip(
        sizes, run({"kind": "groups", "base": ["task=quadratics"], "sizes": sizes}, tmp_path), strict=True
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
    (cell,) = run(values, tmp_path)
    found = {value.metric: value.value for value in cell.values()}
    assert found["least (s)"] == pytest.approx(1024 * 2e-4) and found["most (s)"] == pytest.approx(8192 * 2e-4)
    assert found["mean (s)"] == pytest.approx(4608 * 2e-4, rel=0.05)
    (curve,) = cell.curves()
    assert [point.value for point in curve.points] == list(range(101))
