"""Items of the papers: fish school, collectives, groups, courses and searches on quadratics, races of stragglers."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configure import configure
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.measurements.timeline import STEP
from decentral.measurements.values import Labels, Value
from decentral.plugins.papers.measurements.collectives import CROSSOVERS, crossover, seconds
from decentral.plugins.papers.measurements.fish_school import (
    FishSchool,
    School,
    look,
)
from decentral.plugins.papers.measurements.groups import HOPS, PERIOD, REACH
from decentral.plugins.papers.measurements.search import Courses
from decentral.plugins.papers.measurements.straggler import END, MASS_ERROR, P_ERROR, TURNS, Straggler
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.study import catalogue
from decentral.study.catalogue import study_from
from decentral.study.measured import MeasuredCell
from decentral.study.study import Cell, Study
from decentral.topology.facts import effective_spectral_gap, relay_matrix
from decentral.topology.groups import group_period, grouping
from decentral.topology.trees import BinaryTree, Chain, Star
from test_study import cells_of, finish_all

PREDATOR = np.array([-3.0, 1.0])


def places(n: int = 9) -> np.ndarray:
    return School().places(n, seed=0)


def school_job(folder: Path, sharing: str = "neighbours", rounds: int = 30, **settings: float) -> FishSchool:
    config = configure(
        "task=mean_estimation", "algo=dpsgd", "topology=complete", "num_workers=10", f"results_dir={folder}"
    )
    own = School(**settings)
    return FishSchool(config, seeds=[1, 2], sharing=sharing, school=own, rounds=rounds, pictures=[0, 10])


# What a fish sees


def test_the_gradient_is_that_of_half_the_squared_residual() -> None:
    x, w, h = places(), places() + 1, 1e-6
    seen = look(School(), x, PREDATOR, seed=1, k=3)

    def f(w: np.ndarray) -> np.ndarray:
        return (seen.d - (seen.u * (x - w)).sum(1)) ** 2 / 2

    slopes = [(f(w + h * e) - f(w - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(seen.gradient(x, w), np.stack(slopes, axis=1), rtol=1e-6, atol=1e-6)


# What the school knows


def test_a_school_is_the_same_again_and_goes_on_after_the_seeds_that_are_done(tmp_path: Path) -> None:
    whole, part = school_job(tmp_path / "whole"), school_job(tmp_path / "part")
    whole.carry_out()
    text = (whole.directory / "lines.jsonl").read_text()
    part.directory.mkdir(parents=True)
    (part.directory / "config.yaml").write_text(f"# run {part.id}\n")
    (part.directory / "lines.jsonl").write_text(text.splitlines()[0] + '\n{"seed": 2, "num')
    assert part.carry_out() is Status.done
    assert (part.directory / "lines.jsonl").read_text() == text
    assert len({whole.id, school_job(tmp_path, "nobody").id, school_job(tmp_path, radius=6.0).id}) == 3


# The study and its pictures


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rows=[{method: a, sharing: friends}]", "sharing=friends does not exist"),
        ("rows=[{behaviour: sleep}]", "behaviour=sleep does not exist"),
        ("rows=[{behaviour: escape, school: {radios: 1}}]", "no key 'radios'"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        catalogue.load("bluefog_fish_school", "smoke", overrides=[change])


# -- collectives ----------------------------------------------------------------------------------------------------

RING = {"method": "Ring", "scheme": "ring"}
MAP = {"kind": "collective_map", "num_parameters": 1000, "num_workers": [4, 8], "keep": [0.1, 0.01]}
LINKS = {"latency_ms": [1.0, 2.0, 3.0], "gbps": [1.0, 10.0]}


@pytest.mark.parametrize("pair", CROSSOVERS.values())
def test_at_a_crossover_both_cost_the_same_and_below_it_the_first_less(pair: tuple[str, str]) -> None:
    n, parameters, keep, beta = 16, 1e6, 0.01, 1e-9
    there = crossover(*pair, n) * 4 * parameters * keep * beta
    for factor, sign in ((0.9, -1), (1.0, 0), (1.1, 1)):
        first, second = (seconds(scheme, n, parameters, keep, factor * there, beta) for scheme in pair)
        difference = (first - second) / second
        assert abs(difference) < 1e-12 if sign == 0 else difference * sign > 1e-3


@pytest.mark.parametrize(("values", "said"), [
    (MAP | LINKS | {"rows": [{"method": "Ring", "scheme": "rings"}]}, "scheme=rings is unknown"),
    (MAP | LINKS | {"rows": [RING], "keep": [2]}, "keep=2 is out of range; use a number > 0 and <= 1"),
    (MAP | LINKS | {"rows": [RING], "gbps": []}, "gbps=.. is empty"),
    ({"kind": "collective_facts", "rows": [RING], "num_workers": [2]}, "num_workers=2 is out of range; .* >= 4"),
    *(({"kind": "groups", "sizes": [size]}, "groups|size") for size in ([8, 3], [12, 4], [4, 8], [4])),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_from("mine", values)


# -- groups ---------------------------------------------------------------------------------------------------------


def groups_of(values: dict, folder: Path) -> list[Cell]:
    cells = study_from("mine", values).cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
    return cells


def test_following_a_contribution_gives_the_formula_for_how_far_it_comes(tmp_path: Path) -> None:
    sizes = [[2, 2], [8, 4], [16, 8], [64, 8], [64, 4]]
    for (n, size), cell in zip(
        sizes, groups_of({"kind": "groups", "base": ["task=quadratics"], "sizes": sizes}, tmp_path), strict=True
    ):
        found = {value.metric: value.value for value in cell.values()}
        reach = math.ceil(math.log2(n) / math.log2(size))
        assert found == {REACH: reach, PERIOD: group_period(n, size), HOPS: n.bit_length() - 1}
        groups = [line for line in cell.curves() if line["metric"] == "group"]
        for version in range(group_period(n, size)):
            members = grouping(version, n, size).tolist()
            now = [line for line in groups if line["step"] == version]
            assert [members[int(line["value"])].count(int(line["worker"])) for line in now] == [1] * n


@cache
def load(figure: str, scale: str) -> Study:
    return catalogue.load(f"relaysum_{figure}", scale)


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
    assert isinstance(cell, MeasuredCell) and isinstance(cell.job, Courses)
    assert [member.lr for member in cell.job.simulations[0].members] == [0.078125]
    assert cell.values()[0].lr == 2 * 0.078125


def test_figure_3_tells_the_trees_apart_and_the_vectors_that_are_sent(tmp_path: Path) -> None:
    labels = [cell.labels for cell in load("fig3", "smoke").cells([f"results_dir={tmp_path}"])]
    assert [(one["root"], one["vectors_per_step"]) for one in labels] == [("", 178), ("", 62)]


def test_figure_10_has_the_published_plateau_of_relaysgd_grad(tmp_path: Path) -> None:
    """The authors' notebook prints 7.337735926317589e-11, 2.0265183017786903e-08 and 8.653164309535555e-07."""
    rows = [row for row in load("fig10", "paper").rows if row.method == "RelaySGD/Grad"]  # type: ignore[attr-defined]
    found = values_of("fig10", tmp_path, rows=rows)
    ends = {key[2]: value.value for key, value in found.items()}
    assert ends[0] == pytest.approx(7.337735926317589e-11, rel=1e-3)
    assert ends[0.01] == pytest.approx(2.0265183017786903e-08, rel=1e-6)
    assert ends[1] == pytest.approx(8.653164309535555e-07, rel=1e-6)


@pytest.mark.parametrize(
    ("topology", "n", "ratio"), [(BinaryTree, 8, 58.5), (Chain, 8, 91.2), (Star, 8, 36.5), (BinaryTree, 16, 114.7)]
)
def test_the_effective_spectral_gap_is_the_published_one(topology: type, n: int, ratio: float) -> None:
    m, p = effective_spectral_gap(relay_matrix(topology().schedule(n)))
    assert m / p == pytest.approx(ratio, abs=0.05)


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


# -- the race ----------------------------------------------------------------------------------------------------------

DURATION_S = 1.0  # nobody is kept from his turns for so long, whatever else the machine does


def race(folder: Path, slowdown: float = 5.0, duration_s: float = 0.25) -> Straggler:
    words = ["task=mean_estimation", "algo=dpsgd", "topology=chain", "num_workers=3", "processes=3", "device=cpu"]
    config = compose([*words, f"results_dir={folder}", "progress=false"])
    labels: Labels = {"topology": "chain"}
    return Straggler(config, labels, [slowdown], [5, 6], 0.001, duration_s, 1e-1, 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Straggler:
    job = race(tmp_path_factory.mktemp("race"), duration_s=DURATION_S)
    assert job.carry_out() is Status.done
    return job


@pytest.mark.slow
def test_asynchronous_push_sum_loses_nothing(run: Straggler) -> None:
    lines = [line for line in run.found() if line["asynchronous"]]
    assert [line["seed"] for line in lines] == [5, 6]
    for line in lines:
        assert line["p_error"] < 1e-12 and line["mass_error"] < 1e-12
        assert len(line["workers"]) == 3
        for one in line["workers"]:
            assert math.isfinite(one["end"]) and 0 < one["smallest_p"] <= 1
            assert len(one["seconds"]) == len(one["errors"]) > 0
            assert one["seconds"] == sorted(one["seconds"])
        assert len(line["workers"][-1]["errors"]) <= DURATION_S / 0.005 + 1, "the straggler works 5 ms in each turn"


@pytest.mark.slow
def test_synchronous_averaging_takes_equally_many_turns_everywhere(run: Straggler) -> None:
    lines = [line for line in run.found() if not line["asynchronous"]]
    assert [line["seed"] for line in lines] == [5, 6]
    for line in lines:
        assert {len(one["errors"]) for one in line["workers"]} == {math.ceil(DURATION_S / 0.005)}
        assert line["mass_error"] < 1e-12
        assert max(one["end"] for one in line["workers"]) < 1e-3


@pytest.mark.slow
def test_a_race_has_the_machine_for_itself_and_goes_on_after_the_heats_that_are_done(tmp_path: Path) -> None:
    job = race(tmp_path)
    assert job.demand == Demand(3, "cpu", alone=True)
    job.directory.mkdir(parents=True)
    (job.directory / "config.yaml").write_text(f"# run {job.id}\n")
    line = '{"seed": 5, "slowdown": 5.0, "asynchronous": true, "workers": [], "p_error": 0.5, "mass_error": 0.5}\n'
    (job.directory / "lines.jsonl").write_text(line + '{"seed": 5, "slow')
    assert job.carry_out() is Status.done
    found = [(line["seed"], line["asynchronous"], line["p_error"] == 0.5) for line in job.found()]
    assert found == [(5, True, True), (5, False, False), (6, True, False), (6, False, False)]


# -- simulated race -------------------------------------------------------------------------------------------------


def cells(folder: Path, *overrides: str, cluster: str = "free", **settings: Any) -> list[Cell]:
    values = {
        "kind": "simulated_straggler",
        "base": ["task=mean_estimation", "algo=dpsgd", "num_workers=4", f"cluster={cluster}"],
        "rows": [{"topology": "chain", "base": ["topology=chain"]}],
        "slowdowns": [1, 8],
        "seeds": [1],
        "pause_s": 0.5,
        "duration_s": 40,
        "dimension": 7,
    }
    return study_from("mine", {**values, **settings}).cells([f"results_dir={folder}", "progress=false", *overrides])


def test_turns_follow_by_hand_and_sums_are_kept(tmp_path: Path) -> None:
    found = cells(tmp_path)
    (job,) = {job.id: job for cell in found for job in cell.jobs()}.values()
    assert job.carry_out() is Status.done
    values = {
        (v.labels["method"], v.labels["slowdown"], v.labels["who"], v.metric): v.value
        for c in found
        for v in c.values()
    }
    push, rounds = "asynchronous push-sum", "synchronous averaging"
    for slowdown, turns in ((1, 80), (8, 10)):
        assert values[rounds, slowdown, "fast workers", TURNS] == turns
        assert values[push, slowdown, "straggler", TURNS] == turns
        assert values[push, slowdown, "fast workers", TURNS] == 80
        assert values[push, slowdown, "", P_ERROR] < 1e-13
        assert values[push, slowdown, "", MASS_ERROR] < 1e-13 and values[rounds, slowdown, "", MASS_ERROR] < 1e-13
    assert values[push, 8, "fast workers", END] < values[rounds, 8, "fast workers", END]
    assert all("simulated_s" in line and "step" not in line for cell in found for line in cell.curves())


# -- the map of times over links and slowdowns -------------------------------------------------------------------------


def test_the_time_of_a_step_at_each_place_follows_by_hand(tmp_path: Path) -> None:
    slow = ["stragglers.mode=fixed", "stragglers.workers=[0]", "stragglers.slowdown=2", "num_parameters=1000"]
    base = ["task=quadratics", "num_workers=4", "cluster=free", *(f"cluster.{word}" for word in slow)]
    alone = {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}
    rows = [{"method": "All-reduce", "base": ["algo=allreduce"]}, alone]
    settings = {"slowdowns": [2, 5], "gbps": [1.0e-6, 1], "steps": 6}
    study = study_from("mine", {"kind": "timeline_map", "base": base, "rows": rows, **settings})
    cells = study.cells([f"results_dir={tmp_path}", "progress=false"])
    assert {job.carry_out() for cell in cells for job in cell.jobs()} == {Status.done}
    values = [value for cell in cells for value in cell.values()]
    found = {(v.labels["method"], v.labels["slowdown"], v.labels["gbps"]): v.value for v in values}
    assert len(values) == len(found) == 8 and {(v.metric, v.meaning.unit) for v in values} == {(STEP, "s")}
    for slowdown in (2, 5):
        for gbps in (1.0e-6, 1):  # a ring: 2 (n - 1) / n rows of 4,000 bytes
            assert found["All-reduce", slowdown, gbps] == pytest.approx(slowdown + 1.5 * 4000 * 8e-9 / gbps)
    assert found["Alone", 5, 1] > found["Alone", 2, 1]


def test_a_study_of_rates_has_the_chosen_and_the_effective_rate(tmp_path: Path) -> None:
    row = {"method": "RelaySGD", "topology": "chain", "base": ["algo=relaysgd", "topology=chain"], "lr": 0.2}
    base = ["model=mlp", "num_workers=4", "steps=4"]
    values = {"rows": [row], "base": base, "tune": {"rule": "powers_of_two"}}
    (rates,) = cells_of(tmp_path, kind="chosen_rates", **values)
    (accuracies,) = cells_of(tmp_path, kind="comparison", **values)
    assert rates.values() == []
    finish_all(accuracies, lambda lr, seed: 1 - lr if lr >= 0.1 else 0.0)
    found = [(value.metric, value.value, value.seed) for value in rates.values()]
    assert found == [("learning rate", 0.1, 1), ("effective learning rate", pytest.approx(0.1 / 1.5), 1)]
