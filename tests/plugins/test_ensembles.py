"""Many small problems in one: regression, ensembles of quadratics, and searches for the best rate."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from configure import configure
from conftest import Start
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.plugins.papers.measurements.search import Search, Simulation, check_ensemble
from decentral.plugins.papers.quadratics.ensemble import Ensemble, draw
from decentral.plugins.papers.quadratics.rules import Fastest, Member, Outcome, Plateau, Rated, Rule, Trial
from decentral.store import RunStore, Status
from decentral.training.method import local_network

# -- An ensemble of quadratics is many ordinary runs at once; and the search for their learning rates ------------------

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
    steps, noise = 6, "task.noise=0.3"
    ensemble = ensemble_of(config_of(*overrides, noise), MEMBERS, RATES)
    ensemble.advance(steps)
    found = ensemble.suboptimality()
    for number in (1, 2):
        member, lr = MEMBERS[number], RATES[number]
        own = (f"seed={member.seed}", f"task.zeta2={member.zeta2}", f"lr={lr}", f"steps={steps}", "trace=true")
        run = start(*QUADRATICS, "num_workers=6", *overrides, noise, *own, directory=f"run{number}")
        models = of_member(ensemble.models(), number)
        torch.testing.assert_close(models, torch.from_numpy(run.iterates[-1]), rtol=1e-12, atol=1e-12)
        assert found[number] == pytest.approx(run.last("suboptimality", "averaged"), rel=1e-9, abs=1e-12)


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

    lines = simulation.directory / "lines.jsonl"
    whole = lines.read_bytes()
    lines.write_bytes(whole[: len(whole) // 2])  # a line that was cut short, and an ensemble of which one is missing
    (simulation.directory / "status.json").unlink()
    assert simulation.carry_out() is Status.done
    assert sorted(simulation.trajectories()) == sorted(courses)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=relaysgd", "topology=dbt"], "2 pieces"),
        (["algo=dpsgd", "topology=ring", "network.drop_probability=0.1"], "lose the same messages for all seeds"),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_ensemble(config_of(*overrides))


TEN_SEEDS = list(range(10))
SMALL = ("task=quadratics", "task.dimension=10", "task.singular_min=0.5", "task.initial_distance=100", "num_workers=6")


def search_of(
    folder: Path, *overrides: str, seeds: list[int] = TEN_SEEDS, search: dict[str, Any] | None = None
) -> Search:
    config = configure(*SMALL, *overrides, f"results_dir={folder}", "seed=0", "lr=0")
    return Search(config, {}, seeds=seeds, zeta2=[0.01], search=search or {})


def answer(rule: Rule, respond: Any) -> tuple[Trial | None, list[float]]:
    """What a search finds and which rates it tries, if `respond(lr, best_step)` says how a trial ends."""
    search, tried = rule.search(), []
    try:
        proposal = next(search)
        while True:
            tried.append(proposal.lr)
            proposal = search.send(respond(proposal.lr, proposal.best_step))
    except StopIteration as ended:
        return ended.value, tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "mean"),
    [
        (("algo=relaysgd", "topology=chain"), 20.8),
        (("algo=relaysgd", "topology=bt"), 15.2),
        (("algo=d2", "topology=ring"), 19.6),
        (("algo=gradient_tracking", "topology=ring"), 49),
        (("algo=gradient_tracking", "topology=bt"), 156),
        (("algo=sgp", "algo.rounds=2", "topology=one_peer_exponential"), 107.9),
        (("algo=allreduce", "topology=complete"), 8.9),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_six_workers_take_the_published_number_of_steps(
    overrides: tuple[str, ...], mean: float, tmp_path: Path
) -> None:
    """Figure 2 at n = 6, zeta2 = 0.01, mean over ten random problems; two of the seven are rounded to whole steps."""
    search = search_of(tmp_path, *overrides)
    assert search.carry_out() is Status.done
    found = statistics.fmean(tuned.step for tuned in search.tuned().values())
    assert found == pytest.approx(mean, abs=0.25 if isinstance(mean, int) else 1e-9)


def test_fastest_halves_until_it_is_there_and_then_bisects() -> None:
    def respond(lr: float, best_step: int | None) -> Trial:
        if lr > 3:
            return Trial(lr, Outcome.diverged, 1, math.nan)
        step = round(100 / lr) if lr < 2.7 else 1000
        late = best_step is not None and step > 10 * best_step
        return Trial(lr, Outcome.late if late else Outcome.reached, step, 1e-7)

    best, tried = answer(Fastest(start_lr=10), respond)
    assert tried[:6] == [20, 10, 5, 2.5, 1.25, 3.125]  # halved, until one that is slower; then the middle of 1.25 and 5
    assert best is not None
    assert best.lr == pytest.approx(2.7, abs=0.2)
    assert best.step == min(round(100 / lr) if lr < 2.7 else 1000 for lr in tried if lr <= 3)


def test_plateau_finds_the_largest_rate_whose_plateau_is_low_enough() -> None:
    def respond(lr: float, best_step: int | None) -> Trial:
        if lr > 1:
            return Trial(lr, Outcome.diverged, 1, math.inf)
        return Trial(lr, Outcome.plateau, round(10 / lr), 1e-4 * lr**2)

    best, _ = answer(Plateau(start_lr=10, target=1e-6), respond)
    assert best is not None
    assert 1e-6 / 1.1 < best.error < 1e-6


@pytest.mark.parametrize(
    ("rule", "errors", "best_step", "outcome"),
    [
        (Fastest(), [1.0, 9e-7], None, Outcome.reached),
        (Fastest(), [1.0, 9e-7], 1, Outcome.reached),  # late, but there
        (Fastest(), [1.0, 0.5], 1, Outcome.late),
        (Fastest(), [1.0, 1.1], None, Outcome.diverged),
        (Fastest(), [1.0, math.nan], None, Outcome.diverged),
        (Fastest(), [1.0, 0.5, 0.6], None, Outcome.rising),
        (Fastest(), [1.0, 0.5, 0.5, 0.5], None, Outcome.plateau),
        (Fastest(), [1.0, 0.5], None, None),
        (Plateau(), [1.0, 9e-7], None, None),
        (Plateau(), [1.0, 9e-7, 9e-7, 9e-7], None, Outcome.plateau),
        (Plateau(), [1.0, 1e-7, 2e-7], None, None),  # rising below the target is no failure
        (Plateau(), [1.0, 0.5, 0.6], None, Outcome.rising),
        (Plateau(), [1.0, 0.5], 1, Outcome.late),
    ],
)
def test_a_trial_ends_where_the_paper_ends_it(
    rule: Rule, errors: list[float], best_step: int | None, outcome: Outcome | None
) -> None:
    ended = rule.judge(11, errors, best_step)
    assert (ended.outcome if ended else None) == outcome


def told(search: Search) -> list[tuple[object, ...]]:
    """The trials, but for the error: its last digits depend on who else was in the ensemble."""
    return sorted((line["seed"], line["lr"], line["outcome"], line["step"]) for line in search.found())


class Killed(BaseException):
    """In place of a kill: nothing catches it."""


def test_a_search_that_was_killed_goes_on_with_the_trials_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, seeds = ("algo=d2", "topology=ring"), TEN_SEEDS[:3]
    undisturbed = search_of(tmp_path / "a", *overrides, seeds=seeds)
    undisturbed.carry_out()
    disturbed = search_of(tmp_path / "b", *overrides, seeds=seeds)
    assert disturbed.id == undisturbed.id
    lines, advance, calls = disturbed.directory / disturbed.lines, Ensemble.advance, [0]

    def dying(ensemble: Ensemble, step: int) -> None:
        calls[0] += 1
        if calls[0] in (40, 150, 300):
            raise Killed
        advance(ensemble, step)

    monkeypatch.setattr(Ensemble, "advance", dying)
    kills = 0
    while disturbed.finished() is None:
        try:
            disturbed.carry_out()
        except Killed:
            kills += 1
            with open(lines, "ab") as file:
                file.write(b'{"seed": 0, "zet')  # the line that it was writing
    assert kills == 3
    assert disturbed.tuned() == undisturbed.tuned()
    assert told(disturbed) == told(undisturbed)


def test_an_interrupted_search_says_so_and_keeps_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decentral.host.interrupt import Interrupt

    monkeypatch.setattr(Interrupt, "__enter__", lambda self: setattr(self, "requested", True) or self)
    search = search_of(tmp_path, "algo=relaysgd", "topology=chain", seeds=TEN_SEEDS[:2])
    assert search.carry_out() is Status.interrupted
    assert (RunStore.peek(search.directory) or {})["status"] == "interrupted"
    assert search.finished() is None
    with pytest.raises(ConfigError, match="has lost trials"):
        search.tuned()
    monkeypatch.undo()
    assert search.carry_out() is Status.done


FEW = [
    ("algo=relaysgd", "topology=chain"),
    ("algo=gradient_tracking", "topology=ring"),
    ("algo=dpsgd", "topology=ring", "optim=nesterov"),
]


@pytest.mark.parametrize("overrides", FEW, ids=" ".join)
def test_a_member_that_diverges_or_is_dropped_does_not_disturb_the_others(overrides: tuple[str, ...]) -> None:
    config = config_of(*overrides, "task.noise=0.1")
    calm, part = ensemble_of(config, MEMBERS, RATES), ensemble_of(config, MEMBERS, RATES)
    wild = ensemble_of(config, MEMBERS, [RATES[0], 1e200, RATES[2]])
    part.advance(7)
    part.keep([0, 2])
    for ensemble in (calm, wild, part):
        ensemble.advance(30)
    assert not of_member(wild.models(), 1).isfinite().any() and not math.isfinite(wild.suboptimality()[1])
    for number, place in ((0, 0), (2, 1)):
        expected = of_member(calm.models(), number)
        assert torch.equal(of_member(wild.models(), number), expected)
        assert torch.equal(of_member(part.models(), place), expected)
