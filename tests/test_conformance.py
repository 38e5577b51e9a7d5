"""Every algorithm gives the same run whatever the number of processes: iterates, metrics and bytes. It ends where it
should: at the optimum or not, and as plain SGD where all hear of all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from configure import configure
from decentral.config.schema import GROUPS
from decentral.conformance import properties
from decentral.conformance.check import Checks
from decentral.errors import ConfigError
from decentral.registry import components
from table import ALGORITHMS, ASYNCHRONOUS, OPTIMIZERS, TASKS, TOPOLOGIES, VARIANTS, Net, Optimum, in_rounds

TABLES = {"algorithms": ALGORITHMS | ASYNCHRONOUS, "topology": TOPOLOGIES, "tasks": TASKS, "optim": OPTIMIZERS}
OPTIMISERS = [name for name, case in ALGORITHMS.items() if case.optimises]
SGD_WHERE_ALL_MEET = [name for name, case in ALGORITHMS.items() if case.everyone is not None]
RULES = {
    "sgd": (["optim=sgd"], lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (["optim=momentum"], lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (
        ["optim=nesterov", "optim.weight_decay=0.01"],
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
}
ADAM = (["optim=adam"], lambda p: torch.optim.Adam(p, lr=0.1))
SMALL = ["task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.1"]
SURVIVORS = [name for name, cls in components("algorithms").items() if cls.survives_loss]
PROBLEM = {"quadratics": ["task=quadratics", "task.dimension=7", "task.noise=0.1", "task.initial_distance=1"],
           "mean_estimation": ["task=mean_estimation", "task.dimension=7"]}  # fmt: skip


@pytest.mark.parametrize("package", TABLES)
def test_every_component_is_listed(package):
    missing = set(components(package)) ^ set(TABLES[package])
    assert not missing, f"add a row for {missing} to tests/table.py (or remove it)"
    assert package in GROUPS.values()


def test_an_algorithm_is_in_the_table_of_what_it_has():
    assert ALGORITHMS.keys() == in_rounds().keys()
    assert ASYNCHRONOUS.keys() == {name for name, cls in components("algorithms").items() if hasattr(cls, "program")}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_what_an_algorithm_says_of_itself_is_what_the_table_has(name):
    settings = components("algorithms")[name].as_sgd
    assert (settings is None) == (ALGORITHMS[name].everyone is None)
    assert [f"algo.{key}={value:g}" for key, value in (settings or {}).items()] == list(ALGORITHMS[name].as_sgd)


# -- 1 = 2 = n processes -----------------------------------------------------------------------------------------------


def agree(start, overrides: list[str], *several: int, rtol: float = 1e-12) -> None:
    overrides = [*overrides, "trace=true", "evaluation.every_epochs=6"]
    one = start(*overrides, directory="one")
    assert one.status == "done"
    for processes in several:
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
    [
        pytest.param(name, net, id=f"{name}-{net.topology}", marks=[pytest.mark.slow] if number else [])
        for name in ALGORITHMS
        for number, net in enumerate(ALGORITHMS[name].nets)
    ],
)
def test_an_algorithm_gives_the_same_iterates_with_1_2_and_n_processes(start, tmp_path, name, net):
    agree(start, [*settings(name, net, tmp_path), "optim=momentum"], net.n)


@pytest.mark.slow
@pytest.mark.parametrize("name", SURVIVORS)
def test_the_same_messages_are_lost_whatever_the_number_of_processes(start, tmp_path, name):
    net = ALGORITHMS[name].nets[0]
    agree(start, [*settings(name, net, tmp_path), "network.drop_probability=0.3"], 2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in VARIANTS for variant in VARIANTS[name]])
def test_a_variant_gives_the_same_iterates_with_1_2_and_n_processes(start, tmp_path, name, variant):
    net = ALGORITHMS[name].nets[0]
    agree(start, [*settings(name, net, tmp_path), variant], 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_gives_the_same_iterates_with_1_2_and_n_processes(start, name):
    agree(start, [*PROBLEM["quadratics"], *OPTIMIZERS[name], "num_workers=5", "steps=12"], 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_gives_the_same_iterates_with_1_2_and_n_processes(start, name):
    exact = ["precision=fp64"] if "model" in components("tasks")[name].uses else []
    agree(
        start, [f"task={name}", *TASKS[name], *exact, "algo=dpsgd", "topology=ring", "num_workers=5", "steps=12"], 2, 5
    )


# -- the optimum -------------------------------------------------------------------------------------------------------


def settle(start, tmp_path, name: str, *overrides: str, directory: str = "run"):
    case = ALGORITHMS[name]
    return start(
        f"algo={name}", *case.nets[0].overrides(tmp_path), *case.overrides, *SMALL,
        "steps=700", "evaluation.every_epochs=700", *overrides, directory=directory
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in OPTIMISERS if ALGORITHMS[name].optimum is Optimum.exact])
@pytest.mark.parametrize("optim", ["sgd", "momentum"])
def test_an_exact_method_reaches_the_optimum_of_different_functions(start, tmp_path, name, optim):
    result = settle(start, tmp_path, name, f"optim={optim}", "lr=0.02" if optim == "momentum" else "lr=0.1")
    assert abs(result.last("suboptimality", "worst")) < 1e-10
    assert result.last("distance_to_optimum", "worst") < 1e-6
    assert result.last("consensus_distance", "mean") < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMISERS if ALGORITHMS[name].optimum is Optimum.biased])
def test_a_biased_method_settles_next_to_it_nearer_with_a_smaller_rate(start, tmp_path, name):
    far = settle(start, tmp_path, name, "lr=0.1").last("suboptimality", "worst")
    near = settle(start, tmp_path, name, "lr=0.05", "steps=1400", directory="near").last("suboptimality", "worst")
    assert 1e-4 < near < far < 0.1


@pytest.mark.parametrize("name", [name for name in OPTIMISERS if ALGORITHMS[name].optimum is Optimum.biased])
def test_a_biased_method_is_exact_where_all_workers_want_the_same(start, tmp_path, name):
    assert settle(start, tmp_path, name, "task.zeta2=0").last("suboptimality", "worst") < 1e-10


@pytest.mark.parametrize(
    ("name", "net"),
    [pytest.param(name, net, id=f"{name}-{net.topology}") for name in OPTIMISERS for net in ALGORITHMS[name].nets],
)
def test_the_mean_is_kept_and_every_workers_updates_count_the_same(tmp_path, name, net):
    settings = [*net.overrides(tmp_path), *ALGORITHMS[name].overrides]
    properties.mean_kept(configure(f"algo={name}", *settings, "task=quadratics"))


# -- plain SGD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", ["nesterov", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("sgd", "momentum"))]
)
@pytest.mark.parametrize("name", SGD_WHERE_ALL_MEET)
def test_where_all_hear_of_all_everybody_does_sgd_on_the_mean_gradient(start, tmp_path, name, rule):
    case, (overrides, optimizer) = ALGORITHMS[name], RULES[rule]
    net = case.everyone
    result = start(f"algo={name}", *net.overrides(tmp_path), *case.as_sgd, *SMALL, *overrides, "steps=30", "trace=true")
    properties.as_sgd(result.walk, properties.plain_sgd(net.n, 1.0, 30, optimizer), net.topology)


@pytest.mark.parametrize("rule", ["nesterov", "adam"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_worker_alone_does_what_torch_does(start, name, rule):
    case, (overrides, optimizer) = ALGORITHMS[name], (RULES | {"adam": ADAM})[rule]
    topology = ["topology=chain", "num_workers=1", "task.zeta2=0"]
    result = start(f"algo={name}", *topology, *case.as_sgd, *case.alone, *SMALL, *overrides, "steps=30", "trace=true")
    properties.as_sgd(result.walk, properties.plain_sgd(1, 0.0, 30, optimizer), "alone")


@pytest.mark.parametrize("algo", ["wagma", "adpsgd", "eager_sgd"])
def test_a_method_without_rounds_is_not_checked_whatever_number_of_workers_suits_it(algo: str) -> None:
    with pytest.raises(ConfigError, match=rf"algo={algo} has no steps that all workers take together"):
        Checks([f"algo={algo}"])
