"""Graphs with exact agreement after finitely many rounds, graphs that are drawn, and the facts about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.topology import facts
from decentral.topology.graph import is_connected
from decentral.topology.rounds import Rounds
from reference_topology import pieces

TOPOLOGIES = components("topology")


def schedule(name: str, n: int, **fields: Any) -> Rounds:
    return TOPOLOGIES[name](**fields).schedule(n)


def matrices(rounds: Rounds) -> list[np.ndarray]:
    return [rounds.matrices(round)[0] for round in range(rounds.period)]


# -- Base-(k+1) --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base_graph", "simple_base_graph"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_all_workers_agree_exactly_at_the_end_of_a_cycle_whatever_their_number(name: str, k: int) -> None:
    for n in range(2, 129):
        rounds = schedule(name, n, neighbors=k)
        x = np.sin(np.arange(n) ** 2 + 1.0)
        mean = x.mean()
        for round in range(rounds.period):
            (W,) = rounds.mixing(round)
            assert W.graph.indegree.max() <= k and W.weight.min() > 0 and W.is_symmetric(0.0)
            assert np.abs(np.bincount(W.dst, W.weight) - 1).max() <= 1e-14
            x = W.apply(x)
        assert np.abs(x - mean).max() <= 1e-12
        assert name != "base_graph" or rounds.period <= 2 * math.log(n, k + 1) + 2 + 1e-9


@pytest.mark.parametrize("name", ["base_graph", "simple_base_graph"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_rounds_are_those_of_the_algorithms_carried_out_one_node_after_the_other(name: str, k: int) -> None:
    for n in (*range(2, 34), 50, 63):
        (piece,) = pieces(name, n, 1, neighbors=k)
        ours = matrices(schedule(name, n, neighbors=k))
        assert len(ours) == len(piece.matrices)
        np.testing.assert_allclose(np.array(ours), np.array(piece.matrices), rtol=0, atol=1e-15)


ROUNDS = {5: (5, 3, 3), 6: (4, 2, 2), 7: (5, 4, 3), 9: (7, 2, 2), 11: (7, 5, 4), 13: (7, 5, 4), 22: (8, 6, 5),
          24: (6, 4, 3), 25: (9, 6, 5), 31: (9, 7, 5), 243: (15, 5, 9)}  # fmt: skip


@pytest.mark.parametrize("n", ROUNDS)
def test_the_number_of_rounds_is_that_of_the_authors_matrices(n: int) -> None:
    known = ROUNDS[n] if n < 243 else (None, 5, None)  # log_3 243 in floats is below 5
    for k, count in enumerate(known, start=1):
        assert count in (None, schedule("base_graph", n, neighbors=k).period)


def test_with_one_neighbour_and_a_power_of_two_they_are_the_matchings_of_the_hypercube() -> None:
    for bit, W in enumerate(matrices(schedule("base_graph", 16))):
        assert all(W[i, i ^ (1 << bit)] == W[i, i] == 0.5 for i in range(16))


def test_thousands_of_workers_agree_too() -> None:
    for n in (4096, 4095):
        rounds = schedule("base_graph", n)
        assert facts.rounds_to_consensus(rounds) == rounds.period


# -- EquiTopo ----------------------------------------------------------------------------------------------------------


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


def test_every_shift_once_is_the_exact_average() -> None:
    from decentral.topology.equistatic import shifts

    n = 6
    W = shifts(n, np.arange(1, n), np.full(n - 1, 1 / n)).dense()
    np.testing.assert_allclose(W, np.full((n, n), 1 / n), rtol=0, atol=1e-15)


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


# -- drawn -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "degree"), [(1, 0), (2, 1), (6, 3), (9, 4), (9, 8), (30, 3), (12, 10), (5, None)])
def test_a_random_regular_graph_is_regular_and_connected_and_another_one_for_another_seed(n: int, degree: int) -> None:
    one, again, other = (schedule("random_regular", n, degree=degree, seed=seed).mixing(0)[0] for seed in (0, 0, 1))
    expected = 4 if degree is None else degree
    assert (one.graph.indegree == expected).all() and (n == 1 or is_connected(one.graph))
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


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("random_regular", {"degree": 3}, "num_workers=5 are both odd"),
        ("random_regular", {"degree": 5}, "topology.degree=5 .* use 1 to 4"),
        ("random_regular", {"degree": 1}, "both odd"),
        ("epidemic", {"sends": 5}, "topology.sends=5 .* use 1 to 4"),
        ("base_graph", {"neighbors": 0}, "topology.neighbors=0 .* at least 1"),
        ("equidyn", {"eta": 1.5}, r"topology.eta=1.5 .* at most 1"),
        ("equidyn", {"drawn_rounds": 0}, "topology.drawn_rounds=0 .* from 1 to"),
    ],
)
def test_what_does_not_exist_is_refused(name: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        schedule(name, 5, **fields)


# -- facts -------------------------------------------------------------------------------------------------------------


def test_the_facts_are_what_is_known_of_well_known_graphs() -> None:
    assert facts.told(schedule("complete", 8)) == "exact after 1 round, spectral gap 1, 56 messages a round"
    assert facts.rounds_to_consensus(schedule("one_peer_exponential", 16)) == 4
    assert facts.rounds_to_consensus(schedule("one_peer_exponential", 12)) is None
    assert facts.rounds_to_consensus(schedule("equidyn", 4)) is None  # it comes near, but not at once
    for n in (16, 1100):
        gap = (2 - 2 * math.cos(2 * math.pi / n)) / 3
        assert facts.spectral_gap(schedule("ring", n)) == pytest.approx(gap, rel=1e-3)
    assert facts.spectral_gap(schedule("exponential", 16)) == pytest.approx(2 / 5)


def test_the_estimated_gap_is_the_exact_one() -> None:
    rounds = schedule("one_peer_exponential", 12)
    doubled = Rounds(12, lambda round: rounds.mixing(round), period=20 * rounds.period)
    assert facts.spectral_gap(doubled) == pytest.approx(facts.spectral_gap(rounds), rel=1e-2)
