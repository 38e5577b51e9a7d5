"""Graphs and mixing matrices by their entries do what dense matrices do."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.network.kernels import Product
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.delivery import Delivery, Losses
from decentral.topology.facts import largest_laplacian_eigenvalue, mean_delay, smallest_eigenvalue
from decentral.topology.graph import (
    Graph,
    directed,
    hops,
    is_connected,
    is_undirected,
    sum_of_tree_hops,
    undirected,
    union,
)
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights
from table import TOPOLOGIES

SIZES = (1, 2, 3, 5, 8, 12, 30)


def a_matrix(number: int, n: int, share: float = 0.3) -> np.ndarray:
    """Weights of either sign, with zeros on the diagonal, too."""
    draw = numpy_generator(number, "test matrix")
    return draw.normal(size=(n, n)) * (draw.random((n, n)) < share)


def a_graph(number: int, n: int, share: float = 0.2) -> tuple[Graph, np.ndarray]:
    """A graph, and the same as bool [n, n]."""
    A = a_matrix(number, n, share) != 0
    np.fill_diagonal(A, False)
    return Graph.of(A), A


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("number", range(3))
def test_a_mixing_matrix_by_its_entries_is_the_dense_one(number, n):
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
    assert [W.column(j) for j in range(n)] == [[(i, of[i]) for i in np.flatnonzero(of)] for of in dense.T]
    assert W.is_symmetric(1e-9) == np.allclose(dense, dense.T, rtol=0, atol=1e-9)
    assert MixingMatrix.of(dense + dense.T).is_symmetric(0.0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("number", range(3))
def test_a_graph_by_its_edges_is_the_dense_one(number, n):
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


def test_a_user_may_give_dense_matrices():
    """They are kept by their entries, and read as they were given."""
    given = [np.full((3, 3), 1 / 3), np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])]
    rounds = Rounds(3, lambda round: (given[round],), period=2)
    for round in range(4):
        assert np.array_equal(rounds.matrices(round)[0], given[round % 2])
        assert not rounds.matrices(round)[0].flags.writeable
    assert [len(rounds.mixing(round)[0]) for round in range(2)] == [9, 5]


@pytest.mark.parametrize("n", [2, 3, 12, 257, 300])
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("name", ["chain", "complete", "exponential", "star", "symmetric_exponential"])
def test_weights_follow_their_formula(name, weights, n):
    edge_weight = 1 / 512 if weights is Weights.constant else None
    topology = components("topology")[name](weights=weights, edge_weight=edge_weight)
    try:
        (W,) = topology.schedule(n).matrices(0)
    except ConfigError:
        assert weights is Weights.metropolis and name == "exponential"
        return
    A = topology.graphs(n)[0][0].dense()
    into, out = A.sum(1), A.sum(0)
    push, pull = (A | np.eye(n, dtype=bool)) / (1 + out), (A | np.eye(n, dtype=bool)) / (1 + into)[:, None]
    metropolis = A / (1 + np.maximum.outer(out, out))
    constant = A * (edge_weight or 0)
    for rest in (metropolis, constant):
        np.fill_diagonal(rest, 1 - rest.sum(1))
    rule = weights
    if weights is Weights.auto:
        rule = Weights.metropolis if np.array_equal(A, A.T) else Weights.uniform
    expected = {"uniform": push, "pull": pull, "metropolis": metropolis, "constant": constant}[rule.name]
    np.testing.assert_allclose(W, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["bt", "chain", "dbt", "star", "ring", "grid", "torus", "complete"])
@pytest.mark.parametrize("n", [2, 3, 9, 40])
def test_the_mean_delay_is_the_mean_over_all_pairs(name, n):
    rounds = components("topology")[name]().schedule(n)
    tau = rounds.hops()
    assert mean_delay(rounds) == np.mean(np.maximum(tau - 1, 0))
    assert mean_delay(rounds, overlap=True) == np.mean(tau)


@pytest.mark.parametrize("number", range(5))
def test_the_hops_of_a_random_tree_are_summed_over_its_edges(number):
    draw = numpy_generator(number, "test tree")
    label, parent = draw.permutation(50), [int(draw.integers(i)) for i in range(1, 50)]
    tree = undirected(50, label[1:], label[parent])
    assert sum_of_tree_hops(tree) == hops(tree).sum()


@pytest.mark.parametrize("communication", [Communication(workers_per_machine=4), Communication(workers_per_machine=12)])
def test_the_matrix_of_machines_is_a_kronecker_product(communication):
    L = communication.workers_per_machine
    for name in ("ring", "star", "one_peer_exponential"):
        topology = components("topology")[name]()
        ours, machines = communication.schedule(topology, 24), topology.schedule(24 // L)
        for round in range(machines.period):
            expected = np.kron(machines.matrices(round)[0], np.full((L, L), 1 / L))
            np.testing.assert_allclose(ours.matrices(round)[0], expected, rtol=0, atol=1e-17)


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize("weights", [Weights.metropolis, Weights.uniform])
def test_lost_messages_are_absent_and_their_weight_stays(weights, push):
    rounds = components("topology")["star"](weights=weights).schedule(7)
    delivery, sent = Delivery(rounds, Losses(0.4, seed=3)), rounds.mixing(0)[0]
    for round in range(10):
        W = delivery.matrix(round, 0, lazy=False, push=push).dense()
        src, dst = np.meshgrid(np.arange(7), np.arange(7))
        lost = Losses(0.4, seed=3).lost(round, 0, src, dst) & (src != dst)
        assert (W[lost] == 0).all()
        keeps_columns = push or weights is Weights.uniform
        np.testing.assert_allclose(W.sum(0 if keeps_columns else 1), 1, atol=1e-14)
        if keeps_columns:
            arrived = (sent.dense() != 0) & ~lost & (src != dst)
            assert np.array_equal(W[arrived], sent.dense()[arrived])


@pytest.mark.parametrize("name", ["dbt", "grid", "star"])
def test_eigenvalues_of_many_workers_are_those_of_the_dense_matrix(name):
    n = 1100  # more than are looked at as a dense matrix
    W = components("topology")[name]().schedule(n).mixing(0)[0]
    laplacian = np.diag(W.graph.indegree) - W.graph.dense()
    assert smallest_eigenvalue(W) == pytest.approx(np.linalg.eigvalsh(W.dense())[0], abs=1e-8)
    assert largest_laplacian_eigenvalue(W.graph) == pytest.approx(np.linalg.eigvalsh(laplacian)[-1], rel=1e-8)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_is_what_the_matrix_makes_of_rows_here_and_elsewhere(share, dtype):
    import torch

    n, workers, others = 120, range(30, 90), [2, 3, 100]
    dense = a_matrix(0, n, share)
    dense[:, [j for j in range(n) if j not in workers and j not in others]] = 0
    x = torch.from_numpy(numpy_generator(0, "rows").normal(size=(n, 2, 7))).to(getattr(torch, dtype))
    expected = torch.einsum("ij,jkl->ikl", torch.from_numpy(dense).to(x), x)[workers.start : workers.stop]
    rows = x[workers.start : workers.stop, :, 1:6]
    Product(MixingMatrix.of(dense), workers, others).into(rows, [x[j, :, 1:6].clone() for j in others])
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    torch.testing.assert_close(rows, expected[..., 1:6], rtol=0, atol=tolerance)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_a_product_shows_a_nan_to_those_who_take_it_only(share):
    import torch

    dense = np.abs(a_matrix(0, 100, share))
    x = torch.ones(100, 3, dtype=torch.float64)
    x[5] = torch.nan
    Product(MixingMatrix.of(dense), range(100)).into(x)
    assert np.array_equal(x.isnan().any(1).numpy(), dense[:, 5] != 0)


def test_every_topology_is_of_edges(tmp_path):
    """What a run is made from holds no n x n array; see test_many_workers for how many there can be."""
    for name in set(TOPOLOGIES) - {"file"}:
        n = TOPOLOGIES[name].n
        for W in components("topology")[name]().schedule(n if name != "spanning_tree" else 32).mixing(0):
            assert isinstance(W, MixingMatrix) and W.src.shape == W.dst.shape == W.weight.shape
