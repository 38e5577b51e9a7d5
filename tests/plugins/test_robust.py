"""Attacks and robust mixing, against their formulas in plain numpy."""

from __future__ import annotations

from copy import deepcopy
from statistics import NormalDist

import numpy as np
import pytest
import torch

from configure import configure
from decentral.config.identity import run_id
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.plugins.adversaries.robust.rules import Clip, ClipHe, CSPlus, NearestNeighbors, Trimmed
from decentral.registry import components
from decentral.report.summary import summary
from decentral.study.measure import Measure
from decentral.training.assemble import assemble
from test_resume import same_results

N, D, LR, STEPS = 8, 5, 0.1, 12
BAD = {"none": [], "sign_flip": [5, 2], "alie": [2, 5, 6], "dissensus": [5, 2]}
"""Attack -> the attackers, as they are given."""
RULES = {"none": [], "clip": ["robust.tau=2"], "clip_he": [], "cs_plus": [], "nna": [], "trimmed": []}
TOPOLOGIES = ["symmetric_exponential", "complete", "star"]
RUN = ["task=quadratics", "algo=dpsgd", f"num_workers={N}", f"lr={LR}", f"steps={STEPS}", "trace=true", "save=none"]


@pytest.fixture
def problem(tmp_path):
    """A quadratic for each worker, and a start for each, in a file."""
    rng = np.random.default_rng(3)
    A, b, x0 = rng.normal(size=(N, D, D)) / 2, 4 * rng.normal(size=(N, D)), 3 * rng.normal(size=(N, D))
    np.savez(tmp_path / "problem.npz", A=A, b=b, x0=x0)
    return f"task.problem={tmp_path / 'problem.npz'}", A, b, x0


# -- the formulas, one worker after the other --------------------------------------------------------------------------


def sent(attack: str, y: np.ndarray, W: np.ndarray, i: int, bad: list[int], z: float | None = None) -> dict:
    """What each neighbor of i sends it."""
    near = [j for j in range(N) if j != i and W[i, j] != 0]
    honest = [j for j in near if j not in bad]
    messages = {j: y[j] for j in near}
    for a in set(near) & set(bad):
        if attack == "sign_flip":
            messages[a] = -y[a]
        if attack == "alie":
            f = len(bad)
            s = N // 2 + 1 - f
            around = y[[i, *honest]]
            factor = NormalDist().inv_cdf((N - f - s) / (N - f)) if z is None else z
            messages[a] = around.mean(0) - factor * (around.std(0, ddof=1) if honest else 0)
        if attack == "dissensus":
            pull = sum((W[i, j] * (y[j] - y[i]) for j in honest), np.zeros(D))
            messages[a] = y[i] - 1.5 * pull / sum(W[i, b] for b in near if b in bad)
    return messages


def mixed(rule: str, messages: dict, y: np.ndarray, W: np.ndarray, i: int, b: float | None = None) -> np.ndarray:
    """x_i after the rule, with one attacker tolerated, or with their weight b."""
    if rule == "trimmed":
        values = np.sort(np.array([y[i], *messages.values()]), axis=0)
        cut = min(1, (len(values) - 1) // 2)
        return values[cut : len(values) - cut].mean(0)
    if b is None:
        b = max(W[i, j] for j in messages)
    entries = [(0.0, i, W[i, i])] + [(np.linalg.norm(m - y[i]), j, W[i, j]) for j, m in messages.items()]
    entries.sort(key=lambda entry: entry[:2])
    total, share, cum = sum(w for _, _, w in entries), {j: 1.0 for _, j, _ in entries}, 0.0
    if rule == "nna":
        left = b
        for _, j, w in reversed(entries):
            taken = min(left, w)
            share[j] = (w - taken) / w if w else 1.0
            left -= taken
    elif rule != "none":
        tau, target = 2.0, total - (2 * b if rule == "cs_plus" else b)
        for k, (d, _, w) in enumerate(entries):
            cum += w
            if cum >= target - 1e-12:
                if rule == "clip_he":
                    tau = np.sqrt(sum(w * d**2 for d, _, w in entries[:k]) / b)
                if rule == "cs_plus":
                    tau = d if abs(cum - target) <= 1e-12 else entries[k - 1][0] if k else 0.0
                break
        share = {j: min(1.0, tau / d) if d else 1.0 for d, j, _ in entries}
    return y[i] + sum(W[i, j] * share[j] * (m - y[i]) for j, m in messages.items())


def matrix(*overrides: str) -> np.ndarray:
    return configure(*RUN, *overrides).rounds().matrices(0)[0]


def agrees(found, problem, W: np.ndarray, rule: str, attack: str, bad: list[int], **given: float | None) -> None:
    """Every step of a run of D-PSGD is that of the formulas."""
    _, A, b, x = problem
    for t in range(STEPS):
        assert np.abs(found.iterates[t] - x).max() <= 1e-10 * max(1, np.abs(x).max()), t
        y = x - LR * np.einsum("nij,ni->nj", A, np.einsum("nij,nj->ni", A, x) - b)
        x = np.array(
            [mixed(rule, sent(attack, y, W, i, bad, given.get("z")), y, W, i, given.get("b")) for i in range(N)]
        )


@pytest.mark.parametrize(("place", "rule"), list(enumerate(RULES)))
def test_a_run_is_that_of_the_formulas(start, problem, place, rule):
    """Every rule with every attack, on the topologies in turn."""
    for number, (attack, bad) in enumerate(BAD.items()):
        topology = TOPOLOGIES[(place + number) % len(TOPOLOGIES)]
        workers = [f"attack.workers={bad}".replace(" ", "")] if bad else []
        mixing = [f"attack={attack}", *workers, f"robust={rule}", *RULES[rule]]
        found = start(*RUN, problem[0], f"topology={topology}", *mixing, directory=attack)
        agrees(found, problem, matrix(f"topology={topology}"), rule, attack, sorted(bad))


@pytest.mark.parametrize("rule", ["clip_he", "cs_plus", "nna"])
@pytest.mark.parametrize("b", [0.1, 0.25, 0.6])
def test_the_weight_to_be_tolerated_may_be_given(start, problem, rule, b):
    found = start(*RUN, problem[0], "topology=complete", "attack=alie", "attack.workers=[1,6]", "attack.z=10",
                  f"robust={rule}", f"robust.weight={b}")  # fmt: skip
    agrees(found, problem, matrix("topology=complete"), rule, "alie", [1, 6], z=10.0, b=b)


def test_sums_of_thirds_are_as_large_as_they_should_be():
    third, d = np.full(3, 1 / 3), np.array([0.0, 1.0, 2.0])
    assert NearestNeighbors().shares(d, third, 0).tolist() == pytest.approx([1, 1, 0], abs=1e-12)
    assert CSPlus(weight=1 / 3).shares(d, third, 0).tolist() == [1, 0, 0]  # own alone is nearest of weight 1/3
    assert ClipHe(weight=1 / 3).shares(d, third, 0).tolist() == [1, 0, 0]  # k* is the nearest neighbor
    assert ClipHe(tolerate=0).shares(d, third, 0).tolist() == [1, 1, 1]
    assert Clip(tau=0).shares(d, third, 0).tolist() == [1, 0, 0]


def test_a_tie_is_broken_by_the_number_of_the_worker():
    w, d = np.full(4, 1 / 4), np.array([3.0, 0.0, 3.0, 3.0])
    assert NearestNeighbors().shares(d, w, 1).tolist() == [1, 1, 1, 0]


def test_a_worker_that_hears_too_few_for_trimming_takes_the_median():
    messages = torch.tensor([[0.0], [9.0], [1.0]], dtype=torch.float64)
    assert Trimmed(tolerate=5).mixed(messages, np.full(3, 1 / 3), 0).tolist() == [1.0]


# -- what does not change ----------------------------------------------------------------------------------------------

RING = [*RUN, "topology=ring", "task.dimension=4", "task.initial_distance=3"]
SEEN = [*RING, "attack=noise", "attack.count=2", "attack.sigma=0.3", "robust=clip", "robust.tau=1"]


def test_without_attackers_and_a_rule_all_is_gossip_bit_for_bit(start):
    honest = start(*RING, "attack=dissensus", "attack.count=0", directory="honest")
    assert np.array_equal(honest.iterates, start(*RING).iterates)
    assert not any(str(row["worker"]).startswith("honest") for row in honest.rows)
    assert run_id(configure(*RING)) == run_id(configure(*RING, "attack=none", "robust=none"))
    assert run_id(configure(*RING)) != run_id(configure(*RING, "robust=nna"))


def test_time_bytes_and_messages_are_those_of_gossip(start):
    cluster = [*RING, "cluster=slow_network", "algo.mode=awc"]
    one, other = start(*cluster), start(*cluster, "attack=sign_flip", "robust=clip_he", directory="robust")
    for fact in ("simulated_s", "bytes_sent", "messages_sent"):
        assert one.facts[fact] == other.facts[fact]


@pytest.mark.parametrize("attack", ["noise", "dissensus"])
def test_any_number_of_processes_and_an_interruption_make_no_difference(start, attack):
    run = [*RING, f"attack={attack}", "attack.count=2", "robust=nna", "evaluation.every_epochs=3"]
    one = start(*run, directory="one")
    assert start(*run, crash_at=7).status == "crashed"
    same_results(start(*run), one)
    two = start(*run, processes=2, directory="two")
    np.testing.assert_allclose(two.iterates, one.iterates, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(two.rows, one.rows, strict=True):
        assert ours.pop("value") == pytest.approx(theirs.pop("value"), rel=1e-9, abs=1e-12) and ours == theirs


SAME = {"qg_dpsgd": ["algo.beta=0"], "gasloc": ["algo.period_steps=1", "algo.outer_lr=1", "algo.outer_momentum=0"]}


@pytest.mark.parametrize("algo", SAME)
def test_methods_that_are_dpsgd_are_so_with_attackers(start, algo):
    one, other = start(*SEEN), start(*SEEN, f"algo={algo}", *SAME[algo], directory="other")
    np.testing.assert_allclose(other.iterates, one.iterates, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["awc", "atc"])
def test_adam_mixes_as_it_is_told(start, mode):
    adam = [*RING, "algo=dadam", f"algo.mode={mode}"]
    plain, robust = start(*adam), start(*adam, "robust=clip", "robust.tau=0", directory="robust")
    alone = start(*adam, "topology=ring", "communication.every=1000", directory="alone")
    np.testing.assert_allclose(robust.iterates, alone.iterates, rtol=1e-12, atol=1e-12)
    assert np.abs(plain.iterates - alone.iterates).max() > 1e-3


# -- labels ------------------------------------------------------------------------------------------------------------

DIGITS = ["data=digits", "model=mlp", "num_workers=4", "algo=dpsgd", "topology=complete", "precision=fp64", "steps=6",
          "trace=true", "save=none", "evaluation.every_epochs=0.1"]  # fmt: skip


def test_label_flippers_have_gradients_of_flipped_labels(start):
    flips = [*DIGITS, "evaluation.every_epochs=100", "attack=label_flip", "attack.workers=[1,3]"]
    run = assemble(prepare(configure(*flips)), World(0, 1, torch.device("cpu")))
    problem, x, draws = run.problem, run.stepper.models, np.zeros(4, dtype=np.int64)
    _, g = problem.gradient(x, draws)
    found = g.clone()
    _, some = problem.gradient(x[[3, 0]], draws[:2], [3, 0])
    assert torch.allclose(some, found[[3, 0]])
    problem.flipped = ()
    _, g = problem.gradient(x, draws)
    assert torch.equal(g[[0, 2]], found[[0, 2]]) and not torch.isclose(g[[1, 3]], found[[1, 3]]).all()
    images, labels = problem.batch_of(None, 0)
    model = deepcopy(problem.models.modules[0])
    model.load_state_dict(problem.model_tensors(x[0], {}))
    loss = torch.nn.functional.cross_entropy(model.double()(images[1].double()), 9 - labels[1])
    wanted = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()))])
    assert torch.allclose(found[1], wanted, atol=1e-12)
    loop, batched = (start(*flips, f"execution={way}", directory=way) for way in ("loop", "batched"))
    np.testing.assert_allclose(loop.iterates, batched.iterates, rtol=1e-9, atol=1e-11)
    two = start(*flips, processes=2, directory="two")
    np.testing.assert_allclose(two.iterates, batched.iterates, rtol=1e-9, atol=1e-11)
    assert start(*flips, "algo=d2", "topology=ring", "algo=gradient_tracking", directory="tracking").status == "done"


def test_the_honest_are_evaluated_by_themselves(start):
    run = start(*DIGITS, "attack=sign_flip", "attack.workers=[1]", "robust=trimmed")
    honest = [run.last("accuracy", i) for i in (0, 2, 3)]
    assert run.last("accuracy", "honest worst") == min(honest)
    assert run.last("accuracy", "honest mean") == pytest.approx(np.mean(honest))
    assert Measure(worker="honest mean").of(run.directory).value == pytest.approx(100 * np.mean(honest))
    assert run.last("accuracy", "worst") == min(*honest, run.last("accuracy", 1))
    x = run.iterates[-1][[0, 2, 3]]
    apart = np.mean(((x - x.mean(0)) ** 2).sum(1))
    assert run.last("consensus_distance", "honest mean") == pytest.approx(apart)
    config = configure(*DIGITS)
    problem = config.task.open(config, range(4), torch.device("cpu"))
    problem.average_states(assemble(prepare(config), World(0, 1, torch.device("cpu"))).net)
    statistics = problem.average_statistics(torch.from_numpy(x.mean(0)), 0, 1)
    assert run.last("accuracy", "honest averaged") == pytest.approx(float(problem.finish(statistics)[0]))
    assert run.facts["notes"] == ["attackers (attack=sign_flip): workers 1"]
    told = summary(run.directory)
    assert "attack=sign_flip workers=[1], robust=trimmed" in told and "honest workers" in told


def test_attackers_are_drawn_by_the_seed():
    attack = components("network.attacks")["noise"](count=3)
    assert attack.attackers(16, 1) == attack.attackers(16, 1) != attack.attackers(16, 2)
    assert len(set(attack.attackers(16, 1))) == 3 and attack.attackers(16, 1) == sorted(attack.attackers(16, 1))


def test_two_cliques_have_one_bridge_and_several_make_a_ring():
    bridge, ring = (matrix(f"num_workers={n}", "topology=cliques", f"topology.count={k}") for n, k in ((6, 2), (9, 3)))
    for W, size in ((bridge, 3), (ring, 3)):
        clique = np.arange(len(W)) // size
        between = {(i, j) for i, j in zip(*np.nonzero(W), strict=True) if clique[i] != clique[j]}
        firsts = range(0, len(W), size)
        assert between == {(i, j) for i in firsts for j in firsts if i != j}
        assert all(W[i, j] > 0 for i in range(len(W)) for j in range(len(W)) if clique[i] == clique[j])
    uneven = matrix("num_workers=5", "topology=cliques") > 0
    assert uneven[:3, :3].all() and uneven[3:, 3:].all() and uneven[:3, 3:].sum() == 1 and uneven[0, 3]


# -- refusals ----------------------------------------------------------------------------------------------------------

ONLY = "use algo=dadam, dpsgd, gasloc or qg_dpsgd"
REFUSED = {
    **{algo: ([f"algo={algo}", "topology=ring", "robust=clip"], ONLY) for algo in ("d2", "extra", "choco", "sgp")},
    "tracking": (["algo=gradient_tracking", "topology=ring", "attack=alie"], f"attack=alie .* {ONLY}"),
    "relayed": (["algo=relaysgd", "topology=chain", "robust=nna"], ONLY),
    "asynchronous": (["algo=adpsgd", "topology=ring", "attack=noise"], ONLY),
    "trees": ([*RUN, "topology=dbt", "robust=clip"], "splits them into pieces"),
    "rounded": ([*RUN, "topology=ring", "compress=bf16", "robust=clip"], "leave out compress=bf16"),
    "machines": ([*RUN, "communication.workers_per_machine=2", "robust=clip"], "communication.workers_per_machine=2"),
    "no labels": ([*RUN, "attack=label_flip"], "task=quadratics has none"),
    "who": ([*RUN, "attack=noise", "attack.workers=[8]"], r"attack.workers=\[8\] is invalid: name .* 0 to 7"),
    "twice": ([*RUN, "attack=noise", "attack.workers=[1,1]"], "different workers"),
    "both": ([*RUN, "attack=noise", "attack.workers=[1]", "attack.count=1"], "conflict: leave one"),
    "all": ([*RUN, "attack=noise", "attack.count=8"], "attack.count=8 leaves no honest worker"),
    "z": ([*RUN, "attack=alie", "attack.count=5"], "attack.z=null is undefined for 5 attackers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_runs_are_refused(case):
    overrides, text = REFUSED[case]
    with pytest.raises(ConfigError, match=text):
        configure(*overrides)
