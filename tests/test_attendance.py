"""Workers that leave and come back: what rests, what is kept, what is exact (`availability=`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.availability.availability import Absent, Weights
from decentral.config.composition import compose
from decentral.registry import components
from decentral.topology.present import PresentRule, restricted

PROBLEM = (
    "task=quadratics",
    "task.dimension=4",
    "task.zeta2=10",
    "task.initial_distance=10",
    "task.noise=0",
    "schedule=constant",
    "save=none",
)
COMING_AND_GOING = ("availability=persistent", "availability.probability=0.1", "availability.residence_steps=5")


def iterates(start: Any, *words: str, processes: int = 1, directory: str = "run") -> np.ndarray:
    """[steps + 1, n, P]."""
    found = start(*PROBLEM, *words, "trace=true", processes=processes, directory=directory)
    with np.load(found.directory / "trace.npz") as trace:
        return trace["iterates"]


def attendance(folder: Path, steps: int, n: int) -> np.ndarray:
    """[steps, n], bool, from the file that a run writes."""
    found = np.zeros((steps, n), dtype=bool)
    for line in (folder / "availability.csv").read_text().splitlines()[1:]:
        worker, begins, ends = line.split(",")
        found[int(begins) : int(ends) if ends else steps, int(worker)] = True
    return found


@pytest.mark.parametrize("weights", [Weights.auto, Weights.metropolis, Weights.keep])
@pytest.mark.parametrize("topology", ["ring", "symmetric_exponential", "grid", "base_graph"])
def test_what_is_left_of_a_symmetric_matrix_keeps_the_mean(topology: str, weights: Weights) -> None:
    rounds = compose([f"topology={topology}", "num_workers=12", "algo=dpsgd"]).rounds()
    random = np.random.default_rng(0)
    for round in range(rounds.period):
        present = random.random(12) < 0.6
        W = restricted(rounds.mixing(round)[0], present, weights).dense()
        np.testing.assert_allclose(W, W.T, atol=1e-15)
        np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
        np.testing.assert_array_equal(W[~present], np.eye(12)[~present])
        assert (W >= 0).all()


def test_nobody_gives_away_all_its_mass_in_what_is_left_of_a_directed_graph() -> None:
    rounds = compose(["topology=exponential", "num_workers=8", "algo=sgp"]).rounds()
    random, w = np.random.default_rng(1), np.ones(8)
    for _ in range(500):
        present = random.random(8) < 0.6
        W = restricted(rounds.mixing(0)[0], present, Weights.auto).dense()
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-12)
        w = W @ w
    assert w.sum() == pytest.approx(8) and w.min() > 0.05


def test_a_rerouted_topology_is_that_of_the_workers_that_are_present() -> None:
    config = compose(["topology=ring", "num_workers=7", "algo=dpsgd"])
    rule = PresentRule(Absent.rerouted, Weights.auto, lambda m: config.communication.schedule(config.topology, m))
    present = np.array([True, False, True, True, False, True, False])
    (W,) = rule.mixing(config.rounds(), present, 0)
    assert [(j, round(weight, 12)) for j, weight in W.row(0)] == [
        (0, round(1 / 3, 12)),
        (2, round(1 / 3, 12)),
        (5, round(1 / 3, 12)),
    ]
    assert W.row(1) == [(1, 1.0)]


METHODS = sorted(
    name
    for name, cls in components("algorithms").items()
    if getattr(cls, "survives_absence", False) and not cls.needs_samples
)
TOPOLOGY = {
    name: cls.usual_topology or ("dbt" if "relay" in name else "ring") for name, cls in components("algorithms").items()
}
OF_METHODS = {
    "choco": ["compress=topk", "compress.keep=0.5"],
    "beer": ["compress=topk", "compress.keep=0.5"],
    "motef": ["compress=topk", "compress.keep=0.5"],
    "diloco": ["algo.period_steps=3"],
    "sparta_diloco": ["algo.period_steps=3"],
    "gasloc": ["algo.period_steps=3"],
    "noloco": ["algo.period_steps=3"],
    "local_sgd": ["algo.period_steps=3"],
}


@pytest.mark.parametrize("name", METHODS)
def test_rows_of_the_absent_rest_and_all_is_the_same_in_several_processes(
    start: Any, tmp_path: Path, name: str
) -> None:
    words = [
        f"algo={name}",
        f"topology={TOPOLOGY[name]}",
        "num_workers=6",
        "steps=24",
        "lr=0.01",
        *COMING_AND_GOING,
        *OF_METHODS.get(name, []),
    ]
    alone = iterates(start, *words, directory="alone")
    assert np.isfinite(alone).all()
    period = int(next((word.split("=")[1] for word in words if "period_steps" in word), "1"))
    present = attendance(tmp_path / "alone", 24, 6)
    for t in range(24):
        first = t - t % period
        away = ~present[first : first + period].all(axis=0)
        np.testing.assert_array_equal(alone[t + 1][away], alone[t][away])
    assert not present.all()
    several = iterates(start, *words, processes=3, directory="several")
    np.testing.assert_allclose(several, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_with_everybody_present_nothing_is_different(start: Any, tmp_path: Path, name: str) -> None:
    words = [
        f"algo={name}",
        f"topology={TOPOLOGY[name]}",
        "num_workers=6",
        "steps=9",
        "lr=0.01",
        *OF_METHODS.get(name, []),
    ]
    never = ["availability=independent", "availability.probability=0.5", "availability.least=6"]
    if name.startswith("relaysgd"):
        words.append("algo.fill=previous") if name == "relaysgd" else None
    np.testing.assert_array_equal(
        iterates(start, *words, directory="a"), iterates(start, *words, *never, directory="b")
    )


EXACT = ["gradient_tracking", "momentum_tracking", "exact_diffusion", "extra", "push_diging"]


@pytest.mark.parametrize("name", EXACT)
def test_who_keeps_a_sum_is_exact_while_workers_come_and_go(start: Any, tmp_path: Path, name: str) -> None:
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", "num_workers=8", "steps=4000", "lr=0.05", *COMING_AND_GOING]
    words += ["algo.beta=0.5"] if name == "momentum_tracking" else []
    assert final(start(*PROBLEM, *words).directory, "distance_to_optimum", "worst") < 1e-8


def test_who_keeps_none_is_not(start: Any, tmp_path: Path) -> None:
    words = ["algo=dpsgd", "topology=ring", "num_workers=8", "steps=4000", "lr=0.05", *COMING_AND_GOING]
    found = start(*PROBLEM, *words).directory
    assert final(found, "distance_to_optimum", "mean") > 1e-2
    assert final(found, "distance_to_optimum", "present mean") > 1e-2


def final(folder: Path, metric: str, worker: str) -> float:
    """The last value."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["value"] for row in rows if row["metric"] == metric and row["worker"] == worker][-1]
