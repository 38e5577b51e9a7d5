"""Topologies that change with the round or are drawn: their matrices, how fast they average, and to which mean."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.script.components import chosen
from decentral.topology import facts
from decentral.topology.graph import is_connected
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Weights
from reference_topology import pieces

# -- Topologies that change with the round: who sends to whom, with which weights, and what is refused

TOPOLOGIES = components("topology")


def schedule(name: str, n: int, **fields: Any) -> Rounds:
    return TOPOLOGIES[name](**fields).schedule(n)


def matrices(s: Rounds) -> list[np.ndarray]:
    """Those of one period."""
    return [s.matrices(round)[0] for round in range(s.period)]


GRAPHS = ("ring", "grid", "star", "bt", "complete", "exponential")
PLACES: list[tuple[str, int, dict[str, Any]]] = [
    *(("one_peer", n, {"graph": graph}) for graph in GRAPHS for n in (3, 4, 6, 8, 15)),
    ("one_peer", 6, {"graph": "ring", "direction": "left"}),
    ("one_peer", 12, {"graph": "exponential", "base": 3}),
    ("one_peer", 9, {"graph": "symmetric_exponential", "base": 2}),
    ("one_peer", 5, {"graph": "star", "center": 2}),
    *(("one_peer_exponential", n, {}) for n in (3, 4, 6, 8, 15)),
    *(("one_peer_exponential", n, {"neighbors": m}) for n, m in ((3, 2), (6, 3), (8, 2), (16, 4))),
    *(
        (f"inner_outer_{kind}", M * L, {"workers_per_machine": L})
        for kind in ("ring", "exponential")
        for M in (1, 2, 3, 5)
        for L in (3, 4, 6, 7)
    ),
]


def test_the_matrices_of_all_rounds_are_those_of_the_reference():
    for weights, (name, n, place) in itertools.product([Weights.auto, Weights.uniform, Weights.pull], PLACES):
        ours = matrices(schedule(name, n, **place, weights=weights))
        (part,) = pieces(name, n, 1, weights=weights.name, **place)
        assert len(ours) == len(part.matrices)
        for W, expected in zip(ours, part.matrices, strict=True):
            np.testing.assert_allclose(W, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"graph": "star", "direction": "left"}, "topology.direction=left is not a setting of topology.graph=star"),
        ({"graph": "base_graph"}, "topology.graph=base_graph has matrices, not graphs"),
    ],
)
def test_a_setting_that_the_graph_of_one_peer_does_not_have_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        chosen("topology", "one_peer", settings)


def test_a_schedule_that_hardly_ever_repeats_is_refused_before_it_is_gone_through(tmp_path):
    leaves = [0, 6, 7, 8, 10, 12]  # of centers that are joined to center 0: the degrees are 5, 7, 8, 9, 11 and 13
    first, edges = len(leaves), [(0, center) for center in range(1, len(leaves))]
    for center, number in enumerate(leaves):
        edges += [(center, first + k) for k in range(number)]
        first += number
    path = tmp_path / "graph.npz"
    np.savez(path, edges=np.array(edges))
    with pytest.raises(ConfigError, match=rf"num_workers={first} repeats only after more than 10000 rounds.*\.$"):
        schedule("one_peer", first, graph="file", path=str(path))


# -- How fast topologies that change with the round average, and to which mean


def product(s: Rounds, rounds: int, start: int = 0) -> np.ndarray:
    """W of the round start + rounds - 1 times ... times W of the round `start`."""
    P = np.eye(s.num_workers)
    for round in range(start, start + rounds):
        P = s.matrices(round)[0] @ P
    return P


def contraction(s: Rounds, rounds: int = 20) -> float:
    """By how much the first rounds shrink disagreement at least: the spectral norm of their product minus J."""
    return float(np.linalg.norm(product(s, rounds) - 1 / s.num_workers, 2))


def test_p_rounds_of_the_one_peer_exponential_graph_are_the_exact_average_of_2_to_the_p_from_any_phase():
    for name, p in itertools.product(["one_peer", "one_peer_exponential"], [1, 2, 3, 4, 5]):
        s = schedule(name, 2**p)
        for start in range(2 * p):
            assert np.array_equal(product(s, p, start), np.full((2**p, 2**p), 2.0**-p))
            assert start or not np.allclose(product(s, p - 1, start), 2.0**-p)


def test_twenty_rounds_contract_as_much_as_those_of_bluefog():
    for name, n, fields, published, half_a_digit in [
        ("one_peer_exponential", 6, {}, 4.5e-5, 0.05e-5),
        ("one_peer_exponential", 12, {}, 4.0e-4, 0.05e-4),
        ("one_peer", 8, {"graph": "ring"}, 0.21, 0.005),
        ("inner_outer_exponential", 8, {"workers_per_machine": 4}, 4.4e-4, 0.05e-4),
        ("inner_outer_exponential", 16, {"workers_per_machine": 4}, 5.3e-2, 0.05e-2),
        ("inner_outer_exponential", 24, {"workers_per_machine": 8}, 0.14, 0.005),
        ("inner_outer_ring", 16, {"workers_per_machine": 4}, 0.13, 0.005),
    ]:
        assert contraction(schedule(name, n, **fields, weights=Weights.pull)) == pytest.approx(
            published, abs=half_a_digit
        )
        assert contraction(schedule(name, n, **fields)) == pytest.approx(published, abs=half_a_digit)


@pytest.mark.parametrize(("graph", "bias", "limit"), [("grid", 0.17, -0.129), ("star", 0.44, 0.453)])
def test_pull_weights_on_irregular_rounds_agree_on_a_wrong_mean_and_push_sum_on_the_right_one(graph, bias, limit):
    x = np.arange(8.0)
    pull, push = (schedule("one_peer", 8, graph=graph, weights=w) for w in (Weights.pull, Weights.uniform))
    assert abs((product(pull, 20) @ x).mean() - 3.5) == pytest.approx(bias, abs=0.005)
    np.testing.assert_allclose(product(pull, 420) @ x, 3.5 + limit, atol=5e-4)
    P = product(push, 420)
    np.testing.assert_allclose((P @ x) / P.sum(axis=1), 3.5, rtol=1e-12)


# -- Graphs with exact agreement after finitely many rounds, graphs that are drawn, and the facts about them


@pytest.mark.parametrize("name", ["base_graph", "simple_base_graph"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_all_workers_agree_exactly_at_the_end_of_a_cycle_whatever_their_number(name: str, k: int) -> None:
    """And the rounds are those of the algorithms, carried out one node after the other."""
    for n in (*range(2, 27), 63, 128):
        rounds = schedule(name, n, neighbors=k)
        x = np.sin(np.arange(n) ** 2 + 1.0)
        mean = x.mean()
        for round in range(rounds.period):
            (W,) = rounds.mixing(round)
            assert W.graph.indegree.max() <= k and W.weight.min() > 0 and W.is_symmetric(0.0)
            x = W.apply(x)
        assert np.abs(x - mean).max() <= 1e-12
        assert name != "base_graph" or rounds.period <= 2 * math.log(n, k + 1) + 2 + 1e-9
        if n <= 63:
            (piece,) = pieces(name, n, 1, neighbors=k)
            np.testing.assert_allclose(np.array(matrices(rounds)), np.array(piece.matrices), rtol=0, atol=1e-15)


ROUNDS = {5: (5, 3, 3), 6: (4, 2, 2), 7: (5, 4, 3), 9: (7, 2, 2), 11: (7, 5, 4), 13: (7, 5, 4), 22: (8, 6, 5),
          24: (6, 4, 3), 25: (9, 6, 5), 31: (9, 7, 5), 243: (15, 5, 9)}  # fmt: skip


def test_the_number_of_rounds_is_that_of_the_authors_matrices() -> None:
    for n, known in ROUNDS.items():
        for k, count in enumerate(known, start=1):
            if n < 243 or k == 2:  # log_3 243 in floats is below 5
                assert schedule("base_graph", n, neighbors=k).period == count


@pytest.mark.parametrize("n", [2, 5, 8])
def test_equistatic_is_the_mean_of_the_shifts_that_were_drawn(n: int) -> None:
    topology = TOPOLOGIES["equistatic"](directed=True, num_hops=7, seed=3)
    wanted = np.zeros((n, n))
    for u in topology.hops(n):
        for i in range(n):
            wanted[(i + u) % n, i] += (n - 1) / n / 7
            wanted[i, i] += 1 / n / 7
    np.testing.assert_allclose(topology.schedule(n).matrices(0)[0], wanted, rtol=0, atol=1e-15)
    both = schedule("equistatic", n, num_hops=7, seed=3).matrices(0)[0]
    np.testing.assert_allclose(both, (wanted + wanted.T) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("n", [2, 7, 12])
def test_equidyn_has_one_message_to_and_from_a_worker_over_one_hop(n: int, directed: bool) -> None:
    rounds, eta = schedule("equidyn", n, directed=directed, eta=0.4, drawn_rounds=20), 0.4
    hops = set()
    for W in matrices(rounds):
        off = W - np.diag(np.diag(W))
        assert ((off > 0).sum(axis=0) <= 1).all() and set(np.round(off[off > 0], 12)) == {round(eta * (n - 1) / n, 12)}
        far = {int((i - j) % n) for i, j in np.argwhere(off > 0)}
        assert len(far) == 1 if directed else len({min(u, n - u) for u in far}) == 1
        assert directed or (W == W.T).all()
        hops |= far
    assert n == 2 or len(hops) > 1


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (6, 3), (9, 8), (30, 3), (5, None)])
def test_a_random_regular_graph_is_regular_and_connected_and_another_one_for_another_seed(n: int, degree: int) -> None:
    one, again, other = (schedule("random_regular", n, degree=degree, seed=seed).mixing(0)[0] for seed in (0, 0, 1))
    expected = 4 if degree is None else degree
    assert (one.graph.indegree == expected).all() and is_connected(one.graph)
    np.testing.assert_allclose(one.weight, 1 / (expected + 1))
    assert (one.src == again.src).all()
    assert 2 * expected >= n - 1 or not (one.src == other.src).all()


def test_every_edge_is_about_equally_likely_in_a_random_regular_graph() -> None:
    rounds = schedule("random_regular", 8, degree=3, changing=True, drawn_rounds=500)
    share = sum((W > 0) for W in matrices(rounds)) / 500
    off = share[~np.eye(8, dtype=bool)]
    assert abs(off.mean() - 3 / 7) < 1e-12 and np.abs(off - 3 / 7).max() < 5 * math.sqrt(3 / 7 * 4 / 7 / 500)


def test_in_epidemic_learning_in_degrees_are_binomial() -> None:
    n, s, count = 12, 3, 1000
    rounds = schedule("epidemic", n, sends=s, drawn_rounds=count)
    seen = np.zeros(n)
    for round in range(count):
        (W,) = rounds.mixing(round)
        assert (W.graph.outdegree == s).all()
        np.testing.assert_allclose(W.diagonal, 1 / (1 + W.graph.indegree))
        seen += np.bincount(W.graph.indegree, minlength=n)
    p = s / (n - 1)
    wanted = np.array([math.comb(n - 1, d) * p**d * (1 - p) ** (n - 1 - d) for d in range(n)])
    assert np.abs(seen / (n * count) - wanted).max() < 0.015
    assert seen[0] > 0  # some hear of nobody


def test_the_facts_are_what_is_known_of_well_known_graphs() -> None:
    assert facts.told(schedule("complete", 8)) == "exact after 1 round, spectral gap 1, 56 messages a round"
    assert facts.rounds_to_consensus(schedule("one_peer_exponential", 16)) == 4
    assert facts.rounds_to_consensus(schedule("one_peer_exponential", 12)) is None
    assert facts.rounds_to_consensus(schedule("equidyn", 4)) is None  # it comes near, but not at once
    for n in (16, 1100):
        gap = (2 - 2 * math.cos(2 * math.pi / n)) / 3
        assert facts.spectral_gap(schedule("ring", n)) == pytest.approx(gap, rel=1e-3)
    assert facts.spectral_gap(schedule("exponential", 16)) == pytest.approx(2 / 5)
