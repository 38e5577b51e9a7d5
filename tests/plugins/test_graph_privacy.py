"""What curious workers can work out from gossip and from relaying: a published table, an independent computation in
fractions, and what `--help` says of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from conftest import exit_status
from decentral.cli.run import main
from decentral.errors import ConfigError
from decentral.measurements.facts import quantities
from decentral.plugins.adversaries.knowledge import (
    PRIME,
    Knowledge,
    exact_weights,
    from_gossip,
    from_relaying,
    recovered,
    share_given_away,
)
from decentral.plugins.adversaries.topology_facts.privacy import privacy
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.matrices import Matrices
from decentral.topology.rounds import Rounds


def rounds_of(name: str, n: int, **settings: Any) -> Rounds:
    found: Rounds = components("topology")[name](**settings).schedule(n)
    return found


def singles(rounds: Rounds) -> list[set[int]]:
    return [{worker} for worker in range(rounds.num_workers)]


TABLE = [  # topology, n, attackers, rank, others that are reconstructed (None: all), T (None: not given)
    *[("ring", 6, {a}, 6, None, 3) for a in range(6)],
    *[("complete", 5, {a}, 5, None, 1) for a in range(5)],
    *[("exponential", 8, {a}, 8, None, 3) for a in range(8)],
    ("bt", 7, {0}, 6, [1, 2, 3, 6], None),
    ("bt", 7, {1}, 6, [0, 2, 3, 6], None),
    ("bt", 7, {2}, 7, None, None),
    ("bt", 7, {3}, 6, [0, 1, 2, 6], None),
    ("bt", 7, {4}, 7, None, 6),
    ("bt", 7, {5}, 7, None, 6),
    ("bt", 7, {6}, 6, [0, 1, 2, 3], None),
    ("bt", 8, {0}, 4, [1], None),
    ("bt", 8, {1}, 6, [0, 2, 3], None),
    ("bt", 8, {2}, 7, [0, 1, 3, 4, 5], None),
    ("bt", 8, {3}, 7, [0, 1, 2, 6, 7], None),
    ("bt", 8, {4}, 7, [0, 1, 2, 3, 5], None),
    ("bt", 8, {7}, 7, [0, 1, 2, 3, 6], None),
    ("star", 6, {0}, 6, None, 1),
    ("star", 6, {3}, 3, [0], None),
    ("star", 6, {2, 5}, 4, [0], None),
]


@pytest.mark.parametrize(("topology", "n", "attackers", "rank", "others", "T"), TABLE)
def test_what_gossip_gives_away(
    topology: str, n: int, attackers: set[int], rank: int, others: list[int] | None, T: int | None
) -> None:
    (found,) = from_gossip(rounds_of(topology, n), [attackers])
    assert (found.rank, found.reconstructed) == (rank, sorted(set(range(n)) - attackers) if others is None else others)
    assert T is None or found.rounds == T


def test_who_hides_whom() -> None:
    groups = [one.groups for one in from_gossip(rounds_of("bt", 7), singles(rounds_of("bt", 7)))]
    assert groups == [[[4, 5]], [[4, 5]], [], [[4, 5]], [], [], [[4, 5]]]
    (found,) = from_gossip(rounds_of("bt", 8), [{0}])
    assert found.groups == [[2, 3], [4, 5, 6, 7]]


# -- an independent computation ----------------------------------------------------------------------------------------


def echelon(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """The reduced row echelon form, without rows of zeros."""
    rows, done = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((k for k in range(done, len(rows)) if rows[k][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        rows[done] = [value / rows[done][column] for value in rows[done]]
        for k, row in enumerate(rows):
            if k != done and row[column]:
                rows[k] = [a - row[column] * b for a, b in zip(row, rows[done], strict=True)]
        done += 1
    return rows[:done]


def by_fractions(rounds: Rounds, attackers: set[int], num_rounds: int) -> list[list[Fraction]]:
    """The reduced row echelon form of K_T with T = num_rounds."""
    n = rounds.num_workers
    x = [[Fraction(i == j) for j in range(n)] for i in range(n)]
    rows = [x[a] for a in sorted(attackers)]
    for t in range(num_rounds):
        W = rounds.mixing(t)[0]
        weights = dict(zip(zip(W.dst.tolist(), W.src.tolist(), strict=True), exact_weights(W), strict=True))
        rows += [x[j] for i, j in weights if i in attackers and j != i]
        x = [
            [sum((weights.get((i, k), 0) * x[k][j] for k in range(n)), Fraction(0)) for j in range(n)] for i in range(n)
        ]
    return echelon(rows)


def residue(value: Fraction) -> int:
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME


RANDOM = np.random.default_rng(3)
GRAPHS = {
    "one worker after the other": rounds_of("one_peer_exponential", 7),
    "changing": rounds_of("base_graph", 6, neighbors=2),
    "one way": rounds_of("ring", 5, direction="left"),
    "torus": rounds_of("torus", 8),
    "irregular": rounds_of("grid", 7),
    "floating point": Matrices([np.linalg.qr(RANDOM.normal(size=(5, 5)))[0] ** 2]).schedule(5),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("attackers", [{0}, {3}, {1, 4}])
def test_the_knowledge_is_that_of_fractions(graph: str, attackers: set[int]) -> None:
    rounds = GRAPHS[graph]
    (found,) = from_gossip(rounds, [attackers])
    expected = by_fractions(rounds, attackers, 3 * rounds.num_workers)
    assert sorted(found.matrix.tolist()) == sorted([residue(value) for value in row] for row in expected)
    assert len(by_fractions(rounds, attackers, found.rounds)) == found.rank
    if found.rounds:
        assert len(by_fractions(rounds, attackers, found.rounds - 1)) < found.rank


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["bt", "star", "grid", "exponential", "random_regular", "social", "base_graph"])
def test_weights_are_exact_fractions(topology: str) -> None:
    rounds = rounds_of(topology, 32)
    assert recovered(rounds)
    for t in range(min(rounds.period, 4)):
        W = rounds.mixing(t)[0]
        found = exact_weights(W)
        assert all(sum(w for w, i in zip(found, ends, strict=True) if i == one) == 1
                   for ends in (W.dst.tolist(), W.src.tolist()) for one in range(32))  # fmt: skip
        assert np.allclose([float(w) for w in found], W.weight, rtol=0, atol=1e-12)


def test_weights_of_push_sum_are_exact_in_columns() -> None:
    W = rounds_of("star", 5, weights=components("topology")["star"]().weights.uniform).mixing(0)[0]
    assert exact_weights(W) == [Fraction(1, 5)] + [Fraction(1, 2)] * 4 + [
        Fraction(1, k) for _ in range(4) for k in (5, 2)
    ]


def test_weights_that_are_no_short_fractions_are_taken_as_they_are() -> None:
    single = np.array([[2, 1], [1, 2]], dtype=np.float32) / 3
    rounds = Matrices([single.astype(np.float64)]).schedule(2)
    assert not recovered(rounds)
    assert exact_weights(rounds.mixing(0)[0])[1] == Fraction(float(np.float32(1) / 3))
    assert "weights exactly as their floating-point numbers" in privacy(rounds)
    assert recovered(rounds_of("ring", 2)) and "floating-point" not in privacy(rounds_of("ring", 2))


# -- relaying ----------------------------------------------------------------------------------------------------------


def depths(rounds: Rounds, worker: int) -> tuple[int, list[int]]:
    """1 + the sum over branches of their depth, and who is alone at its distance in its branch."""
    A = rounds.graphs()[0].dense()
    rank, alone = 1, []
    for neighbor in np.flatnonzero(A[worker]).tolist():
        seen, level = {worker, neighbor}, [neighbor]
        while level:
            rank += 1
            alone += level if len(level) == 1 else []
            level = [int(j) for i in level for j in np.flatnonzero(A[i]) if j not in seen]
            seen.update(level)
    return rank, sorted(alone)


@pytest.mark.parametrize(("topology", "n"), [("bt", 7), ("bt", 20), ("chain", 6), ("star", 6), ("spanning_tree", 32)])
def test_relaying_shows_sums_over_levels(topology: str, n: int) -> None:
    rounds = rounds_of(topology, n)
    for worker, found in enumerate(from_relaying(rounds, singles(rounds))):
        assert (found.rank, found.reconstructed) == depths(rounds, worker)


def test_relaying_gives_away_less_than_gossip() -> None:
    rounds = rounds_of("bt", 7)
    (relayed,), (gossip,) = from_relaying(rounds, [{4}]), from_gossip(rounds, [{4}])
    assert (relayed.rank, relayed.reconstructed, gossip.rank) == (5, [2, 6], 7)
    assert quantities()["gossip_gives_away"](rounds) == pytest.approx(34 / 42)
    assert quantities()["relaying_gives_away"](rounds) == pytest.approx(17 / 42)


def test_attackers_pool_what_they_are_relayed() -> None:
    """Twins 4 and 5 are told apart by 2, which hears both; 6 alone hears of them in a sum only."""
    (apart,) = from_relaying(rounds_of("bt", 7), [{2, 6}])
    assert apart.reconstructed == [0, 1, 3, 4, 5]


# -- what is refused, and what is said ---------------------------------------------------------------------------------


def test_graphs_that_cannot_be_judged_are_refused() -> None:
    machines = Communication(workers_per_machine=2).schedule(components("topology")["ring"](), 8)
    everybody = Communication(global_every=2).schedule(components("topology")["ring"](), 8)
    for rounds in (machines, everybody):
        with pytest.raises(ConfigError, match="not one exchange"):
            from_gossip(rounds, [{0}])
    with pytest.raises(ConfigError, match="topology=bt"):
        from_relaying(rounds_of("ring", 5), [{0}])


def test_silent_rounds_give_away_nothing_and_take_time() -> None:
    (found,) = from_gossip(Communication(every=3).schedule(components("topology")["ring"](), 6), [{0}])
    assert (found.rank, found.rounds) == (6, 9)


def test_nobody_knows_more_than_itself_alone() -> None:
    (alone,) = from_gossip(rounds_of("ring", 1), [{0}])
    assert isinstance(alone, Knowledge) and (alone.rank, alone.rounds, share_given_away([alone])) == (1, 0, 0)


SAID = (
    "one curious worker can work out the values of 4 to 6 (mean 4.9) of the 6 others, 1 to 5 of them not its "
    "neighbors, within 6 rounds; workers 4 and 5 hide each other from 0, 1, 3 and 6."
)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topology=bt", "num_workers=7"], SAID),
        (["num_workers=7", "bt"], SAID),
        (["topology=bt"], "num_workers=16 one curious worker can work out the values of 1 to 7"),
        (["topology=bt"], "Assumed: gossip averaging of constant values, W known, exact numbers. An upper bound"),
        (["topology=dbt"], "the first of 2 pieces of the model"),
        (["topology=ring"], "the values of all 15 others, 13 of them not its neighbors, within 8 rounds."),
        (["topology=complete"], "the values of all 15 others, all of them its neighbors, within 1 round."),
        (["topology=social"], "num_workers=32 one curious worker"),
        (["topology=ring", "num_workers=100"], "computed for 2 to 64 workers"),
        (["lr", "num_workers=7"], "num_workers=null"),
    ],
)
def test_help_says_what_a_graph_gives_away(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(main, "--help", *arguments) == 0
    assert says in " ".join(capsys.readouterr().out.split())


def test_help_refuses_a_number_for_which_there_is_no_such_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(main, "--help", "topology=hypercube", "num_workers=7") == 2
    assert "use num_workers=4 or 8" in capsys.readouterr().err
