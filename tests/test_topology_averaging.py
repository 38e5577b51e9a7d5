"""How fast topologies that change with the round average, and to which mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decentral.registry import components
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights

TOPOLOGIES = components("topology")


def schedule(name: str, n: int, **fields: Any) -> Rounds:
    return TOPOLOGIES[name](**fields).schedule(n)


def product(s: Rounds, rounds: int, start: int = 0) -> np.ndarray:
    """W of the round start + rounds - 1 times ... times W of the round `start`."""
    P = np.eye(s.num_workers)
    for round in range(start, start + rounds):
        P = s.matrices(round)[0] @ P
    return P


def contraction(s: Rounds, rounds: int = 20) -> float:
    """By how much the first rounds shrink disagreement at least: the spectral norm of their product minus J."""
    return float(np.linalg.norm(product(s, rounds) - 1 / s.num_workers, 2))


@pytest.mark.parametrize("name", ["one_peer", "one_peer_exponential"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_p_rounds_of_the_one_peer_exponential_graph_are_the_exact_average_of_2_to_the_p_from_any_phase(name, p):
    s = schedule(name, 2**p)
    for start in range(2 * p):
        assert np.array_equal(product(s, p, start), np.full((2**p, 2**p), 2.0**-p))
        assert start or not np.allclose(product(s, p - 1, start), 2.0**-p)


@pytest.mark.parametrize(
    ("name", "n", "fields", "published", "half_a_digit"),
    [
        ("one_peer_exponential", 6, {}, 4.5e-5, 0.05e-5),
        ("one_peer_exponential", 12, {}, 4.0e-4, 0.05e-4),
        ("one_peer", 8, {"graph": "ring"}, 0.21, 0.005),
        ("inner_outer_exponential", 8, {"workers_per_machine": 4}, 4.4e-4, 0.05e-4),
        ("inner_outer_exponential", 16, {"workers_per_machine": 4}, 5.3e-2, 0.05e-2),
        ("inner_outer_exponential", 24, {"workers_per_machine": 8}, 0.14, 0.005),
        ("inner_outer_ring", 16, {"workers_per_machine": 4}, 0.13, 0.005),
    ],
)
def test_twenty_rounds_contract_as_much_as_those_of_bluefog(name, n, fields, published, half_a_digit):
    assert contraction(schedule(name, n, **fields, weights=Weights.pull)) == pytest.approx(published, abs=half_a_digit)
    assert contraction(schedule(name, n, **fields)) == pytest.approx(published, abs=half_a_digit)


@pytest.mark.parametrize("kind", ["ring", "exponential"])
@pytest.mark.parametrize("L", [3, 4, 8])
def test_one_machine_agrees_too(kind, L):
    s = schedule(f"inner_outer_{kind}", L, workers_per_machine=L)
    assert contraction(s, 10 * L) < 1e-3


@pytest.mark.parametrize(("graph", "bias", "limit"), [("grid", 0.17, -0.129), ("star", 0.44, 0.453)])
def test_pull_weights_on_irregular_rounds_agree_on_a_wrong_mean_and_push_sum_on_the_right_one(graph, bias, limit):
    x = np.arange(8.0)
    pull, push = (schedule("one_peer", 8, graph=graph, weights=w) for w in (Weights.pull, Weights.uniform))
    assert abs((product(pull, 20) @ x).mean() - 3.5) == pytest.approx(bias, abs=0.005)
    np.testing.assert_allclose(product(pull, 420) @ x, 3.5 + limit, atol=5e-4)
    P = product(push, 420)
    np.testing.assert_allclose((P @ x) / P.sum(axis=1), 3.5, rtol=1e-12)
