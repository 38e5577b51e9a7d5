"""Topologies that change with the round: who sends to whom, with which weights, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.script.components import topology_from
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.requirements import Need, check
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights
from reference_topology import pieces

TOPOLOGIES = components("topology")


def schedule(name: str, n: int, **fields: Any) -> Rounds:
    return TOPOLOGIES[name](**fields).schedule(n)


def matrices(s: Rounds) -> list[np.ndarray]:
    """Those of one period."""
    return [s.matrices(round)[0] for round in range(s.period)]


def sends(W: np.ndarray) -> list[list[int]]:
    """To whom each worker sends."""
    return [[i for i in np.flatnonzero(W[:, j]).tolist() if i != j] for j in range(len(W))]


# -- who sends to whom -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("weights", [Weights.auto, Weights.uniform, Weights.pull])
@pytest.mark.parametrize(("name", "n", "place"), PLACES)
def test_the_matrices_of_all_rounds_are_those_of_the_reference(name, n, place, weights):
    ours = matrices(schedule(name, n, **place, weights=weights))
    (part,) = pieces(name, n, 1, weights=weights.name, **place)
    assert len(ours) == len(part.matrices)
    for W, expected in zip(ours, part.matrices, strict=True):
        np.testing.assert_allclose(W, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12, 16, 33])
def test_one_peer_of_the_exponential_graph_is_the_one_peer_exponential_graph(n):
    ours, known = schedule("one_peer", n), schedule("one_peer_exponential", n)
    assert ours.period == known.period
    assert all(np.array_equal(*pair) for pair in zip(matrices(ours), matrices(known), strict=True))


def test_one_peer_goes_around_clockwise_beginning_at_oneself():
    star = schedule("one_peer", 4, graph="star")
    assert [sends(W) for W in matrices(star)] == [[[k], [0], [0], [0]] for k in (1, 2, 3)]
    grid = matrices(schedule("one_peer", 6, graph="grid"))  # 0 1 2 above 3 4 5
    assert [sends(W)[1] for W in grid] == [[2], [4], [0], [2], [4], [0]]
    assert [sends(W)[5] for W in grid] == [[2], [4]] * 3


@pytest.mark.parametrize(
    ("graph", "n", "period"),
    [("ring", 8, 2), ("star", 8, 7), ("grid", 8, 6), ("bt", 8, 3), ("chain", 5, 2), ("complete", 8, 7)],
)
def test_one_peer_repeats_after_the_least_common_multiple_of_the_degrees(graph, n, period):
    assert schedule("one_peer", n, graph=graph).period == period


def test_one_peer_of_two_trees_takes_an_edge_of_each():
    s = schedule("one_peer", 6, graph="dbt")
    assert s.num_pieces == 2 and s.period == 3
    bt = schedule("one_peer", 6, graph="bt")
    assert all(np.array_equal(s.matrices(round)[0], bt.matrices(round)[0]) for round in range(3))


def test_one_peer_of_a_directed_file_sends_along_its_edges_only(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, edges=np.array([[0, 1], [1, 2], [2, 0]]))
    assert schedule("one_peer", 3, graph="file", path=str(path)).period == 2

    one_way = schedule("one_peer", 3, graph="file", path=str(path), directed=True)
    assert one_way.period == 1 and sends(matrices(one_way)[0]) == [[1], [2], [0]]


def test_one_peer_of_a_matrix_sends_along_its_edges():
    W = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])  # [i, j]: what i takes from j
    s = topology_from("one_peer", {"graph": W}).schedule(3)
    assert [sends(M) for M in matrices(s)] == [[[1], [2], [0]]]
    two = topology_from("one_peer", {"graph": (W + W.T).tolist(), "weights": "metropolis"}).schedule(3)
    assert two.period == 2 and all(np.array_equal(M, M.T) for M in matrices(two))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"graph": "star", "direction": "left"},
            "topology.direction=left is read with topology.graph=ring only, not star",
        ),
        ({"graph": "base_graph"}, "topology.graph=base_graph has matrices, not graphs"),
        ({"graph": "ring", "base": 3}, "topology.graph=exponential or .*symmetric_exponential only"),
        ({"graph": "file", "path": "x", "center": 1}, "topology.center=1 is read with topology.graph=star only"),
        ({"graph": [np.eye(3)] * 2}, r"one square matrix \[n, n\], not numbers of shape \[2, 3, 3\]"),
        ({"graph": np.eye(3), "direction": "left"}, "'direction' is no setting of one_peer over a matrix"),
    ],
)
def test_a_setting_that_the_graph_of_one_peer_does_not_have_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        topology_from("one_peer", settings)


@pytest.mark.parametrize("kind", ["ring", "exponential"])
@pytest.mark.parametrize(("n", "L"), [(3, 3), (4, 4), (8, 4), (12, 3), (24, 8), (35, 5), (36, 4)])
def test_with_machines_everybody_sends_and_receives_one_message_and_one_place_goes_outside(kind, n, L):
    for t, W in enumerate(matrices(schedule(f"inner_outer_{kind}", n, workers_per_machine=L))):
        for i, targets in enumerate(sends(W)):
            if n == L and i == t % L:
                assert targets == []  # there is no other machine
                continue
            (j,) = targets
            outside = i // L != j // L
            assert outside == (i % L == t % L)
            assert W[j, i] == W[i, i] == 1 / 2
            assert not outside or i % L == j % L
        assert np.array_equal(W.sum(axis=0), np.ones(n)) and np.array_equal(W.sum(axis=1), np.ones(n))


def test_the_first_rounds_of_two_machines_of_four_in_rings():
    first, second, *_ = matrices(schedule("inner_outer_ring", 8, workers_per_machine=4))
    assert sends(first) == [[4], [2], [3], [1], [0], [6], [7], [5]]
    assert sends(second) == [[2], [5], [3], [0], [6], [1], [7], [4]]


def test_the_hops_between_machines_and_inside_double_and_return_to_one():
    s = schedule("inner_outer_exponential", 5 * 4, workers_per_machine=4)
    assert s.period == 12  # lcm of 4 places, the hops 1, 2, 4 between 5 machines, the hops 1, 2 among 3 places
    outside = [(sends(s.matrices(t)[0])[t % 4][0] - t % 4) // 4 for t in range(12)]
    assert outside == [1, 2, 4] * 4
    assert sends(s.matrices(0)[0])[1] == [2] and sends(s.matrices(5)[0])[4] == [7]


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["ring", "exponential", "symmetric_exponential", "complete"])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_where_everybody_receives_as_many_as_it_sends_push_and_pull_are_one_doubly_stochastic_matrix(graph, n):
    push, pull = (matrices(schedule("one_peer", n, graph=graph, weights=w)) for w in (Weights.uniform, Weights.pull))
    for one, other in zip(push, pull, strict=True):
        assert np.array_equal(one, other)
        assert np.allclose(one.sum(axis=0), 1) and np.allclose(one.sum(axis=1), 1)


@pytest.mark.parametrize("graph", ["star", "grid", "bt", "exponential"])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_with_metropolis_weights_an_edge_of_a_round_goes_both_ways(graph, n):
    pushed = matrices(schedule("one_peer", n, graph=graph))
    for one, W in zip(pushed, matrices(schedule("one_peer", n, graph=graph, weights=Weights.metropolis)), strict=True):
        assert np.array_equal(Graph.of(W).dense(), Graph.of(one + one.T).dense()) and is_undirected(Graph.of(W))
        assert np.array_equal(W, W.T) and (W >= 0).all()
        np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-15)


@pytest.mark.parametrize("graph", ["star", "grid", "bt"])
def test_what_irregular_rounds_give_is_told_apart_before_a_run(graph):
    needs = {Need.doubly_stochastic, Need.connected}
    check(schedule("one_peer", 8, graph=graph, weights=Weights.metropolis), needs, algo="dpsgd", topology="one_peer")
    push = schedule("one_peer", 8, graph=graph)
    check(push, {Need.column_stochastic, Need.connected}, algo="sgp", topology="one_peer")
    with pytest.raises(ConfigError, match=r"a row of topology=one_peer .* such as algo=sgp\.$"):
        check(push, needs, algo="dpsgd", topology="one_peer")
    pull = schedule("one_peer", 8, graph=graph, weights=Weights.pull)
    check(pull, {Need.row_stochastic, Need.connected}, algo="a", topology="one_peer")
    with pytest.raises(ConfigError, match=r"a column of topology=one_peer .* the workers would agree on a wrong mean"):
        check(pull, needs, algo="dpsgd", topology="one_peer")
    with pytest.raises(ConfigError, match=r"a column of topology=one_peer .*: use topology.weights=uniform\.$"):
        check(pull, {Need.column_stochastic}, algo="sgp", topology="one_peer")


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "n", "says"),
    [
        ("one_peer", {"graph": "rnig"}, 8, r"topology.graph=rnig is not another topology. Did you mean 'ring'\?"),
        ("one_peer", {"graph": "one_peer"}, 8, "topology.graph=one_peer is not another topology"),
        ("one_peer", {"path": "a.csv"}, 8, "topology.path=a.csv is read with topology.graph=file only"),
        (
            "one_peer",
            {"graph": "one_peer_exponential"},
            8,
            r".*changes with the round.* topology=one_peer_exponential\.",
        ),
        ("one_peer", {"graph": "hypercube"}, 6, "topology=hypercube needs a power of two"),
        ("one_peer_exponential", {"neighbors": 0}, 8, "topology.neighbors=0 makes no sense"),
        ("one_peer_exponential", {"neighbors": 4}, 8, "topology.neighbors=4 is more than the 3 hops .* use at most 3"),
        ("inner_outer_ring", {"workers_per_machine": 2}, 8, "topology.workers_per_machine=2 must be at least 3"),
        ("inner_outer_exponential", {}, 10, ".*num_workers=10 is not a multiple of .*=4: use num_workers=12, or"),
        (
            "inner_outer_exponential",
            {"workers_per_machine": 1021},
            8168,
            "topology=inner_outer_exponential with num_wo",
        ),
    ],
)
def test_schedules_that_do_not_exist_are_refused(name, fields, n, says):
    with pytest.raises(ConfigError, match=f"^{says}"):
        TOPOLOGIES[name](**fields).graphs(n)


def test_a_schedule_that_hardly_ever_repeats_is_refused_before_it_is_gone_through(tmp_path):
    leaves = [0, 6, 7, 8, 10, 12]  # of centres that are joined to centre 0: the degrees are 5, 7, 8, 9, 11 and 13
    first, edges = len(leaves), [(0, center) for center in range(1, len(leaves))]
    for center, number in enumerate(leaves):
        edges += [(center, first + k) for k in range(number)]
        first += number
    path = tmp_path / "graph.npz"
    np.savez(path, edges=np.array(edges))
    with pytest.raises(ConfigError, match=rf"num_workers={first} repeats only after more than 10000 rounds.*\.$"):
        schedule("one_peer", first, graph="file", path=str(path))


def test_one_peer_of_the_social_network_has_hundreds_of_rounds_all_of_them_checked():
    s = schedule("one_peer", 32, graph="social", weights=Weights.metropolis)
    assert s.period == 840
    check(s, {Need.doubly_stochastic, Need.connected, Need.undirected}, algo="dpsgd", topology="one_peer")
