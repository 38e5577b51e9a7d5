"""Average consensus: over rounds equal to powers of W, and in races with a straggler, where nothing is lost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.measurements.consensus import Consensus, starts
from decentral.measurements.straggler import END, MASS_ERROR, P_ERROR, TURNS, Straggler
from decentral.measurements.values import Labels
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Cell

# -- consensus ------------------------------------------------------------------------------------------------------


def consensus(config: Config, seed: int, rounds: int, dimension: int) -> Consensus:
    return Consensus(config, seeds=[seed], rounds=rounds, at=[rounds], dimension=dimension)


def config_of(folder: Path, *overrides: str) -> Config:
    return compose(["task=mean_estimation", "algo=dpsgd", *overrides, f"results_dir={folder}", "progress=false"])


# Rounds


@pytest.mark.parametrize("topology", ["ring", "star", "exponential", "one_peer_exponential"])
def test_the_error_after_t_rounds_is_that_of_the_product_of_the_matrices(topology: str, tmp_path: Path) -> None:
    n, d, rounds = 6, 3, 12
    config = config_of(tmp_path, f"topology={topology}", f"num_workers={n}")
    job = consensus(config, 4, rounds, d)
    assert job.carry_out() is Status.done
    ((line,)) = job.found()
    x, schedule = starts(n, d, 4).numpy(), config.rounds()
    mean = x.mean(0)
    for t, found in enumerate(line["errors"]):
        expected = np.linalg.norm(x - mean) / np.linalg.norm(np.tile(mean, (n, 1)))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)
        x = schedule.matrices(t)[0] @ x


def test_one_peer_exponential_is_exact_after_log2_n_rounds_and_push_sum_unbiased_on_a_grid(tmp_path: Path) -> None:
    exact = consensus(config_of(tmp_path, "topology=one_peer_exponential", "num_workers=8"), 1, 3, 5)
    grid = "topology=one_peer", "topology.graph=grid", "num_workers=6"
    pushed = consensus(config_of(tmp_path, *grid, "algo=sgp"), 1, 300, 5)
    for job in (exact, pushed):
        job.carry_out()
        errors = job.found()[0]["errors"]
        assert errors[-1] < 1e-12 and min(errors[:3]) > 0.1


# The race


DURATION_S = 1.0  # nobody is kept from his turns for so long, whatever else the machine does


def race(folder: Path, slowdown: float = 5.0, duration_s: float = 0.25) -> Straggler:
    config = config_of(folder, "topology=chain", "num_workers=3", "processes=3", "device=cpu")
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
    (job.directory / "races.jsonl").write_text(line + '{"seed": 5, "slow')
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
    assert {tuple(point.at) for cell in found for curve in cell.curves() for point in curve.points} == {
        ("simulated_s",)
    }
