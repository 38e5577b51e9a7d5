"""What sets the methods with momentum and those that track the mean update apart, in numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decentral.algorithms.dpsgd import Mode
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components
from decentral.tasks.problems.convex import random_problem
from decentral.topology.delivery import Losses
from decentral.topology.requirements import check
from decentral.topology.rounds import Rounds
from table import ALGORITHMS, VARIANTS, Optimum

SMALL = [
    "task=quadratics",
    "task.dimension=6",
    "task.initial_distance=1",
    "num_workers=6",
    "trace=true",
    "evaluation.every_epochs=5000",
]
BESIDE = [
    *(("allreduce", "compress=topk"), ("allreduce", "compress=threshold")),
    *(("relaysgd", "compress=bf16"), ("relaysgd", "compress=int8")),
]
"""Exact but for what messages leave out."""

EXACT_VARIANTS = [
    (name, variant)
    for name, variants in VARIANTS.items()
    if ALGORITHMS[name].optimum is Optimum.exact
    for variant in variants
    if (name, variant) not in BESIDE
]


# -- momentum ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def rest(start, tmp_path):
    """Where all workers' models come to rest on a ring, [6, 6]."""

    def _rest(*overrides: str) -> np.ndarray:
        name = "-".join(overrides).replace("=", "_")
        return start(*SMALL, "topology=ring", "steps=2500", *overrides, directory=name).iterates[-1]

    return _rest


def test_decentlam_with_momentum_rests_where_dpsgd_without_does(rest):
    plain = rest("algo=dpsgd", "lr=0.05")
    np.testing.assert_allclose(rest("algo=decentlam", "lr=0.05"), plain, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rest("algo=decentlam", "lr=0.05", "algo.beta=0.5"), plain, rtol=0, atol=1e-12)


def test_dpsgd_with_momentum_rests_where_a_larger_learning_rate_does(rest):
    """By 1 / (1 - momentum): the bias that DecentLaM does not have."""
    with_momentum = rest("algo=dpsgd", "lr=0.05", "optim=momentum")
    np.testing.assert_allclose(with_momentum, rest("algo=dpsgd", "lr=0.5"), rtol=0, atol=1e-12)
    assert np.abs(with_momentum - rest("algo=dpsgd", "lr=0.05")).max() > 0.01


@pytest.mark.parametrize("topology", ["exponential", "one_peer_exponential"])
def test_decentlam_refuses_directed_graphs(topology: str):
    with pytest.raises(ConfigError, match=r"algo=decentlam needs a symmetric mixing matrix"):
        compose([*SMALL, "algo=decentlam", f"topology={topology}"])


@pytest.mark.parametrize(
    ("algo", "vectors", "messages"),
    [("dpsgd", 1, 1), ("decentlam", 1, 1), ("extra", 1, 1), ("dmsgd", 2, 1), ("push_diging", 2, 2)],
)
def test_what_a_step_costs_on_a_ring(start, algo: str, vectors: int, messages: int):
    """Push-DIGing's first step has nothing to mix but the models."""
    facts = start(*SMALL, f"algo={algo}", "topology=ring", "steps=4").facts
    sends = 4 * messages - (algo == "push_diging")
    assert facts["messages_sent"] == sends * 2 * 6
    assert facts["bytes_sent"] == sends * vectors / messages * 2 * 6 * 6 * 8


# -- exact methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "variant"), EXACT_VARIANTS)
def test_a_variant_of_an_exact_method_is_exact(start, tmp_path, name: str, variant: str):
    case = ALGORITHMS[name]
    overrides = [f"algo={name}", *case.nets[0].overrides(tmp_path), *case.overrides, variant]
    result = start(*SMALL, *overrides, "lr=0.1", "steps=700")
    assert abs(result.last("suboptimality", "worst")) < 1e-10
    assert result.last("distance_to_optimum", "worst") < 1e-6


@pytest.mark.parametrize(("name", "variant"), BESIDE)
def test_what_messages_leave_out_is_the_distance_from_the_optimum_in_the_end(start, tmp_path, name: str, variant: str):
    """Residuals that have not been sent yet, or the rounding of models, which does not end."""
    overrides = [f"algo={name}", *ALGORITHMS[name].nets[0].overrides(tmp_path), variant]
    result = start(*SMALL, *overrides, "lr=0.1", "steps=700")
    assert 1e-5 < result.last("distance_to_optimum", "worst") < 0.1


@pytest.mark.parametrize("mode", Mode)
def test_push_diging_is_exact_on_one_peer_rounds_of_a_grid(start, mode: Mode):
    """As in Ying et al. 2021, Listing 7; gradient tracking without push-sum refuses them."""
    place = ["topology=one_peer", "topology.graph=grid", "steps=1500"]
    result = start(*SMALL, "algo=push_diging", f"algo.mode={mode.value}", *place)
    assert abs(result.last("suboptimality", "worst")) < 1e-10
    assert result.last("distance_to_optimum", "worst") < 1e-6
    with pytest.raises(ConfigError, match="algo=gradient_tracking needs a doubly stochastic mixing matrix"):
        compose([*SMALL, "algo=gradient_tracking", *place])


def one_way_streets() -> Rounds:
    """Directed graphs that change with the round: none of them connected, no two workers alike."""
    rounds = []
    for edges in ([(0, 1), (1, 2)], [(2, 0), (3, 4)], [(2, 3), (4, 0), (4, 1)]):
        W = np.eye(5)
        for source, target in edges:
            W[target, source] = 1
        rounds.append((W / W.sum(axis=0),))
    return Rounds(5, rounds.__getitem__, period=3)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("mode", Mode)
def test_push_diging_is_exact_on_one_way_streets_that_change_and_lose_messages(mode: Mode, momentum: float, p: float):
    problem = random_problem(5, 4, 0.5, 1.0, 1.0, 1.0, seed=0)
    cls, schedule = components("algorithms")["push_diging"], one_way_streets()
    check(schedule, cls.needs, algo="push_diging", topology="one_way_streets")
    net = LocalNetwork(schedule, Losses(p, 7))
    algorithm = cls(mode=mode).bind(LocalRule(SGD(momentum=momentum), lambda t: 0.1 if t < 300 else 0.06))

    def gradient(x: torch.Tensor) -> torch.Tensor:
        residual = torch.einsum("nij,nj->ni", problem.A, x) - problem.b
        return torch.einsum("nij,ni->nj", problem.A, residual)

    state = algorithm.init(problem.x0.repeat(5, 1), net)
    for t in range(1500):
        state = algorithm.step(state, gradient, net, t)
    assert state.w.sum().item() == pytest.approx(5) and (state.w - 1).abs().max() > 0.1
    torch.testing.assert_close(algorithm.models(state), problem.optimum().repeat(5, 1), rtol=0, atol=1e-10)
