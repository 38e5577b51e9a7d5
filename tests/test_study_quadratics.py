"""The studies on quadratics and graphs: each runs at scale=smoke, and at scale=paper has every published number."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.measurements.estimation import Estimation
from decentral.measurements.values import Value
from decentral.published import key as published_key
from decentral.report.published import numbers
from decentral.store import Status
from decentral.study import catalogue
from decentral.study.collect import collect
from decentral.study.kinds.courses import CourseCell
from decentral.study.measured import MeasuredCell
from decentral.study.study import Cell, Study
from decentral.topology.bt import BinaryTree
from decentral.topology.chain import Chain
from decentral.topology.facts import effective_spectral_gap, relay_matrix
from decentral.topology.star import Star

FIGURES = ("fig2", "fig3", "fig5", "fig6", "fig7", "fig7_rates", "fig8", "fig9", "fig10", "mixing")


@cache
def load(figure: str, scale: str) -> Study:
    return catalogue.load(f"relaysum_{figure}", scale)


def cells_of(figure: str, scale: str, folder: Path) -> list[Cell]:
    return load(figure, scale).cells([f"results_dir={folder}", "progress=false"])


def carry_out(cells: list[Cell]) -> int:
    """As a scheduler would, one job after the other; how many there were."""
    count = 0
    while jobs := [
        job for job in {job.id: job for cell in cells for job in cell.jobs()}.values() if not job.finished()
    ]:
        for job in jobs:
            assert job.carry_out() is Status.done
            count += 1
    return count


def published_keys(cell: Cell) -> list[str]:
    """The published numbers that the values of a cell are compared with."""
    if isinstance(cell, CourseCell):
        study, known = cell.study, {"n": cell.config.num_workers, "zeta2": cell.study.zeta2[cell.place]}
        steps = study.at or [study.steps[cell.place]]
        setting = cell.row.setting or study.setting
        return [published_key(cell.row.published, setting, **known, step=step) for step in steps]
    assert isinstance(cell, MeasuredCell)
    at = cell.job.at if isinstance(cell.job, Estimation) else [0]
    return [published_key(cell.line, cell.setting, **cell.labels | {"after_steps": step}) for step in at]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_published_number_has_a_cell_at_scale_paper(figure: str, tmp_path: Path) -> None:
    study = load(figure, "paper")
    keys = {key for cell in cells_of(figure, "paper", tmp_path) for key in published_keys(cell)}
    theirs = {number.key for number in numbers(study.paper, study.report["published"]["item"])}
    assert theirs <= keys


@pytest.mark.parametrize("figure", FIGURES)
def test_it_runs_at_scale_smoke_and_then_has_nothing_to_do(figure: str, tmp_path: Path) -> None:
    study, cells = load(figure, "smoke"), cells_of(figure, "smoke", tmp_path)
    assert carry_out(cells) > 0
    values = [value for cell in cells for value in cell.values()]
    assert values and all(math.isfinite(value.value) and value.status == "done" for value in values)
    assert len({value.metric for value in values}) == 1
    labels = {label for cell in cells for label in cell.labels}
    assert all(value.labels.keys() <= labels for value in values)
    again = cells_of(figure, "smoke", tmp_path)
    assert carry_out(again) == 0
    assert [value for cell in again for value in cell.values()] == values
    collect(study, cells, tmp_path / "out", {"study": figure, "scale": "smoke"})
    assert len((tmp_path / "out" / "values.csv").read_text().splitlines()) == len(values) + 1
    curves = [curve for cell in cells for curve in cell.curves()]
    assert bool(curves) == bool(list((tmp_path / "out").glob("curves.csv*")))


def values_of(figure: str, folder: Path, **changes: object) -> dict[tuple[object, ...], Value]:
    """What a study at scale=paper finds with some of its keys replaced; by the values of its labels."""
    study = load(figure, "paper")
    own = type(study)(**{**vars(study), **changes})
    cells = own.cells([f"results_dir={folder}"])
    carry_out(cells)
    return {tuple(value.labels.values()): value for cell in cells for value in cell.values()}


def test_figure_8_has_the_published_steps_and_draws_half_of_the_rate(tmp_path: Path) -> None:
    study = load("fig8", "paper")
    rows = [row for row in study.rows if row.method in ("D2", "RelaySGD")]  # type: ignore[attr-defined]
    found = values_of("fig8", tmp_path, rows=rows)
    assert {key[0]: value.value for key, value in found.items() if key[2] == 0} == {"D2": 65, "RelaySGD": 8}
    own = type(study)(**{**vars(study), "rows": rows})
    (cell, *_) = own.cells([f"results_dir={tmp_path}"])
    assert isinstance(cell, CourseCell)
    simulation = cell.simulation()
    assert simulation is not None
    assert [member.lr for member in simulation.members] == [0.078125]
    assert cell.values()[0].lr == 2 * 0.078125


def test_figure_10_has_the_published_plateau_of_relaysgd_grad(tmp_path: Path) -> None:
    """The authors' notebook prints 7.337735926317589e-11, 2.0265183017786903e-08 and 8.653164309535555e-07."""
    rows = [row for row in load("fig10", "paper").rows if row.method == "RelaySGD/Grad"]  # type: ignore[attr-defined]
    found = values_of("fig10", tmp_path, rows=rows)
    ends = {key[2]: value.value for key, value in found.items()}
    assert ends[0] == pytest.approx(7.337735926317589e-11, rel=1e-3)
    assert ends[0.01] == pytest.approx(2.0265183017786903e-08, rel=1e-6)
    assert ends[1] == pytest.approx(8.653164309535555e-07, rel=1e-6)


def test_the_noise_is_not_part_of_a_search_and_seeds_share_their_problem(tmp_path: Path) -> None:
    cell = next(cell for cell in cells_of("fig7", "paper", tmp_path) if cell.labels["method"] == "D2")
    assert isinstance(cell, CourseCell) and cell.search is not None
    assert (cell.search.config.task.noise, cell.config.task.noise) == (0, 0.05)
    assert {member.seed for member in cell.search.members} == {0}
    assert cell.jobs() == [cell.search]  # the simulation follows when its rates are known


@pytest.mark.parametrize(
    ("topology", "n", "ratio"), [(BinaryTree, 8, 58.5), (Chain, 8, 91.2), (Star, 8, 36.5), (BinaryTree, 16, 114.7)]
)
def test_the_effective_spectral_gap_is_the_published_one(topology: type, n: int, ratio: float) -> None:
    m, p = effective_spectral_gap(relay_matrix(topology().schedule(n)))
    assert m / p == pytest.approx(ratio, abs=0.05)


def test_the_relay_matrix_of_a_chain_of_three() -> None:
    M = relay_matrix(Chain().schedule(3))
    assert M.shape == (9, 9)
    assert M[0].tolist() == [1 / 3, 0, 0, 0, 1 / 3, 0, 0, 0, 1 / 3]
    assert M[1].tolist() == [0, 1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 0, 0]
    assert (M.sum(1) == pytest.approx(1)) and (M[3:, :6].argmax(1) == range(6)).all()


@pytest.mark.parametrize(
    ("figure", "change", "words"),
    [
        ("fig7_rates", {"search": {"rule": "slowest"}}, "search.rule=slowest does not exist"),
        ("fig7_rates", {"search": {"targt": 1}}, "targt"),
        ("fig8", {"steps": [1, 2]}, "zeta2, steps and every"),
    ],
)
def test_a_wrong_study_is_refused(figure: str, change: dict[str, object], words: str, tmp_path: Path) -> None:
    study = load(figure, "smoke")
    with pytest.raises(ConfigError, match=words):
        type(study)(**{**vars(study), **change}).cells([f"results_dir={tmp_path}"])


def test_a_member_for_which_no_rate_reaches_the_target_has_no_number_and_is_not_called_diverged(tmp_path: Path) -> None:
    study = load("fig7_rates", "smoke")
    search = {"rule": "fastest", "start_lr": 0.001, "target": 1e-6, "max_steps": 20, "test_points": 10}
    (cell, *_) = type(study)(**{**vars(study), "search": search}).cells([f"results_dir={tmp_path}"])
    assert carry_out([cell]) == 1
    (value,) = cell.values()
    assert math.isnan(value.value) and value.lr is None
    assert (value.status, value.chosen) == ("not reached", True)


def test_a_curve_for_which_no_rate_was_found_has_ended_without_a_number(tmp_path: Path) -> None:
    study = load("fig7", "smoke")
    search = {"rule": "fastest", "start_lr": 0.001, "target": 1e-6, "max_steps": 20, "test_points": 10}
    cells = type(study)(**{**vars(study), "search": search}).cells([f"results_dir={tmp_path}"])
    cell = next(cell for cell in cells if isinstance(cell, CourseCell) and cell.search is not None)
    assert cell.values() == []
    assert carry_out([cell]) == 1
    values = cell.values()
    assert {value.seed for value in values} == set(cell.study.seeds) and cell.curves() == []
    assert {(value.status, value.lr, math.isnan(value.value)) for value in values} == {("not reached", None, True)}
