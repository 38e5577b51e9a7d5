"""An ensemble of quadratics is many ordinary runs at once, and its members do not disturb each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from configure import configure
from conftest import Start
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.facts import GraphFacts
from decentral.measurements.quadratics.ensemble import Ensemble, Stack, draw
from decentral.measurements.quadratics.rules import Member, Rated
from decentral.measurements.search import Simulation, check_ensemble
from decentral.store import Status
from decentral.tasks.problems.least_squares import random_problem
from decentral.training.assemble import local_network

MEMBERS = [Member(0, 0.1), Member(3, 0.1), Member(0, 1.0)]
RATES = [0.05, 0.2, 0.1]
QUADRATICS = ("task=quadratics", "task.dimension=4", "task.initial_distance=10")
METHODS = [
    ("algo=relaysgd", "topology=chain"),
    ("algo=relaysgd", "topology=bt"),
    ("algo=relaysgd_grad", "topology=chain"),
    ("algo=relaysgd_grad", "topology=chain", "algo.receiver_lr=true"),
    ("algo=d2", "topology=ring"),
    ("algo=exact_diffusion", "topology=star"),
    ("algo=gradient_tracking", "topology=ring"),
    ("algo=gradient_tracking", "topology=ring", "algo.mode=awc"),
    ("algo=extra", "topology=star"),
    ("algo=push_diging", "topology=star", "topology.weights=uniform"),
    ("algo=dmsgd", "topology=ring"),
    ("algo=decentlam", "topology=ring"),
    ("algo=qg_dpsgd", "topology=ring"),
    ("algo=sgp", "topology=one_peer_exponential", "algo.rounds=2"),
    ("algo=dpsgd", "topology=ring"),
    ("algo=allreduce", "topology=complete"),
    ("algo=dpsgd", "topology=ring", "optim=nesterov"),
]


def config_of(*overrides: str) -> Config:
    return configure(*QUADRATICS, "num_workers=6", *overrides)


def ensemble_of(config: Config, members: list[Member], rates: list[float]) -> Ensemble:
    return Ensemble(config, local_network(config), draw(config, members), [member.seed for member in members], rates)


def of_member(models: Tensor, number: int, d: int = 4) -> Tensor:
    return models[:, number * d : (number + 1) * d]


@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_a_member_is_the_ordinary_run_with_its_seed_and_rate(overrides: tuple[str, ...], start: Start) -> None:
    """The models to 1e-12, and the suboptimality that is reported."""
    steps, noise = 20, "task.noise=0.3"
    ensemble = ensemble_of(config_of(*overrides, noise), MEMBERS, RATES)
    ensemble.advance(steps)
    found = ensemble.suboptimality()
    for number, (member, lr) in enumerate(zip(MEMBERS, RATES, strict=True)):
        own = (f"seed={member.seed}", f"task.zeta2={member.zeta2}", f"lr={lr}", f"steps={steps}", "trace=true")
        run = start(*QUADRATICS, "num_workers=6", *overrides, noise, *own, directory=f"run{number}")
        models = of_member(ensemble.models(), number)
        torch.testing.assert_close(models, torch.from_numpy(run.iterates[-1]), rtol=1e-12, atol=1e-12)
        assert found[number] == pytest.approx(run.last("suboptimality", "averaged"), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_a_member_that_diverges_does_not_disturb_the_others(overrides: tuple[str, ...]) -> None:
    config = config_of(*overrides)
    calm = ensemble_of(config, MEMBERS, RATES)
    wild = ensemble_of(config, MEMBERS, [RATES[0], 1e200, RATES[2]])
    for ensemble in (calm, wild):
        ensemble.advance(30)
    assert not of_member(wild.models(), 1).isfinite().any()
    for number in (0, 2):
        assert torch.equal(of_member(wild.models(), number), of_member(calm.models(), number))
    assert not math.isfinite(wild.suboptimality()[1])


@pytest.mark.parametrize("overrides", METHODS, ids=" ".join)
def test_members_can_be_dropped_on_the_way(overrides: tuple[str, ...]) -> None:
    config = config_of(*overrides, "task.noise=0.1")
    whole, part = ensemble_of(config, MEMBERS, RATES), ensemble_of(config, MEMBERS, RATES)
    part.advance(7)
    part.keep([0, 2])
    for ensemble in (whole, part):
        ensemble.advance(20)
    for before, after in ((0, 0), (2, 1)):
        torch.testing.assert_close(of_member(part.models(), after), of_member(whole.models(), before), rtol=0, atol=0)


def test_the_stack_gives_gradient_and_suboptimality_of_every_problem() -> None:
    problems = [random_problem(5, 3, 0.5, 1.0, zeta2, 10.0, seed) for seed, zeta2 in ((0, 0.0), (1, 0.5))]
    stack = Stack.of(problems)
    x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for number, problem in enumerate(problems):
        own = of_member(x, number, d=3)
        residual = torch.einsum("nij,nj->ni", problem.A, own) - problem.b
        g = torch.einsum("nij,ni->nj", problem.A, residual)
        torch.testing.assert_close(of_member(stack.gradient(x), number, d=3), g, rtol=1e-12, atol=1e-12)

        def f(y: Tensor, problem=problem) -> Tensor:
            return (torch.einsum("nij,j->ni", problem.A, y) - problem.b).square().sum(1).mean()

        expected = f(own.mean(0)) - f(problem.optimum())
        assert float(stack.suboptimality(x)[number]) == pytest.approx(float(expected), rel=1e-9)


def test_a_simulation_keeps_the_curve_of_every_tree_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    config = configure(
        *QUADRATICS, "num_workers=32", "algo=relaysgd", "topology=spanning_tree", f"results_dir={tmp_path}"
    )
    simulation = Simulation(config, {}, (Rated(0, 0.1, 0.2), Rated(1, 0.1, 0.1)), steps=12, every=5, roots=3)
    assert simulation.carry_out() is Status.done
    courses = simulation.trajectories()
    assert [(course.root, course.member.seed) for course in courses] == [(r, s) for r in range(3) for s in (0, 1)]
    assert courses[0].steps == [0, 5, 10, 12]
    root2 = replace(config, topology=replace(config.topology, root=2))
    ensemble = ensemble_of(root2, [Member(0, 0.1), Member(1, 0.1)], [0.2, 0.1])
    ensemble.advance(12)
    assert [course.errors[-1] for course in courses if course.root == 2] == ensemble.suboptimality()

    lines = simulation.directory / "courses.jsonl"
    whole = lines.read_bytes()
    lines.write_bytes(whole[: len(whole) // 2])  # a line that was cut short, and an ensemble of which one is missing
    (simulation.directory / "status.json").unlink()
    assert simulation.carry_out() is Status.done
    assert sorted(simulation.trajectories()) == sorted(courses)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=relaysgd", "topology=dbt"], "2 pieces"),
        (["algo=dpsgd", "topology=ring", "network.drop_probability=0.1"], "lose the same messages, whatever the seeds"),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_ensemble(config_of(*overrides))


def test_the_facts_of_two_graphs_are_two_jobs_even_for_an_algorithm_that_needs_no_graph() -> None:
    def fact(*overrides: str) -> GraphFacts:
        return GraphFacts(config_of(*overrides), quantity="second_eigenvalue", num_workers=[4])

    ring, chain = (fact("algo=allreduce", f"topology={name}") for name in ("ring", "chain"))
    assert ring.id != chain.id
    assert "topology" not in fact("algo=relaysgd", "topology=chain").parameters()  # it is part of the identity
