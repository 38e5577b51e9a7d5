"""The exact edges of every topology, edges to relay over, and the facts that papers quote about them."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.facts import mean_delay, second_largest_eigenvalue_modulus, smallest_eigenvalue
from decentral.topology.graph import Graph, hops, is_connected, is_undirected, undirected
from decentral.topology.spanning_tree import shortest_path_tree

TOPOLOGIES = components("topology")
CHANGING = {"inner_outer_exponential", "inner_outer_ring", "one_peer", "one_peer_exponential"} | {
    *("base_graph", "simple_base_graph", "equidyn", "epidemic")
}
STATIC_UNDIRECTED = sorted(TOPOLOGIES.keys() - CHANGING - {"exponential", "file"})


def schedule(name: str, num_workers: int, **fields):
    return TOPOLOGIES[name](**fields).schedule(num_workers)


def edges(graph: Graph) -> str:
    """The edges of an undirected graph as 'ab cd ...', a < b, in order."""
    return " ".join(f"{i}{j}" for i, j in sorted(zip(graph.dst, graph.src, strict=True)) if i < j)


@pytest.mark.parametrize(
    ("name", "num_workers", "fields", "expected"),
    [
        ("chain", 4, {}, ["01 12 23"]),
        ("ring", 2, {}, ["01"]),
        ("ring", 4, {}, ["01 03 12 23"]),
        ("star", 4, {}, ["01 02 03"]),
        ("complete", 4, {}, ["01 02 03 12 13 23"]),
        ("bt", 8, {}, ["01 12 13 24 25 36 37"]),
        ("bt", 2, {}, ["01"]),
        ("dbt", 8, {}, ["01 12 13 24 25 36 37", "04 14 25 35 46 56 67"]),
        ("dbt", 5, {}, ["01 12 13 24", "02 13 23 34"]),
        ("grid", 6, {}, ["01 03 12 14 25 34 45"]),
        ("grid", 6, {"rows": 3}, ["01 02 13 23 24 35 45"]),
        ("grid", 5, {}, ["01 12 23 34"]),
        ("torus", 6, {}, ["01 02 03 12 14 25 34 35 45"]),
        ("torus", 5, {}, ["01 04 12 23 34"]),
        ("torus", 4, {}, ["01 02 13 23"]),
        ("hypercube", 8, {}, ["01 02 04 13 15 23 26 37 45 46 57 67"]),
        ("spanning_tree", 6, {"graph": "grid"}, ["01 03 12 14 25"]),
        ("spanning_tree", 6, {"graph": "grid", "root": 5}, ["01 12 25 34 45"]),
    ],
)
def test_a_topology_has_exactly_these_edges(name, num_workers, fields, expected):
    graphs = schedule(name, num_workers, **fields).graphs()
    assert [edges(A) for A in graphs] == expected


@pytest.mark.parametrize(("round", "hop"), [(0, 1), (1, 2), (2, 4), (3, 1), (5, 4)])
def test_in_the_one_peer_exponential_graph_half_comes_from_2_to_the_k_places_before(round, hop):
    W = schedule("one_peer_exponential", 6).matrices(round)[0]
    expected = np.eye(6) / 2
    for i in range(6):
        expected[i, (i - hop) % 6] += 0.5
    assert np.array_equal(W, expected)


@pytest.mark.parametrize(("num_workers", "hop_counts"), [(2, [1]), (5, [1, 2, 4]), (8, [1, 2, 4]), (9, [1, 2, 4, 8])])
def test_the_exponential_graph_takes_equally_from_all_powers_of_two_before(num_workers, hop_counts):
    W = schedule("exponential", num_workers).matrices(0)[0]
    for i in range(num_workers):
        takes_from = {i} | {(i - hop) % num_workers for hop in hop_counts}
        assert set(np.flatnonzero(W[i])) == takes_from
        assert set(W[i, sorted(takes_from)]) == {1 / (1 + len(hop_counts))}


def test_the_social_network_has_its_89_edges_women_first():
    (A,) = schedule("social", 32).graphs()
    assert len(A) == 2 * 89
    assert ((A.src < 18) != (A.dst < 18)).all()


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [(name, 32) for name in STATIC_UNDIRECTED]
    + [(name, n) for name in ("ring", "dbt", "star", "complete") for n in (2, 9)],
)
def test_edges_are_sorted_by_receiver_and_every_edge_has_its_reverse(name, num_workers):
    s = schedule(name, num_workers)
    found = s.edges()
    order = list(zip(found.dst.tolist(), found.piece.tolist(), found.src.tolist(), strict=True))
    assert order == sorted(set(order))
    assert all(array.dtype == np.int64 for array in (found.src, found.dst, found.piece, found.reverse))
    assert np.array_equal(found.reverse[found.reverse], np.arange(len(found)))
    assert np.array_equal(found.src[found.reverse], found.dst)
    assert np.array_equal(found.piece[found.reverse], found.piece)
    for piece, W in enumerate(s.matrices(0)):
        here = found.piece == piece
        assert set(zip(found.dst[here], found.src[here], strict=True)) == {(i, j) for i, j in np.argwhere(W) if i != j}


@pytest.mark.parametrize(
    "name", ["chain", "bt", "star", "complete", "exponential", "one_peer_exponential", "one_peer", "grid"]
)
def test_a_single_worker_has_no_edges_and_keeps_all_of_its_model(name):
    s = schedule(name, 1)
    assert len(s.edges()) == 0 and s.matrices(5)[0].tolist() == [[1.0]] and s.hops().tolist() == [[[0]]]


@pytest.mark.parametrize("name", [*STATIC_UNDIRECTED, "exponential"])
def test_hops_are_the_shortest_path_lengths(name):
    for A, tau in zip(schedule(name, 32).graphs(), schedule(name, 32).hops(), strict=True):
        lengths = dict(nx.all_pairs_shortest_path_length(nx.from_numpy_array(A.dense().T, create_using=nx.DiGraph)))
        assert np.array_equal(tau, [[lengths[j][i] for j in range(32)] for i in range(32)])


def test_workers_that_cannot_be_reached_are_minus_one_hops_away():
    A = undirected(5, np.array([0, 1]), np.array([1, 2]))
    assert not is_connected(A)
    assert hops(A)[3].tolist() == [-1, -1, -1, 0, -1] and hops(A)[0].tolist() == [0, 1, 2, -1, -1]


def random_connected_graph(number: int) -> Graph:
    draw = numpy_generator(number, "test graph")
    while True:
        A = np.triu(draw.random((9, 9)) < 0.3, 1)
        graph = Graph.of(A | A.T)
        if is_connected(graph):
            return graph


@pytest.mark.parametrize("number", range(20))
def test_a_spanning_tree_joins_the_smallest_of_all_shortest_paths_from_the_root(number):
    A = random_connected_graph(number)
    network = nx.from_numpy_array(A.dense())
    for root in range(9):
        expected = np.zeros((9, 9), dtype=bool)
        for worker in range(9):
            path = min(nx.all_shortest_paths(network, root, worker))
            expected[path[:-1], path[1:]] = expected[path[1:], path[:-1]] = True
        tree = shortest_path_tree(A, root)
        assert np.array_equal(tree.dense(), expected)
        assert is_undirected(tree) and is_connected(tree) and len(tree) == 2 * 8


CORRECTIONS = {  # 1 + mean delay for n = 4, 8, .., 128
    ("bt", False): [1.375, 2.15625, 3.32031, 4.78320, 6.45361, 8.25793],
    ("dbt", False): [1.375, 2.15625, 3.32031, 4.78320, 6.45361, 8.25793],
    ("chain", False): [1.5, 2.75, 5.375, 10.6875, 21.34375, 42.67188],
    ("star", False): [1.375, 1.65625, 1.82031, 1.90820, 1.95361, 1.97668],
    ("bt", True): [2.125, 3.03125, 4.25781, 5.75195, 7.43799, 9.25012],
    ("chain", True): [2.25, 3.625, 6.3125, 11.65625, 22.32813, 43.66406],
}


@pytest.mark.parametrize(("name", "overlap"), CORRECTIONS)
def test_mean_delays_are_those_of_the_learning_rate_correction(name, overlap):
    ours = [1 + mean_delay(schedule(name, n), overlap=overlap) for n in (4, 8, 16, 32, 64, 128)]
    assert ours == pytest.approx(CORRECTIONS[name, overlap], abs=5.1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 80])
def test_mean_delays_of_chain_and_star_have_closed_forms(n):
    assert 1 + mean_delay(schedule("chain", n)) == pytest.approx((n**2 + 2) / (3 * n), rel=1e-12)
    assert 1 + mean_delay(schedule("star", n)) == pytest.approx(2 * (n - 1) ** 2 / n**2 + 1 / n, rel=1e-12)


@pytest.mark.parametrize(("root", "correction"), [(0, 3.3477), (1, 3.6523), (5, 3.7266), (20, 3.3047)])
def test_spanning_trees_of_the_social_network_have_the_published_mean_delays(root, correction):
    s = schedule("spanning_tree", 32, root=root)
    assert 1 + mean_delay(s) == pytest.approx(correction, abs=5.1e-5)
    assert s.hops().max() in (6, 7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ring", [0.8047, 0.9493, 0.9872]), ("bt", [0.9330, 0.9758, 0.9899]), ("chain", [0.9493, 0.9872, 0.9968])],
)
def test_second_eigenvalues_of_metropolis_weights(name, expected):
    ours = [second_largest_eigenvalue_modulus(schedule(name, n).matrices(0)[0]) for n in (8, 16, 32)]
    assert ours == pytest.approx(expected, abs=5.1e-5)


@pytest.mark.parametrize(
    ("name", "num_workers", "expected"),
    [("ring", 16, -0.3333), ("bt", 16, -0.298), ("bt", 32, -0.348), ("bt", 64, -0.378), ("social", 32, -0.434)],
)
def test_smallest_eigenvalues_of_metropolis_weights(name, num_workers, expected):
    assert smallest_eigenvalue(schedule(name, num_workers).matrices(0)[0]) == pytest.approx(expected, abs=5.1e-4)


@pytest.mark.parametrize("num_workers", [1, 2, 16])
def test_the_complete_graph_forgets_all_disagreement_at_once(num_workers):
    assert second_largest_eigenvalue_modulus(schedule("complete", num_workers).matrices(0)[0]) == pytest.approx(
        0, abs=1e-14
    )
