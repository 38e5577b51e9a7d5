"""Every algorithm against its formula, written once more in numpy: with all messages, and with lost ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configure import configure
from decentral.algorithms.features import Feature
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.topology import Weights
from reference_runs import LOCALS, Case, Local, assert_agree, expected, one_way, program, setting
from reference_topology import Array, both_ways
from table import ALGORITHMS, in_rounds

# -- The program computes what the papers' formulas say: every iterate of every worker, to 1e-12 -----------------------

STEPS = 20

LOPSIDED = both_ways([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (2, 5)])
"""Undirected and irregular; Metropolis weights."""

TOPK, SIGN, BF16 = {"name": "topk", "keep": 0.4}, {"name": "sign"}, {"name": "bf16"}
CHUNKS = {"name": "dct_topk", "k": 2, "chunk": 4}
SENDERS = {"period_steps": 2, "mean_of": "senders"}

CASES = [
    Case("allreduce", "ring", 5),
    Case("model_averaging", "ring", 4),
    Case("local_sgd", "ring", 6),
    Case("local_sgd", "ring", 5, {"period_steps": 7}),
    Case("dpsgd", "ring", 8),
    Case("dpsgd", "dbt", 6, place={"split": "interleaved"}),
    Case("dpsgd", "file", 6, edges=LOPSIDED),
    Case("dpsgd", "grid", 6, {"mode": "awc"}),
    Case("dpsgd", "one_peer_exponential", 5, {"mode": "awc"}),
    Case("relaysgd", "chain", 5),
    Case("relaysgd", "chain", 8, {"fill": "previous"}),
    Case("relaysgd", "chain", 6, {"fill": "own"}),
    Case("relaysgd", "chain", 6, {"fill": "count"}),
    Case("relaysgd", "bt", 8, {"overlap": True}),
    Case("relaysgd", "bt", 6, {"fill": "own", "overlap": True, "correct_lr": True}),
    Case("relaysgd", "star", 5, {"fill": "count", "overlap": True}),
    Case("relaysgd", "star", 8, {"correct_lr": True}),
    Case("relaysgd", "dbt", 8),
    Case("relaysgd", "dbt", 5, {"fill": "previous", "overlap": True}, {"split": "interleaved"}),
    Case("relaysgd", "spanning_tree", 32, place={"root": 5}, d=3),
    Case("relaysgd", "chain", 5, {"fill": "count", "initial_count": 1}),
    Case("relaysgd_grad", "chain", 5),
    Case("relaysgd_grad", "bt", 6, {"receiver_lr": True}),
    Case("d2", "ring", 8),
    Case("d2", "dbt", 4),
    Case("exact_diffusion", "star", 5),
    Case("gradient_tracking", "ring", 6),
    Case("gradient_tracking", "one_peer_exponential", 8),
    Case("gradient_tracking", "dbt", 5),
    Case("gradient_tracking", "one_peer_exponential", 6, {"mode": "awc"}),
    Case("extra", "ring", 8),
    Case("extra", "dbt", 6),
    Case("dmsgd", "ring", 6),
    Case("dmsgd", "one_peer_exponential", 5, {"beta": 0.5}),
    Case("dmsgd", "dbt", 6, {"form": "ying", "beta": 0.5}, {"split": "interleaved"}),
    Case("decentlam", "ring", 8),
    Case("decentlam", "star", 5, {"beta": 0.5}),
    Case("async_push_sum", "file", 5, edges=one_way(5)),
    Case("async_push_sum", "dbt", 5),
    Case("push_diging", "file", 5, edges=one_way(5)),
    Case("push_diging", "file", 5, {"mode": "awc"}, edges=one_way(5)),
    Case("push_diging", "one_peer_exponential", 6),
    Case("push_diging", "dbt", 6),
    Case("sgp", "one_peer_exponential", 8),
    Case("sgp", "one_peer_exponential", 8, {"rounds": 2}),
    Case("sgp", "one_peer_exponential", 8, {"rounds": 2, "authors_rounds": True}),
    Case("sgp", "one_peer_exponential", 6, {"rounds": 2}),
    Case("sgp", "file", 5, edges=one_way(5)),
    Case("sgp", "file", 5, {"rounds": 2}, edges=one_way(5)),
    Case("sgp", "dbt", 5, {"rounds": 2}),
    Case("qg_dpsgd", "ring", 8),
    Case("qg_dpsgd", "hypercube", 4, {"nesterov": False, "beta": 0.7}),
    Case("qg_dpsgd", "ring", 5, {"a": 0.3}),
    Case("relay_mean", "chain", 5),
    Case("relay_mean", "dbt", 8),
    Case("allreduce", "ring", 6, compress=TOPK),
    Case("allreduce", "ring", 4, compress=SIGN),
    Case("allreduce", "ring", 4, compress={"name": "artopk", "keep": 0.5}),
    Case("allreduce", "ring", 4, compress=CHUNKS, d=8),
    Case("dpsgd", "ring", 6, compress=SIGN),
    Case("relaysgd", "chain", 5, compress=SIGN),
    Case("relaysgd", "star", 6, {"overlap": True, "fill": "previous"}, compress=SIGN),
    Case("relaysgd", "dbt", 7, {"fill": "count"}, {"split": "interleaved"}, compress=BF16),
    Case("choco", "ring", 6),
    Case("choco", "ring", 6, compress=TOPK),
    Case("choco", "star", 5, {"gamma": 0.3}, compress=SIGN),
    Case("choco", "ring", 4, {"order": "combine_then_compress"}, compress=TOPK),
    Case("choco", "grid", 6, {"start": "zero"}, compress=TOPK),
    Case("beer", "ring", 6),
    Case("beer", "ring", 5, {"gamma": 0.2}, compress=TOPK),
    Case("beer", "grid", 6, {"start": "initial"}, compress=TOPK),
    Case("motef", "ring", 6, {"lam": 0.3}),
    Case("motef", "star", 5, {"lam": 0.3, "gamma": 0.2}, compress=TOPK),
    Case("epidemic_learning", "exponential", 6),
    Case("momentum_tracking", "ring", 6),
    Case("momentum_tracking", "one_peer_exponential", 5, {"beta": 0.5}),
    Case("dadam", "ring", 6),
    Case("dadam", "base_graph", 5, {"mode": "atc", "accumulate_steps": 3}),
    Case("dadam", "ring", 4, {"accumulate_steps": 4, "decoupled_decay": 0.1}),
    Case("diloco", "ring", 6, {"period_steps": 4}),
    Case("diloco", "ring", 5, {"period_steps": 7, "nesterov": False, "outer_momentum": 0.5}),
    Case("desloc", "ring", 6, {"period_steps": 2}),
    Case("desloc", "ring", 5, {"period_steps": 3, "state_periods": [4]}),
    Case("desloc", "ring", 5, {"period_steps": 3, "order": "before"}),
    Case("sparta", "ring", 6, {"share": 0.3}),
    Case("sparta", "ring", 5, {"share": 0.2, "select": "shuffled"}),
    Case("sparta", "ring", 5, {"share": 0.4, "select": "partitioned"}),
    Case("sparta_diloco", "ring", 6, {"share": 0.3, "period_steps": 4}),
    Case("gt_nsgdm", "ring", 6),
    Case("gt_nsgdm", "one_peer_exponential", 5, {"beta": 0.5}),
    Case("gpa", "ring", 5, {"average": 0.9}),
    Case("gt_saga", "ring", 6),
    Case("gt_saga", "one_peer_exponential", 5, {"batch": 3}),
    Case("gt_sarah", "ring", 6, {"inner_steps": 3}),
    Case("gt_sarah", "one_peer_exponential", 5, {"batch": 2, "inner_steps": 2}),
    Case("lt_admm_vr", "grid", 6),
    Case("lt_admm_vr", "ring", 5, {"period_steps": 3, "batch": 2, "refill": False}),
    Case("nids", "ring", 8),
    Case("nids", "star", 5),
    Case("lt_admm", "grid", 6),
    Case("lt_admm", "star", 5, {"period_steps": 3, "beta": 0.1, "alpha": 0.4}),
    Case("powergossip", "ring", 6),
    Case("powergossip", "star", 5, {"mode": "atc", "iterations": 2}),
    Case("slowmo", "ring", 6, {"period_steps": 4}),
    Case("slowmo", "ring", 5, {"period_steps": 3, "base": "dpsgd_awc", "outer_lr": 0.7}),
    Case("slowmo", "file", 5, {"period_steps": 3, "base": "sgp"}, edges=one_way(5)),
    Case("slowmo", "one_peer_exponential", 6, {"period_steps": 3, "base": "sgp", "average": False}),
    Case("slowmo", "ring", 5, {"period_steps": 5, "base": "local_sgd", "in_lr_units": False}),
    Case("streaming_diloco", "ring", 6, {"period_steps": 6, "fragments": 3}),
    Case("streaming_diloco", "ring", 5, {"period_steps": 8, "fragments": 2, "delay_steps": 3, "own_share": 0.5}),
    Case("streaming_diloco", "ring", 4, {"period_steps": 4, "fragments": 2, "split": "interleaved"}),
    Case("noloco", "ring", 6, {"period_steps": 3}),
    Case("noloco", "ring", 5, {"period_steps": 2, "group_size": 2, "consensus": 0.9}),
    Case("gasloc", "ring", 6, {"period_steps": 3, "outer_momentum": 0.5}),
    Case("gasloc", "base_graph", 5, {"period_steps": 2, "outer_momentum": 0.3}),
    Case("sparseloco", "ring", 6, {"period_steps": 3}),
    Case("sparseloco", "ring", 5, {"period_steps": 2}, compress=TOPK),
    Case("sparseloco", "ring", 5, SENDERS, compress=TOPK),
    Case("sparseloco", "ring", 4, SENDERS, compress=CHUNKS | {"transform": "none"}, d=8),
    Case("demo", "ring", 6, {"decay": 0.9}, compress={"name": "dct_topk", "k": 3}, d=8),
    Case("demo", "ring", 4, {"signed": False, "subtract": 0.4, "decoupled_decay": 0.1}, compress=CHUNKS, d=8),
    Case("demo", "ring", 5, {"signed": False}, compress=TOPK),
    Case("dion", "ring", 4),
    Case("teleportation", "ring", 6),
    Case("teleportation", "ring", 5, {"active": 3, "graph": "complete"}),
    *(Case("relaysgd", "chain", n) for n in (1, 2)),
    *(Case("d2", "complete", n) for n in (1, 2)),
    *(Case("gradient_tracking", "chain", n) for n in (1, 2)),
    *(Case("sgp", "one_peer_exponential", n) for n in (1, 2)),
    *(
        Case("relaysgd", "dbt", 4, place={"split": split}, d=d)
        for split in ("interleaved", "contiguous")
        for d in (1, 2)
    ),
]


def with_usual(cases: list[Case], names: Iterable[str]) -> list[Case]:
    """Return the cases, and for each of these algorithms without one that of its row in the table."""
    for name in sorted({*names} & {*ALGORITHMS} - {case.algo for case in cases}):
        row = ALGORITHMS[name]
        cases.append(Case(name, row.nets[0].topology, row.nets[0].n, row.settings["algo"]))
    return cases


def combinations() -> list:
    """Every algorithm with every local optimizer, every option with one of two."""
    met: set[str] = set()
    chosen = []
    for case in with_usual(CASES, in_rounds()):
        names = [("nesterov", "warm_up")[len(chosen) % 2]] if case.algo in met else list(LOCALS)
        met.add(case.algo)
        for place, name in enumerate(names):
            is_quick = len(names) == 1 or place == (len(met) + 2) % len(names)  # optimizers in turn; Adam first
            marks = [] if is_quick else [pytest.mark.slow]
            chosen.append(pytest.param(case, LOCALS[name], id=f"{case}-{name}", marks=marks))
    return chosen


@pytest.mark.parametrize(("case", "local"), combinations())
def test_every_algorithm_follows_its_formula(tmp_path, case: Case, local: Local):
    assert_agree(program(tmp_path, case, local, STEPS), expected(case, local, STEPS))


def mostly_slow(cases: list[Case]) -> list[Any]:
    """All of them; four of five are slow tests."""
    return [case if place % 5 == 0 else pytest.param(case, marks=pytest.mark.slow) for place, case in enumerate(cases)]


APART = [
    Case("allreduce", "ring", 4, compress={"name": "artopk", "keep": 0.5}),
    Case("dpsgd", "ring", 4, compress=SIGN),
    Case("relaysgd", "star", 4, {"overlap": True}, compress=BF16),
    Case("sgp", "file", 4, {"rounds": 2}, edges=one_way(4)),
]
"""What test_conformance.py does not compare between one process and several."""


@pytest.mark.parametrize("case", APART, ids=str)
def test_two_processes_follow_the_same_formula(tmp_path, worlds, case: Case):
    local = LOCALS["decay"]
    assert_agree(program(tmp_path, case, local, STEPS, processes=2, worlds=worlds), expected(case, local, STEPS))


def test_no_two_cases_of_the_reference_are_the_same_run():
    """So that agreement with the reference tells them apart; but workers in step make asynchronous push-sum sgp."""
    apart = [case for case in CASES if case.n == 5 and case.algo != "async_push_sum"]
    x = {str(case): expected(case, LOCALS["adam"], STEPS) for case in apart}
    for one, other in itertools.combinations(x, 2):
        assert np.abs(x[one] - x[other]).max() > 1e-3, f"{one} is {other}"


def test_push_sum_weights_differ_from_one_on_the_directed_graph():
    s = setting(Case("sgp", "file", 5, edges=one_way(5)), LOCALS["sgd"])
    w = s.mix(np.ones((5, 7)), 0)
    assert w.min() < 0.8 and w.max() > 1.2


@pytest.mark.parametrize(
    ("case", "options", "same"),
    [
        (Case("sgp", "one_peer_exponential", 8, {"rounds": 2}), {"authors_rounds": True}, 0),
        (Case("sgp", "one_peer_exponential", 8), {"authors_rounds": True}, 6),  # one round: t * (1 + 0) is t
        (Case("relaysgd", "chain", 8), {"fill": "previous"}, 1),  # x^0 is x_i^t in the first step
        (Case("relaysgd", "dbt", 8), {"fill": "previous"}, 1),
        (Case("relaysgd", "star", 8), {"fill": "previous"}, 6),  # all have arrived in the second step
        (Case("relaysgd", "star", 8, {"overlap": True}), {"fill": "previous"}, 1),
    ],
    ids=str,
)
def test_a_setting_makes_a_difference_from_the_step_on_that_its_formula_says(
    tmp_path, case: Case, options: dict[str, Any], same: int
):
    """`same`: of how many steps the iterates are those of the default."""
    other = replace(case, options=case.options | options)
    usual, changed = (program(tmp_path, one, LOCALS["sgd"], 6) for one in (case, other))
    equal = [bool(np.abs(x - y).max() < 1e-12) for x, y in zip(usual[1:], changed[1:], strict=True)]
    assert equal[:same] == [True] * same and not any(equal[same:]), equal


# -- What each algorithm makes of lost messages: `Losses` says which they are, `reference` what follows ----------------

SEED = 7
RELIABLE = {name for name, cls in in_rounds().items() if Feature.message_loss not in cls.supports}
LOSSY = [
    Case("dpsgd", "ring", 5),
    Case("dpsgd", "dbt", 6, place={"split": "interleaved"}),
    Case("dpsgd", "one_peer_exponential", 6, {"mode": "awc"}),
    Case("relaysgd", "bt", 8, {"fill": "previous"}),
    Case("relaysgd", "chain", 6, {"fill": "initial"}),
    Case("relaysgd", "chain", 5),
    Case("relaysgd", "star", 5, {"fill": "own", "overlap": True}),
    Case("relaysgd", "dbt", 6, {"fill": "count"}),
    Case("relaysgd", "dbt", 5, {"fill": "previous", "overlap": True}, {"split": "interleaved"}),
    Case("relaysgd_grad", "dbt", 6),
    Case("d2", "ring", 5),
    Case("exact_diffusion", "star", 5),
    Case("gradient_tracking", "ring", 6),
    Case("gradient_tracking", "dbt", 5),
    Case("gradient_tracking", "ring", 6, {"mode": "awc"}),
    Case("extra", "star", 5),
    Case("dmsgd", "ring", 6),
    Case("dmsgd", "dbt", 6, {"form": "ying"}),
    Case("decentlam", "ring", 5, {"beta": 0.5}),
    Case("async_push_sum", "one_peer_exponential", 6),
    Case("async_push_sum", "file", 5, edges=one_way(5)),
    Case("async_push_sum", "dbt", 6),
    Case("push_diging", "one_peer_exponential", 6),
    Case("push_diging", "file", 5, edges=one_way(5)),
    Case("push_diging", "file", 5, {"mode": "awc"}, edges=one_way(5)),
    Case("sgp", "one_peer_exponential", 6, {"rounds": 2}),
    Case("sgp", "file", 5, {"rounds": 2}, edges=one_way(5)),
    Case("sgp", "dbt", 6, {"rounds": 2}),
    Case("qg_dpsgd", "ring", 8),
    Case("relay_mean", "chain", 5),
    Case("relay_mean", "dbt", 6),
    Case("dadam", "ring", 5),
    Case("epidemic_learning", "exponential", 6),
    Case("gasloc", "ring", 6, {"period_steps": 3, "outer_momentum": 0.5}),
    Case("momentum_tracking", "ring", 6, {"beta": 0.3}),
    Case("gt_nsgdm", "ring", 6, {"beta": 0.3}),
    Case("nids", "ring", 5),
    Case("gt_saga", "ring", 5),
    Case("gt_sarah", "ring", 5),
    Case("slowmo", "file", 5, {"period_steps": 3, "base": "sgp"}, edges=one_way(5)),
]


def with_loss(folder: Path, case: Case, local: str, p: float, **keys: Any) -> Array:
    return program(folder, case, LOCALS[local], STEPS, network={"drop_probability": p}, seed=SEED, **keys)


def lost(p: float):
    losses = Losses(p, SEED)
    return lambda round, piece, source, target: bool(
        losses.lost(round, piece, np.array([source]), np.array([target]))[0]
    )


@pytest.mark.parametrize("case", mostly_slow(with_usual(LOSSY, set(in_rounds()) - RELIABLE)), ids=str)
def test_lost_messages_are_repaired_by_rule(tmp_path, case: Case):
    """Gossip and push-sum: the remaining weights grow to the old sum. Relay: the message and its count are zero."""
    assert_agree(with_loss(tmp_path, case, "nesterov", 0.4), expected(case, LOCALS["nesterov"], STEPS, lost(0.4)))


def test_an_all_reduce_refuses_message_loss():
    for algo in sorted(RELIABLE):
        with pytest.raises(ConfigError, match=r"network\.drop_probability=0\.1"):
            configure("task=quadratics", "topology=ring", f"algo={algo}", "network.drop_probability=0.1")


def test_a_worker_that_hears_nothing_and_has_no_weight_of_its_own_keeps_its_models(tmp_path):
    """W_ij = 1/2 on both sides of the ring, W_ii = 0; most of the messages are lost."""
    n, p = 5, 0.8
    edges = {(i, j) for i in range(n) for j in ((i + 1) % n, (i - 1) % n)}
    path = tmp_path / "halves.csv"
    path.write_text("".join(f"{j},{i},0.5\n" for j, i in sorted(edges)))
    case = Case("dpsgd", "file", n, place={"path": str(path), "directed": True})
    x = with_loss(tmp_path, case, "sgd", p)
    s = setting(Case("dpsgd", "ring", n), LOCALS["sgd"], lost(p))
    s.pieces[0].matrices = [np.array([[0.5 * ((j, i) in edges) for j in range(n)] for i in range(n)])]
    wanted = [s.start()]
    for t in range(STEPS):
        wanted.append(s.mix(wanted[-1] + s.update(wanted[-1], t), t))
    assert (np.diag(s.matrix(0, 0)) == 1).any()
    assert_agree(x, np.array(wanted))


def frequency(p: float, **fixed: int) -> float:
    """The share of messages lost in 20 rounds, on 2 pieces, between 40 workers; some of these at one value."""
    axes = {"round": range(20), "piece": range(2), "src": range(40), "dst": range(40)}
    axes |= {name: [value] for name, value in fixed.items()}
    piece, src, dst = np.meshgrid(axes["piece"], axes["src"], axes["dst"], indexing="ij")
    return float(np.mean([Losses(p, SEED).lost(round, piece, src, dst) for round in axes["round"]]))


def test_messages_are_lost_with_the_probability_asked_for():
    sizes = {"round": 20, "piece": 2, "src": 40, "dst": 40}
    for p, fixed in ((0.01, {}), (0.5, {"round": 0}), (0.1, {"piece": 1}), (0.1, {"src": 3}), (0.5, {"dst": 3})):
        number = np.prod([size for name, size in sizes.items() if name not in fixed])
        assert abs(frequency(p, **fixed) - p) < 4 * np.sqrt(p * (1 - p) / number)


def test_losses_are_independent_of_round_piece_direction_and_seed():
    """Two messages whose addresses differ in one thing are lost together as rarely as chance has it."""
    src, dst = np.meshgrid(np.arange(100), np.arange(100), indexing="ij")
    one = Losses(0.5, SEED).lost(3, 0, src, dst)
    others = [
        Losses(0.5, SEED).lost(4, 0, src, dst),
        Losses(0.5, SEED).lost(3, 1, src, dst),
        Losses(0.5, SEED).lost(3, 0, dst, src),
        Losses(0.5, SEED + 1).lost(3, 0, src, dst),
    ]
    for other in others:
        assert abs(np.mean(one[src != dst] == other[src != dst]) - 0.5) < 0.03


def test_push_sum_weights_keep_their_sum_however_much_is_lost():
    """On an irregular graph too, where neither the receivers' weights nor the number of messages are equal."""
    net = LocalNetwork(components("topology")["star"](weights=Weights.uniform).schedule(6), Losses(0.5, SEED))
    w = net.known_ones()
    for round in range(300):
        w = net.mix_known(w, round)
    assert w.sum().item() == pytest.approx(6, rel=1e-12)
    assert w.min().item() > 0.05
    net = LocalNetwork(components("topology")["ring"]().schedule(6), Losses(0.5, SEED))  # whose rows sum to one, too
    _, w = net.push(net.known_ones(), net.known_ones(), 0)
    assert w.sum().item() == pytest.approx(6, rel=1e-12) and w.std() > 0
