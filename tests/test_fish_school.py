"""The school of fish: what fish see, how they swim, what they know, and the pictures of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from decentral.errors import ConfigError
from decentral.measurements.fish_school import (
    CURVES,
    ERROR,
    NEAREST,
    FishSchool,
    School,
    checked,
    look,
    measure,
    neighbours,
    swim,
)
from decentral.report.figures.strip import Strip
from decentral.report.make import make
from decentral.report.results import Results, read
from decentral.store import Status
from decentral.study import catalogue
from decentral.topology.graph import Graph
from decentral.topology.weights import Weights, mixing_matrix
from handmade import write

CLEAR = School(distance_noise=0.0, angle_noise=0.0)
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


def test_without_noise_a_fish_sees_where_the_predator_is() -> None:
    x = places()
    seen = look(CLEAR, x, PREDATOR, seed=1, k=3)
    np.testing.assert_allclose(seen.d, np.linalg.norm(x - PREDATOR, axis=1), rtol=1e-12)
    np.testing.assert_allclose(seen.guess(x), np.tile(PREDATOR, (len(x), 1)), atol=1e-12)
    np.testing.assert_allclose(seen.gradient(x, np.tile(PREDATOR, (len(x), 1))), 0, atol=1e-12)


def test_the_gradient_is_that_of_half_the_squared_residual() -> None:
    x, w, h = places(), places() + 1, 1e-6
    seen = look(School(), x, PREDATOR, seed=1, k=3)

    def f(w: np.ndarray) -> np.ndarray:
        return (seen.d - (seen.u * (x - w)).sum(1)) ** 2 / 2

    slopes = [(f(w + h * e) - f(w - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(seen.gradient(x, w), np.stack(slopes, axis=1), rtol=1e-6, atol=1e-6)


def test_noise_is_addressed_by_seed_round_and_fish() -> None:
    x = places()
    one, again = look(School(), x, PREDATOR, 1, 3), look(School(), x[:4], PREDATOR, 1, 3)
    np.testing.assert_array_equal(one.d[:4], again.d)
    assert (look(School(), x, PREDATOR, 1, 4).d != one.d).all()
    assert (look(School(), x, PREDATOR, 2, 3).d != one.d).all()


# Who is near whom


def test_neighbours_are_those_within_the_radius() -> None:
    x = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [90.0, 0.0]])
    near = neighbours(x, 4.0)
    assert near.tolist() == [
        [False, True, False, False],
        [True, False, True, False],
        [False, True, False, False],
        [False] * 4,
    ]
    W = checked(mixing_matrix(Graph.of(near), Weights.metropolis, None, "near").dense(), near)
    np.testing.assert_allclose(W, np.array([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 3]]) / 3)


@pytest.mark.parametrize(
    "W",
    [
        [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 0.9]],
        [[0.5, 0.5, 0], [0.4, 0.6, 0], [0, 0, 1]],
        [[1.5, -0.5, 0], [-0.5, 1.5, 0], [0, 0, 1]],
        [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]],
    ],
    ids=["rows", "symmetry", "sign", "too far"],
)
def test_weights_that_do_not_fit_the_graph_are_refused(W: list) -> None:
    near = np.array([[False, True, False], [True, False, False], [False, False, False]])
    with pytest.raises(ArithmeticError, match="do not fit"):
        checked(np.array(W), near)


# How a fish swims


def test_neighbours_that_are_too_near_drift_apart_and_nobody_is_faster_than_the_fastest() -> None:
    x = np.array([[0.0, 0.0], [1.0, 0.0], [50.0, 0.0]])
    near, still = neighbours(x, 5.0), np.zeros((3, 2))
    v = swim(School(spacing=5.0), x, near, still, still)
    assert v[0, 0] < 0 < v[1, 0] and (v[2] == 0).all()
    fast = swim(School(speed=0.8), x, near, 100 * np.ones((3, 2)), still)
    np.testing.assert_allclose(np.linalg.norm(fast, axis=1), 0.8)


# What the school knows


def test_a_round_is_measured_by_error_distance_gap_and_groups() -> None:
    x = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    found = measure(x, x, np.zeros(2), neighbours(x, 2.5))
    assert found == pytest.approx({"error": math.sqrt(14 / 3), "nearest": 1.0, "gap": 180.0, "groups": 2.0})


def test_sharing_with_neighbours_helps_and_without_noise_everybody_knows(tmp_path: Path) -> None:
    late = {}
    for sharing in ("neighbours", "nobody", "everybody"):
        job = school_job(tmp_path, sharing, width=4.0, predator_speed=0.0)
        assert job.carry_out() is Status.done
        late[sharing] = np.mean([line["numbers"]["error"][-15:] for line in job.found()])
    assert late["everybody"] < 1.1 * late["neighbours"] and late["neighbours"] < late["nobody"] / 1.5
    clear = school_job(tmp_path, "nobody", distance_noise=0.0, angle_noise=0.0, predator_speed=0.0)
    clear.carry_out()
    assert max(clear.found()[0]["numbers"]["error"]) < 1e-9


def test_a_school_is_the_same_again_and_goes_on_after_the_seeds_that_are_done(tmp_path: Path) -> None:
    whole, part = school_job(tmp_path / "whole"), school_job(tmp_path / "part")
    whole.carry_out()
    text = (whole.directory / "schools.jsonl").read_text()
    part.directory.mkdir(parents=True)
    (part.directory / "config.yaml").write_text(f"# run {part.id}\n")
    (part.directory / "schools.jsonl").write_text(text.splitlines()[0] + '\n{"seed": 2, "num')
    assert part.carry_out() is Status.done
    assert (part.directory / "schools.jsonl").read_text() == text
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


def test_the_study_has_numbers_for_every_seed_and_places_for_the_first(tmp_path: Path) -> None:
    study = catalogue.load("bluefog_fish_school", "smoke", overrides=["seeds=[3,4]"])
    cell = study.cells([f"results_dir={tmp_path}"])[0]
    (job,) = cell.jobs()
    job.carry_out()
    values = cell.values()
    assert [(one.metric, one.seed) for one in values] == [(m, seed) for seed in (3, 4) for m in (ERROR, NEAREST)]
    curves = cell.curves()
    assert {(one.metric, one.seed) for one in curves if not one.worker} == {
        (m, s) for m in CURVES.values() for s in (3, 4)
    }
    placed = [one for one in curves if one.worker]
    assert {one.seed for one in placed} == {3} and {one.worker for one in placed} == {*map(str, range(12)), "predator"}
    assert {tuple(point.at["step"] for point in one.points) for one in placed} == {(0, 10)}


@pytest.fixture
def drawn(tmp_path: Path) -> Results:
    places = {"0": (0.0, 0.0), "1": (1.0, 0.0), "2": (9.0, 0.0), "shark": (5.0, 5.0)}
    curves: list[list] = [["a", "error", "", 1, 0, 0, 0.5]]
    for seed, step in ((1, 0), (1, 7), (2, 0)):
        for who, (x, y) in places.items():
            numbers = {
                "place x": x + step,
                "place y": y,
                "heading": math.pi / 2,
                "estimate x": 5.0,
                "estimate y": y + 2 * step,
            }
            known = list(numbers.items())[: 2 if who == "shark" else None]
            curves += [["a", metric, who, seed, step, step, number] for metric, number in known]
    figure = {"name": "fish", "kind": "strip", "panels": "behaviour", "leader": "shark", "radius": 2}
    figure |= {"xlim": [-1, 20], "ylim": [-1, 7], "xlabel": "round", "unit": "m"}
    values = [{"behaviour": "a", "metric": "error", "value": 1.0, "seed": 1, "chosen": True, "status": "done"}]
    directory = tmp_path / "bluefog" / "mine" / "small"
    return read(write(directory, values, {"figures": [figure]}, curves, labels=["behaviour"]))


def test_a_strip_has_a_picture_for_each_step_of_the_first_seed(drawn: Results) -> None:
    (figure,) = drawn.spec.figures
    lines = {line.key: line for line in figure.data(drawn)}
    assert {step for _, step in lines} == {"0", "7"}
    assert (lines["place", "7"].x, lines["place", "7"].y) == ([7, 8, 16], [0, 0, 0])
    assert (lines["leader", "0"].x, lines["leader", "0"].y) == ([5], [5])
    assert lines["heading", "0"].y == pytest.approx([1, 1, 1])
    assert (lines["estimate", "0"].x, lines["estimate", "7"].y) == ([5, 5, 5], [14, 14, 14])


def test_a_strip_is_drawn_with_links_between_those_that_are_near(drawn: Results) -> None:
    made = make(drawn.directory)
    assert {path.name for path in made.figures} == {"fish.png"} and not made.remarks
    (figure,) = drawn.spec.figures
    axes = figure.draw(drawn, figure.data(drawn)).axes
    assert [ax.get_title(loc="left") for ax in axes] == ["round 0", "round 7 (3 estimates outside)"]
    assert axes[0].get_ylabel() == "a\nm" and [ax.get_xlabel() for ax in axes] == ["m", "m"]
    links = axes[0].lines[0].get_xydata()
    assert np.isfinite(links).all(1).sum() == 2, "only the first two are within the radius"
    first = (drawn.directory / "fish.svg").read_bytes()
    make(drawn.directory)
    assert (drawn.directory / "fish.svg").read_bytes() == first


def test_a_strip_needs_rows_limits_and_four_words() -> None:
    with pytest.raises(ConfigError, match="needs `panels`"):
        Strip(file="fish")
    with pytest.raises(ConfigError, match="needs four words"):
        Strip(file="fish", panels="behaviour", xlim=[0, 1], ylim=[0, 1], words=["fish"])
    with pytest.raises(ConfigError, match="needs `xlim` and `ylim`"):
        Strip(file="fish", panels="behaviour", xlim=[0, 1])
    with pytest.raises(ConfigError, match="needs `xlim` and `ylim`"):
        Strip(file="fish", panels="behaviour", xlim=[0, None], ylim=[0, 1])
