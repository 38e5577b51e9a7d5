"""What each algorithm makes of lost messages: `Losses` says which they are, `reference` what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.weights import Weights
from reference_runs import LOCALS, Case, assert_agree, expected, one_way, program, setting
from reference_topology import Array
from table import in_rounds

STEPS = 60
SEED = 7
RELIABLE = {"allreduce", "model_averaging", "local_sgd", "choco", "beer", "motef"} | {
    *("diloco", "streaming_diloco", "noloco", "sparseloco", "teleportation"),
}

CASES = [
    Case("dpsgd", "ring", 5),
    Case("dpsgd", "dbt", 6, place={"split": "interleaved"}),
    Case("dpsgd", "one_peer_exponential", 6, {"mode": "awc"}),
    Case("relaysgd", "chain", 5),
    Case("relaysgd", "chain", 6, {"fill": "initial"}),
    Case("relaysgd", "bt", 8, {"fill": "previous"}),
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
]

SPREAD = [
    Case("dpsgd", "ring", 4),
    Case("sgp", "file", 4, {"rounds": 2}, edges=one_way(4)),
    Case("async_push_sum", "file", 4, edges=one_way(4)),
    Case("push_diging", "file", 4, edges=one_way(4)),
    Case("relaysgd", "dbt", 4, {"fill": "count"}),
]


def with_loss(folder: Path, case: Case, local: str, p: float, **keys: Any) -> Array:
    return program(folder, case, LOCALS[local], STEPS, network={"drop_probability": p}, seed=SEED, **keys)


def lost(p: float):
    losses = Losses(p, SEED)
    return lambda round, piece, source, target: bool(
        losses.lost(round, piece, np.array([source]), np.array([target]))[0]
    )


@pytest.mark.parametrize(("local", "p"), [("nesterov", 0.4), ("warm_up", 0.02)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lost_messages_are_repaired_by_rule(tmp_path, case: Case, local: str, p: float):
    """Gossip and push-sum: the remaining weights grow to the old sum. Relay: the message and its count are zero."""
    assert_agree(with_loss(tmp_path, case, local, p), expected(case, LOCALS[local], STEPS, lost(p)))


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("case", SPREAD, ids=str)
def test_the_same_messages_are_lost_whatever_the_number_of_processes(tmp_path, worlds, case: Case, processes: int):
    wanted = expected(case, LOCALS["decay"], STEPS, lost(0.3))
    assert_agree(with_loss(tmp_path, case, "decay", 0.3, processes=processes, worlds=worlds), wanted)


def test_every_algorithm_without_an_all_reduce_is_tried():
    assert {case.algo for case in CASES} == set(in_rounds()) - RELIABLE


@pytest.mark.parametrize("algo", sorted(RELIABLE))
def test_an_all_reduce_refuses_message_loss(algo: str):
    with pytest.raises(ConfigError, match=r"network\.drop_probability=0\.1"):
        compose(["task=quadratics", "topology=ring", f"algo={algo}", "network.drop_probability=0.1"])


@pytest.mark.parametrize("p", ["1", "1.5", "-0.1", "nan"])
def test_a_probability_of_loss_lies_between_zero_and_one(p: str):
    with pytest.raises(ConfigError, match="drop_probability"):
        compose(["task=quadratics", "topology=ring", "algo=dpsgd", f"network.drop_probability={p}"])


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


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("fixed", [{}, {"round": 0}, {"piece": 1}, {"src": 3}, {"dst": 3}], ids=str)
def test_messages_are_lost_with_the_probability_asked_for(p: float, fixed: dict[str, int]):
    sizes = {"round": 20, "piece": 2, "src": 40, "dst": 40}
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


def test_a_higher_probability_loses_more_of_the_same_messages():
    src, dst = np.meshgrid(np.arange(50), np.arange(50), indexing="ij")
    few, many = (Losses(p, SEED).lost(0, 0, src, dst) for p in (0.1, 0.3))
    assert (many | ~few).all() and many.sum() > few.sum() > 0


def test_agreement_survives_loss_where_rows_sum_to_one(tmp_path):
    """With learning rate 0 nobody moves from the common start, however many messages are lost."""
    for case in (Case("dpsgd", "ring", 6), Case("sgp", "file", 5, edges=one_way(5)), Case("relaysgd", "dbt", 6)):
        x = with_loss(tmp_path, case, "sgd", 0.5, lr=0.0)
        np.testing.assert_allclose(x, np.broadcast_to(x[0, 0], x.shape), rtol=1e-12)


def test_push_sum_weights_keep_their_sum_however_much_is_lost():
    """On an irregular graph too, where neither the receivers' weights nor the number of messages are equal."""
    net = LocalNetwork(components("topology")["star"](weights=Weights.uniform).schedule(6), Losses(0.5, SEED))
    w = net.known_ones()
    for round in range(300):
        w = net.mix_known(w, round)
    assert w.sum().item() == pytest.approx(6, rel=1e-12)
    assert w.min().item() > 0.05
