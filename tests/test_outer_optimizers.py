"""The recent methods in their limits, where they are methods that are known; and what sets them apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from configure import configure
from decentral.algorithms.noloco import NoLoCo
from decentral.algorithms.teleportation import Teleportation
from decentral.config.checks import resolve
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.tasks.problems.convex import random_problem
from decentral.training.assemble import assemble

SMALL = ("task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.05", "trace=true", "steps=36",
         "evaluation.every_epochs=36")  # fmt: skip
HEAVY_BALL = "algo=diloco algo.nesterov=false algo.outer_momentum=0.5 algo.period_steps=3"
PLAIN = "algo=diloco algo.outer_momentum=0 algo.period_steps=3 algo.outer_lr=0.8"

LIMITS = {
    "diloco, outer rate 1, no outer momentum": (
        "algo=diloco algo.outer_lr=1 algo.outer_momentum=0 algo.period_steps=3 optim=momentum",
        "algo=local_sgd algo.period_steps=3 optim=momentum",
    ),
    "streaming diloco in one part without delay": (
        "algo=streaming_diloco algo.fragments=1 algo.period_steps=4 optim=adam",
        "algo=diloco algo.period_steps=4 optim=adam",
    ),
    "noloco in one group": (
        "algo=noloco algo.group_size=6 algo.outer_momentum=0.5 algo.period_steps=3 optim=nesterov",
        f"{HEAVY_BALL} optim=nesterov",
    ),
    "noloco of a pair that averages": (
        "algo=noloco algo.outer_momentum=0 algo.outer_lr=1 algo.consensus=1 algo.period_steps=1 num_workers=2",
        "algo=model_averaging num_workers=2",
    ),
    "sparseloco that sends all": ("algo=sparseloco algo.outer_lr=0.8 algo.period_steps=3", PLAIN),
    "sparseloco that keeps all": (
        "algo=sparseloco algo.outer_lr=0.8 algo.period_steps=3 compress=topk compress.keep=1.0",
        PLAIN,
    ),
    "gasloc where all hear of all": (
        "algo=gasloc topology=complete algo.outer_momentum=0 algo.outer_lr=0.8 algo.period_steps=3",
        PLAIN,
    ),
    "gasloc alone": (
        "algo=gasloc topology=ring algo.period_steps=3 num_workers=1 task.zeta2=0 optim=momentum",
        "algo=diloco topology=ring algo.period_steps=3 num_workers=1 task.zeta2=0 optim=momentum",
    ),
    "gasloc of local steps": (
        "algo=gasloc topology=ring algo.outer_momentum=0 algo.outer_lr=1 algo.period_steps=1 optim=momentum",
        "algo=dpsgd topology=ring optim=momentum",
    ),
    "teleportation with all active": (
        "algo=teleportation algo.active=6 optim=momentum",
        "algo=dpsgd topology=ring optim=momentum",
    ),
    "momentum tracking without momentum": (
        "algo=momentum_tracking topology=ring algo.beta=0",
        "algo=gradient_tracking topology=ring algo.mode=awc",
    ),
    "dadam": ("algo=dadam topology=ring", "algo=dpsgd topology=ring algo.mode=awc optim=adam"),
    "dadam, atc": ("algo=dadam topology=ring algo.mode=atc", "algo=dpsgd topology=ring optim=adam"),
    "epidemic learning's oracle": (
        "algo=epidemic_learning topology=random_regular topology.changing=true topology.degree=3",
        "algo=dpsgd topology=random_regular topology.changing=true topology.degree=3",
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_in_its_limit_a_method_is_one_that_is_known(start, limit: str) -> None:
    ours, known = (
        start("num_workers=6", *words.split(), *SMALL, directory=name).iterates
        for words, name in zip(LIMITS[limit], ("ours", "known"), strict=True)
    )
    np.testing.assert_allclose(ours, known, rtol=0, atol=1e-12)
    assert np.abs(known[-1] - known[0]).max() > 1e-3


@torch.enable_grad()
def test_diloco_is_torchs_own_optimizers_one_in_each_worker_and_one_outside(start) -> None:
    """As torchft defines it: the outer gradient is what the workers have moved, on average, the wrong way round."""
    n, H, steps = 3, 4, 16
    found = start("algo=diloco", f"algo.period_steps={H}", f"num_workers={n}", *SMALL, "optim=adam", f"steps={steps}")
    problem = random_problem(n, 6, 0.5, 1.0, 1.0, 1.0, seed=0)
    A, b = problem.A, problem.b
    phi = problem.x0.clone().reshape(-1).requires_grad_()
    x = [phi.detach().clone().requires_grad_() for _ in range(n)]
    inner, outer = [torch.optim.Adam([xi], lr=0.05) for xi in x], torch.optim.SGD([phi], 0.7, 0.9, nesterov=True)
    for t in range(steps):
        for i in range(n):
            inner[i].zero_grad()
            (0.5 * (A[i] @ x[i] - b[i]).square().sum()).backward()
            inner[i].step()
        if (t + 1) % H == 0:
            phi.grad = phi.detach() - torch.stack([xi.detach() for xi in x]).mean(0)
            outer.step()
            for xi in x:
                xi.data.copy_(phi.data)
    np.testing.assert_allclose(found.iterates[-1], torch.stack(x).detach().numpy(), rtol=0, atol=1e-10)


def test_the_mean_of_noloco_does_heavy_ball_diloco_with_the_mean_drift() -> None:
    draw, algorithm = np.random.default_rng(0), NoLoCo()
    phi, d = np.zeros((6, 2)), np.zeros((6, 2))
    mean, v = np.zeros(2), np.zeros(2)
    for round in range(20):
        drift = draw.normal(size=(6, 2))
        Q = algorithm.groups(6, round).dense()
        assert sorted((Q > 0).sum(axis=1)) == [2] * 6 and (Q == Q.T).all()
        d = 0.5 * d + 0.7 * Q @ drift + 0.7 * (Q @ phi - phi)
        phi = phi + d
        v = 0.5 * v + 0.7 * drift.mean(axis=0)
        mean = mean + v
        np.testing.assert_allclose(phi.mean(axis=0), mean, rtol=0, atol=1e-12)


def test_the_part_of_a_model_that_travels_costs_no_time_while_it_does(start) -> None:
    cluster = ("cluster=machines", "cluster.compute.mean_s=1", "cluster.links.latency_s=0.5",
               "cluster.links.bandwidth_gbps=inf", "cluster.links.copy_gbps=inf")  # fmt: skip
    method = ("algo=streaming_diloco", "algo.period_steps=12", "algo.fragments=2", "num_workers=4", *SMALL)
    seconds = [
        start(*method, *cluster, f"algo.delay_steps={delay}", directory=f"delay {delay}").rows[-1]["simulated_s"]
        for delay in (0, 5)
    ]
    assert seconds[0] > 36 + 1 and seconds[1] == 36


def test_one_active_model_is_sgd_that_walks_from_worker_to_worker(start) -> None:
    found = start("algo=teleportation", "algo.active=1", "num_workers=5", *SMALL).iterates
    problem = random_problem(5, 6, 0.5, 1.0, 1.0, 1.0, seed=0)
    x, seen = problem.x0.clone(), set()
    for t in range(len(found)):
        (holder,) = Teleportation(active=1).workers(5, t)
        seen.add(int(holder))
        np.testing.assert_allclose(found[t, holder], x.numpy(), rtol=0, atol=1e-12)
        A, b = problem.A[holder], problem.b[holder]
        x = x - 0.05 * A.T @ (A @ x - b)
    assert len(seen) == 5


def test_teleportation_sends_a_model_to_each_that_comes_next_and_along_the_small_graph(start) -> None:
    found = start("algo=teleportation", "algo.active=4", "num_workers=8", *SMALL, "steps=10")
    method = Teleportation(active=4)
    moved = sum(int((method.workers(8, t) != method.workers(8, t + 1)).sum()) for t in range(10))
    assert found.rows[-1]["bytes_sent"] == (10 * 4 * 2 + moved) * 6 * 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("algo=streaming_diloco algo.fragments=3", "algo.fragments=3 does not divide algo.period_steps=50"),
        (
            "algo=streaming_diloco algo.delay_steps=10",
            "algo.delay_steps=10 makes no sense: it has to be below 10",
        ),
        ("algo=teleportation algo.graph=rnig", "algo.graph=rnig does not exist. Did you mean 'ring'"),
        ("algo=teleportation algo.graph=epidemic", "algo.graph=epidemic has no doubly stochastic matrix"),
        ("algo=dpsgd topology=epidemic", "doubly stochastic"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(compose(["task=quadratics", "num_workers=6", *words.split()]))


def test_the_warm_up_of_sparseloco_is_in_epochs_of_its_steps():
    """A period is two epochs of this task: in a warm-up of four, 1, then (1 + 0.5) / 2 = 0.75 of 6 numbers are sent."""
    settings = ("algo=sparseloco algo.period_steps=2", "compress=topk compress.keep=0.5 compress.warmup_epochs=4")
    words = [word for setting in settings for word in setting.split()]
    config = configure(*SMALL, *words, "num_workers=2", "processes=1", "device=cpu")
    run, sent = assemble(config, World(0, 1, torch.device("cpu"))), []
    with torch.no_grad():
        for _ in range(4):
            before = run.net.bytes_sent
            run.stepper.step()
            run.stepper.step()
            sent.append(run.net.bytes_sent - before)
    assert sent[0] > sent[1] > sent[2] == sent[3] > 0
