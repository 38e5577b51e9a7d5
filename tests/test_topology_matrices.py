"""The mixing matrices of static topologies, entry by entry: formulas from the papers, and the tests' own reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.topology.facts import second_largest_eigenvalue_modulus
from decentral.topology.ring import Direction
from decentral.topology.weights import Weights
from reference_topology import graph, is_power, pieces

TOPOLOGIES = components("topology")
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17]


def matrix(name: str, n: int, **fields: Any) -> np.ndarray:
    """The one matrix of a static topology."""
    schedule = TOPOLOGIES[name](**fields).schedule(n)
    assert schedule.period == schedule.num_pieces == 1
    return schedule.matrices(0)[0]


def assert_entries(W: np.ndarray, expected: Any) -> None:
    """All n^2 entries: zeros exactly, the others but for rounding."""
    expected = np.array(expected, dtype=float)
    assert np.array_equal(W != 0, expected != 0)
    np.testing.assert_allclose(W, expected, rtol=0, atol=1e-15)


def by_formula(n: int, w: Any) -> list[list[float]]:
    """The matrix with the entries w(i, j)."""
    return [[w(i, j) for j in range(n)] for i in range(n)]


@pytest.mark.parametrize("n", SIZES)
def test_on_the_complete_graph_all_entries_are_1_over_n(n):
    assert_entries(matrix("complete", n), np.full((n, n), 1 / n))


@pytest.mark.parametrize("n", SIZES)
def test_on_the_ring_a_worker_takes_a_third_from_itself_and_from_both_sides(n):
    special = {1: [[1]], 2: [[1 / 2, 1 / 2], [1 / 2, 1 / 2]]}
    assert_entries(matrix("ring", n), special.get(n) or by_formula(n, lambda i, j: ((i - j) % n in (0, 1, n - 1)) / 3))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("direction", "step"), [("left", -1), ("right", 1)])
def test_on_a_ring_in_one_direction_it_takes_half_from_one_side(n, direction, step):
    W = matrix("ring", n, direction=Direction[direction])
    assert_entries(W, [[1]] if n == 1 else by_formula(n, lambda i, j: (i == j or i == (j + step) % n) / 2))


@pytest.mark.parametrize("n", SIZES)
def test_on_the_star_edges_and_the_centre_have_1_over_n_and_a_leaf_keeps_the_rest(n):
    for center in {0, n // 2, n - 1}:

        def w(i: int, j: int, center: int = center) -> float:
            if center in (i, j):
                return 1 / n
            return 1 - 1 / n if i == j else 0.0

        W = matrix("star", n, center=center)
        assert_entries(W, by_formula(n, w))
        assert second_largest_eigenvalue_modulus(W) == pytest.approx(1 - 1 / n if n > 2 else 0)


@pytest.mark.parametrize(
    ("n", "rows"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (6, 2), (8, 2), (9, 3), (12, 3), (15, 3), (16, 4)]
)
def test_on_the_grid_an_edge_has_1_over_the_larger_neighbourhood_with_oneself_counted(n, rows):
    columns = n // rows

    def near(i: int, j: int) -> bool:
        return abs(i // columns - j // columns) + abs(i % columns - j % columns) <= 1

    size = [sum(near(i, j) for j in range(n)) for i in range(n)]  # |N_i|, i among them
    expected = np.array(by_formula(n, lambda i, j: (i != j and near(i, j)) / max(size[i], size[j])))
    W = matrix("grid", n)
    assert_entries(W, expected + np.diag(1 - expected.sum(axis=1)))
    assert np.array_equal(W, W.T)


@pytest.mark.parametrize("base", [2, 3, 4, 10])
@pytest.mark.parametrize("n", SIZES)
def test_on_the_exponential_graph_all_hops_that_are_powers_have_equal_weight(n, base):
    hops = [base**k for k in range(n) if base**k < n]
    assert_entries(
        matrix("exponential", n, base=base),
        by_formula(n, lambda i, j: (i == j or (i - j) % n in hops) / (1 + len(hops))),
    )


@pytest.mark.parametrize("n", [4, 6, 8, 12, 16, 34])
def test_on_the_exponential_graph_of_even_size_lambda_2_has_a_closed_form(n):
    ours = second_largest_eigenvalue_modulus(matrix("exponential", n))
    assert ours == pytest.approx(1 - 2 / (1 + math.ceil(math.log2(n))), abs=1e-9)


@pytest.mark.parametrize(("base", "n"), [(3, 244), (5, 126), (10, 1001)])
def test_a_power_that_logarithms_of_floats_miss_is_a_hop(base, n):
    A = TOPOLOGIES["exponential"](base=base).graphs(n)[0][0]
    receivers = A.dst[A.src == 0].tolist()
    assert n - 1 in receivers and len(receivers) == round(math.log(n - 1, base)) + 1


@pytest.mark.parametrize("base", [2, 3, 4])
@pytest.mark.parametrize("n", SIZES)
def test_on_the_symmetric_exponential_graph_a_hop_counts_the_shorter_way(n, base):
    hops = [d for d in range(1, n) if is_power(d if d <= n // 2 else n - d, base)]
    W = matrix("symmetric_exponential", n, base=base)
    assert_entries(W, by_formula(n, lambda i, j: (i == j or (i - j) % n in hops) / (1 + len(hops))))
    assert np.array_equal(W, W.T)


def test_the_symmetric_exponential_graph_has_powers_of_four_unless_told_otherwise():
    assert set(np.flatnonzero(matrix("symmetric_exponential", 12)[0])) == {0, 1, 4, 8, 11}


@pytest.mark.parametrize("weights", Weights)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("chain", {}), ("ring", {}), ("ring", {"direction": "left"}), ("star", {"center": 0}), ("grid", {}),
        ("exponential", {"base": 3}), ("symmetric_exponential", {}), ("bt", {}), ("complete", {}),
    ],
)  # fmt: skip
def test_every_rule_for_weights_gives_the_matrix_of_the_reference(name, n, place, weights):
    if weights is Weights.constant:
        (part,) = pieces(name, n, 1, **place)
        expected = np.where(part.matrices[0] != 0, 1 / 16, 0.0)
        np.fill_diagonal(expected, 0)
        W = matrix(name, n, **place_of(place), weights=weights, edge_weight=1 / 16)
        np.testing.assert_allclose(W, expected + np.diag(1 - expected.sum(axis=1)), rtol=0, atol=1e-15)
        return
    (part,) = pieces(name, n, 1, weights=weights.name, **place)
    if weights is Weights.metropolis and any((i, j) not in part.edges for j, i in part.edges):
        with pytest.raises(ConfigError, match=r"is directed: use topology\.weights=uniform"):
            matrix(name, n, **place_of(place), weights=weights)
        return
    np.testing.assert_allclose(
        matrix(name, n, **place_of(place), weights=weights), part.matrices[0], rtol=0, atol=1e-15
    )


def place_of(place: dict[str, Any]) -> dict[str, Any]:
    """The fields as the program has them."""
    return {key: Direction[value] if key == "direction" else value for key, value in place.items()}


def test_the_reference_has_no_edges_from_a_worker_to_itself():
    for name in ("ring", "star", "exponential", "symmetric_exponential"):
        assert all(i != j for n in SIZES for i, j in graph(name, n))


@pytest.mark.parametrize(
    ("name", "fields", "n", "says"),
    [
        ("star", {"center": 8}, 8, "topology.center=8 is not a worker: with num_workers=8 use 0 to 7"),
        ("star", {"center": -1}, 8, "topology.center=-1 is not a worker"),
    ],
)
def test_graphs_that_do_not_exist_are_refused(name, fields, n, says):
    with pytest.raises(ConfigError, match=rf"^{says}.*\.$"):
        TOPOLOGIES[name](**fields).schedule(n)
