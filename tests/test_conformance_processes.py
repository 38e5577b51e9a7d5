"""A run is the same whatever the number of processes: its iterates, its metrics, and the bytes it counts."""

from __future__ import annotations

import numpy as np
import pytest

from decentral.conformance import properties
from decentral.registry import components
from table import ALGORITHMS, OPTIMIZERS, TASKS, VARIANTS, Net

SURVIVORS = [name for name, cls in components("algorithms").items() if cls.survives_loss]
PROBLEM = {"quadratics": ["task=quadratics", "task.dimension=7", "task.noise=0.1", "task.initial_distance=1"],
           "mean_estimation": ["task=mean_estimation", "task.dimension=7"]}  # fmt: skip


def agree(start, overrides: list[str], n: int, rtol: float = 1e-12) -> None:
    overrides = [*overrides, "trace=true", "evaluation.every_epochs=6"]
    one = start(*overrides, directory="one")
    assert one.status == "done"
    for processes in (2, n):
        many = start(*overrides, processes=processes, directory=f"with {processes}")
        scale = np.abs(one.iterates).max()
        properties.same(one.walk, many.walk, processes, rtol)
        assert [without_value(row) for row in many.rows] == [without_value(row) for row in one.rows]
        ours, theirs = ([row["value"] for row in result.rows] for result in (many, one))
        np.testing.assert_allclose(ours, theirs, rtol=100 * rtol, atol=rtol * scale)


def without_value(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "value"}


def settings(name: str, net: Net, folder) -> list[str]:
    case = ALGORITHMS[name]
    return [f"algo={name}", *PROBLEM[case.task], *net.overrides(folder), *case.overrides, "steps=12"]


@pytest.mark.parametrize(
    ("name", "net"),
    [pytest.param(name, net, id=f"{name}-{net.topology}") for name in ALGORITHMS for net in ALGORITHMS[name].nets],
)
def test_an_algorithm_gives_the_same_iterates_with_1_2_and_n_processes(start, tmp_path, name, net):
    agree(start, [*settings(name, net, tmp_path), "optim=momentum"], net.n)


@pytest.mark.parametrize("name", SURVIVORS)
def test_the_same_messages_are_lost_whatever_the_number_of_processes(start, tmp_path, name):
    net = ALGORITHMS[name].nets[0]
    agree(start, [*settings(name, net, tmp_path), "network.drop_probability=0.3"], net.n)


@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in VARIANTS for variant in VARIANTS[name]])
def test_a_variant_gives_the_same_iterates_with_1_2_and_n_processes(start, tmp_path, name, variant):
    net = ALGORITHMS[name].nets[0]
    agree(start, [*settings(name, net, tmp_path), variant], net.n)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_gives_the_same_iterates_with_1_2_and_n_processes(start, name):
    agree(start, [*PROBLEM["quadratics"], *OPTIMIZERS[name], "num_workers=5", "steps=12"], 5)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_gives_the_same_iterates_with_1_2_and_n_processes(start, name):
    exact = ["precision=fp64"] if "model" in components("tasks")[name].uses else []
    agree(start, [f"task={name}", *TASKS[name], *exact, "algo=dpsgd", "topology=ring", "num_workers=5", "steps=12"], 5)


def test_both_ways_to_split_a_model_over_two_trees_are_the_same_with_several_processes(start):
    for split in ("interleaved", "contiguous"):
        overrides = [*PROBLEM["quadratics"], "topology=dbt", f"topology.split={split}", "num_workers=5", "steps=12"]
        results = [start(*overrides, "trace=true", processes=p, directory=f"{split}{p}").iterates for p in (1, 5)]
        np.testing.assert_allclose(*results, rtol=0, atol=1e-12)
