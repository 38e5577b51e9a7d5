"""Graphs and static matrices: edges, references, facts that papers quote, and sparse arithmetic against dense."""

from __future__ import annotations

import itertools
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest

from decentral.network.kernels import Product
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.facts import (
    largest_laplacian_eigenvalue,
    second_largest_eigenvalue_modulus,
    smallest_eigenvalue,
)
from decentral.topology.graph import (
    Graph,
    directed,
    is_connected,
    is_undirected,
    undirected,
    union,
)
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import mean_delay
from decentral.topology.static import Direction
from decentral.topology.topology import Weights
from decentral.topology.trees import shortest_path_tree
from reference_topology import pieces

# -- The exact edges of every topology, edges to relay over, and the facts that papers quote about them

TOPOLOGIES = components("topology")
CHANGING = {"inner_outer_exponential", "inner_outer_ring", "one_peer", "one_peer_exponential"} | {
    *("base_graph", "simple_base_graph", "equidyn", "epidemic")
}
STATIC_UNDIRECTED = sorted(TOPOLOGIES.keys() - CHANGING - {"exponential", "file", "networkx", "d_cliques", "stl_fw"})


def schedule(name: str, num_workers: int, **fields):
    return TOPOLOGIES[name](**fields).schedule(num_workers)


def edges(graph: Graph) -> str:
    """The edges of an undirected graph as 'ab cd ...', a < b, in order."""
    return " ".join(f"{i}{j}" for i, j in sorted(zip(graph.dst, graph.src, strict=True)) if i < j)


def test_a_topology_has_exactly_these_edges():
    for name, num_workers, fields, expected in [
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
    ]:
        graphs = schedule(name, num_workers, **fields).graphs()
        assert [edges(A) for A in graphs] == expected


def test_edges_are_sorted_by_receiver_and_every_edge_has_its_reverse():
    for name in STATIC_UNDIRECTED:
        s = schedule(name, 32)
        found = s.edges()
        order = list(zip(found.dst.tolist(), found.piece.tolist(), found.src.tolist(), strict=True))
        assert order == sorted(set(order))
        assert np.array_equal(found.reverse[found.reverse], np.arange(len(found)))
        assert np.array_equal(found.src[found.reverse], found.dst)
        assert np.array_equal(found.piece[found.reverse], found.piece)
        for piece, W in enumerate(s.matrices(0)):
            here = found.piece == piece
            assert set(zip(found.dst[here], found.src[here], strict=True)) == {
                (i, j) for i, j in np.argwhere(W) if i != j
            }


def test_hops_are_the_shortest_path_lengths():
    for name in [*STATIC_UNDIRECTED, "exponential"]:
        for A, tau in zip(schedule(name, 32).graphs(), schedule(name, 32).hops(), strict=True):
            lengths = dict(nx.all_pairs_shortest_path_length(nx.from_numpy_array(A.dense().T, create_using=nx.DiGraph)))
            assert np.array_equal(tau, [[lengths[j][i] for j in range(32)] for i in range(32)])


def random_connected_graph(number: int) -> Graph:
    draw = numpy_generator(number, "test graph")
    while True:
        A = np.triu(draw.random((9, 9)) < 0.3, 1)
        graph = Graph.of(A | A.T)
        if is_connected(graph):
            return graph


@pytest.mark.parametrize("number", range(3))
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


def test_mean_delays_are_those_of_the_learning_rate_correction():
    for name, overlap in CORRECTIONS:
        ours = [1 + mean_delay(schedule(name, n), overlap=overlap) for n in (4, 8, 16, 32, 64, 128)]
        assert ours == pytest.approx(CORRECTIONS[name, overlap], abs=5.1e-6)


@pytest.mark.parametrize(("root", "correction"), [(0, 3.3477), (1, 3.6523), (5, 3.7266), (20, 3.3047)])
def test_spanning_trees_of_the_social_network_have_the_published_mean_delays(root, correction):
    s = schedule("spanning_tree", 32, root=root)
    assert 1 + mean_delay(s) == pytest.approx(correction, abs=5.1e-5)
    assert s.hops().max() in (6, 7)


def test_eigenvalues_of_default_weights():
    for of, name, sizes, expected, half_a_digit in [
        (second_largest_eigenvalue_modulus, "ring", (8, 16, 32), [0.8047, 0.9493, 0.9872], 5.1e-5),
        (second_largest_eigenvalue_modulus, "bt", (8, 16, 32), [0.9330, 0.9758, 0.9899], 5.1e-5),
        (second_largest_eigenvalue_modulus, "chain", (8, 16, 32), [0.9493, 0.9872, 0.9968], 5.1e-5),
        (second_largest_eigenvalue_modulus, "exponential", (4, 12, 34), [1 / 3, 3 / 5, 5 / 7], 1e-9),
        (second_largest_eigenvalue_modulus, "star", (4, 8), [3 / 4, 7 / 8], 1e-9),
        (smallest_eigenvalue, "ring", (16,), [-0.3333], 5.1e-4),
        (smallest_eigenvalue, "bt", (16, 32, 64), [-0.298, -0.348, -0.378], 5.1e-4),
        (smallest_eigenvalue, "social", (32,), [-0.434], 5.1e-4),
    ]:
        assert [of(schedule(name, n).matrices(0)[0]) for n in sizes] == pytest.approx(expected, abs=half_a_digit)


# -- The mixing matrices of static topologies, entry by entry: formulas from the papers, and the tests' own reference

SIZES = [1, 2, 3, 5, 8, 17]


def matrix(name: str, n: int, **fields: Any) -> np.ndarray:
    """The one matrix of a static topology."""
    schedule = TOPOLOGIES[name](**fields).schedule(n)
    assert schedule.period == schedule.num_pieces == 1
    return schedule.matrices(0)[0]


@pytest.mark.parametrize(("base", "n"), [(3, 244), (5, 126), (10, 1001)])
def test_a_power_that_logarithms_of_floats_miss_is_a_hop(base, n):
    A = TOPOLOGIES["exponential"](base=base).graphs(n)[0][0]
    receivers = A.dst[A.src == 0].tolist()
    assert n - 1 in receivers and len(receivers) == round(math.log(n - 1, base)) + 1


def test_static_matrices_are_those_of_the_reference():
    for weights, (name, place) in itertools.product(
        [Weights.auto, Weights.uniform, Weights.pull],
        [
            ("chain", {}),
            ("ring", {}),
            ("ring", {"direction": "left"}),
            ("star", {"center": 0}),
            ("grid", {}),
            *(("exponential", {"base": base}) for base in (2, 3, 10)),
            ("symmetric_exponential", {"base": 2}),
            ("symmetric_exponential", {}),
            ("bt", {}),
            ("complete", {}),
        ],
    ):
        fields = {key: Direction[value] if key == "direction" else value for key, value in place.items()}
        for n in SIZES:
            (part,) = pieces(name, n, 1, weights=weights.name, **place)
            np.testing.assert_allclose(matrix(name, n, **fields, weights=weights), part.matrices[0], rtol=0, atol=1e-15)


# -- Graphs and mixing matrices by their entries do what dense matrices do

SIZES_mixing_matrix = (1, 3, 12, 30)


def a_matrix(number: int, n: int, share: float = 0.3) -> np.ndarray:
    """Weights of either sign, with zeros on the diagonal, too."""
    draw = numpy_generator(number, "test matrix")
    return draw.normal(size=(n, n)) * (draw.random((n, n)) < share)


def a_graph(number: int, n: int, share: float = 0.2) -> tuple[Graph, np.ndarray]:
    """A graph, and the same as bool [n, n]."""
    A = a_matrix(number, n, share) != 0
    np.fill_diagonal(A, False)
    return Graph.of(A), A


def test_a_mixing_matrix_by_its_entries_is_the_dense_one():
    for n, number in itertools.product(SIZES_mixing_matrix, range(3)):
        dense, w = a_matrix(number, n), np.arange(n) - 0.5
        W = MixingMatrix.of(dense)
        assert np.array_equal(W.dense(), dense)
        assert sorted(zip(W.dst, W.src, strict=True)) == list(zip(W.dst, W.src, strict=True)) and (W.weight != 0).all()
        np.testing.assert_allclose(W.row_sums(), dense.sum(1), atol=1e-13)
        np.testing.assert_allclose(W.column_sums(), dense.sum(0), atol=1e-13)
        np.testing.assert_allclose(W.apply(w), dense @ w, atol=1e-12)
        assert np.array_equal(W.diagonal, np.diag(dense))
        assert np.array_equal(W.lazy.dense(), (dense + np.eye(n)) / 2)
        assert W.num_messages == np.count_nonzero(dense - np.diag(np.diag(dense)))
        assert [W.row(i) for i in range(n)] == [[(j, row[j]) for j in np.flatnonzero(row)] for row in dense]
        assert [W.transposed.row(j) for j in range(n)] == [[(i, of[i]) for i in np.flatnonzero(of)] for of in dense.T]
        assert W.is_symmetric(1e-9) == np.allclose(dense, dense.T, rtol=0, atol=1e-9)
        assert MixingMatrix.of(dense + dense.T).is_symmetric(0.0)


def test_a_graph_by_its_edges_is_the_dense_one():
    for n, number in itertools.product(SIZES_mixing_matrix, range(3)):
        (one, A), (other, B) = a_graph(number, n), a_graph(number + 100, n)
        network = nx.from_numpy_array(A.T, create_using=nx.DiGraph)
        assert np.array_equal(one.dense(), A) and np.array_equal(one.reverse.dense(), A.T)
        assert np.array_equal((one | other).dense(), A | B)
        assert np.array_equal(union(n, [one, other, one]).dense(), A | B)
        assert np.array_equal(one.indegree, A.sum(1)) and np.array_equal(one.outdegree, A.sum(0))
        assert [found.tolist() for found in one.senders()] == [np.flatnonzero(row).tolist() for row in A]
        assert is_undirected(one) == np.array_equal(A, A.T) and is_undirected(one | one.reverse)
        assert is_connected(one) == nx.is_strongly_connected(network)
        assert is_connected(one | one.reverse) == nx.is_connected(network.to_undirected())


def test_loops_and_repetitions_are_no_edges():
    graph = directed(4, np.array([0, 1, 1, 2, 0]), np.array([1, 2, 2, 2, 3]))
    assert list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)) == [(0, 1), (1, 2), (0, 3)]
    both = undirected(3, np.array([0, 1, 2]), np.array([1, 0, 2]))
    assert list(zip(both.src.tolist(), both.dst.tolist(), strict=True)) == [(1, 0), (0, 1)]


@pytest.mark.parametrize("name", ["dbt", "grid", "star"])
def test_eigenvalues_of_many_workers_are_those_of_the_dense_matrix(name):
    n = 1100  # more than are looked at as a dense matrix
    W = components("topology")[name]().schedule(n).mixing(0)[0]
    laplacian = np.diag(W.graph.indegree) - W.graph.dense()
    assert smallest_eigenvalue(W) == pytest.approx(np.linalg.eigvalsh(W.dense())[0], abs=1e-8)
    assert largest_laplacian_eigenvalue(W.graph) == pytest.approx(np.linalg.eigvalsh(laplacian)[-1], rel=1e-8)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_a_product_spreads_a_nan_to_its_takers_only(share):
    import torch

    dense = np.abs(a_matrix(0, 100, share))
    x = torch.ones(100, 3, dtype=torch.float64)
    x[5] = torch.nan
    Product(MixingMatrix.of(dense), range(100)).into(x)
    assert np.array_equal(x.isnan().any(1).numpy(), dense[:, 5] != 0)
