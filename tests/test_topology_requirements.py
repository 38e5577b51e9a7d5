"""What algorithms ask of a topology, and butterfly groups."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.topology.groups import (
    activation_children,
    check_groups,
    dimension,
    group,
    group_period,
    group_size_auto,
    grouping,
    partners,
    phases,
)
from decentral.topology.requirements import check
from decentral.topology.rounds import Need, Rounds
from decentral.topology.topology import Weights

# -- What algorithms ask of a topology, and the sentence one gets when it is not so

TOPOLOGIES = components("topology")
TREES = {"chain", "bt", "dbt", "star", "spanning_tree"}
CHANGING = {"inner_outer_exponential", "inner_outer_ring", "one_peer", "one_peer_exponential"}
DIRECTED = {"epidemic", "exponential", *CHANGING}
CHANGING_UNDIRECTED = {"base_graph", "equidyn", "simple_base_graph"}
D2_REFUSES = {
    "equistatic",
    "random_regular",
    "social",
    "torus",
    "bt",
    "dbt",
    "hypercube",
    "grid",
    "symmetric_exponential",
}
AT_32 = [name for name in TOPOLOGIES if name not in ("file", "networkx", "d_cliques", "optimized", "stl_fw")]

GIVEN = {
    Need.whole: set(AT_32) - {"dbt"},
    Need.static: set(AT_32) - CHANGING - CHANGING_UNDIRECTED - {"epidemic"},
    Need.undirected: set(AT_32) - DIRECTED,
    Need.connected: set(AT_32),
    Need.tree: TREES,
    Need.row_stochastic: set(AT_32),
    Need.column_stochastic: set(AT_32) - {"epidemic"},
    Need.doubly_stochastic: set(AT_32) - {"epidemic"},
    Need.symmetric: set(AT_32) - DIRECTED,
    Need.bipartite: (TREES - {"dbt"})
    | {"base_graph", "grid", "hypercube", "ring", "simple_base_graph", "social", "torus"},
    Need.d2_spectrum: set(AT_32) - DIRECTED - D2_REFUSES,
}


def fixed(*W: list[list[float]]) -> Rounds:
    return Rounds(len(W[0]), lambda _: tuple(np.array(w, dtype=float) for w in W), num_pieces=len(W))


def accepts(schedule: Rounds, *needs: Need) -> bool:
    try:
        check(schedule, set(needs), algo="a", topology="t")
    except ConfigError as error:
        assert re.fullmatch(r"algo=a [^\n]*topology=t with num_workers=\d+[^\n]*: [^\n]+\.", str(error))
        return False
    return True


def test_topologies_meet_the_needs_in_the_table():
    for name in AT_32:
        rounds = TOPOLOGIES[name]().schedule(32)
        assert {need for need in Need if accepts(rounds, need)} == {need for need in Need if name in GIVEN[need]}


def test_the_edge_weight_that_the_d2_message_proposes_is_accepted():
    for name in D2_REFUSES - {"equistatic"}:  # which has no edge weight to choose
        with pytest.raises(ConfigError) as error:
            check(TOPOLOGIES[name]().schedule(32), {Need.d2_spectrum}, algo="d2", topology=name)
        proposed = re.search(r"topology\.edge_weight=(\S+) \(or less\)", str(error.value))
        assert proposed is not None
        constant = TOPOLOGIES[name](weights=Weights.constant, edge_weight=float(proposed[1]))
        assert accepts(constant.schedule(32), Need.d2_spectrum)


@pytest.mark.parametrize(
    ("topology", "fields", "need", "says"),
    [
        (
            "ring",
            {},
            Need.tree,
            "relays over trees.* is not a tree: use topology=chain, bt, dbt, star or spanning_tree",
        ),
        ("exponential", {}, Need.undirected, "is directed: use an undirected topology, .* push-sum, such as algo=sgp"),
        ("social", {}, Need.d2_spectrum, r"smallest eigenvalue of W is -0\.434, .*: use algo=exact_diffusion"),
        ("star", {"weights": Weights.uniform}, Need.doubly_stochastic, "rows or columns of topology=star .* sum to 1"),
        ("star", {"weights": Weights.uniform}, Need.row_stochastic, r"rows .*: use topology\.weights=pull"),
        ("star", {"weights": Weights.pull}, Need.doubly_stochastic, "columns .* would converge to a wrong mean"),
        ("star", {"weights": Weights.pull}, Need.column_stochastic, "columns .* sum to 1"),
    ],
)
def test_the_sentences_name_the_values_and_a_way_out(topology, fields, need, says):
    with pytest.raises(ConfigError, match=says):
        check(TOPOLOGIES[topology](**fields).schedule(32), {need}, algo="a", topology=topology)


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="not finite"):
        check(fixed([[np.inf]]), set(), algo="dpsgd", topology="file")


def test_every_piece_must_be_connected_and_a_cycle_beside_an_island_is_no_tree():
    joined, apart = [[0.5, 0.5], [0.5, 0.5]], [[1, 0], [0, 1]]
    assert accepts(fixed(joined, joined), Need.connected, Need.tree)
    assert not accepts(fixed(joined, apart), Need.connected)
    assert not accepts(fixed(joined, apart), Need.tree)
    triangle = np.eye(4)
    triangle[:3, :3] = 1 / 3
    assert not accepts(fixed(triangle.tolist()), Need.tree)


def test_one_way_streets_do_not_connect_but_a_cycle_of_them_does():
    assert not accepts(fixed([[1, 0], [0.5, 0.5]]), Need.connected)
    assert accepts(fixed([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]), Need.connected)
    with pytest.raises(ConfigError, match=r"not strongly connected: .* topology=networkx keeps the largest component"):
        check(fixed([[1, 0], [0.5, 0.5]]), {Need.connected}, algo="sgp", topology="file")


def test_graphs_of_different_rounds_connect_together():
    halves = [np.kron(np.eye(2), np.full((2, 2), 0.5)), np.kron(np.full((2, 2), 0.5), np.eye(2))]
    groups = Rounds(4, lambda round: (halves[round],), period=2)
    assert accepts(groups, Need.connected, Need.doubly_stochastic, Need.symmetric)
    assert not accepts(groups, Need.static)
    assert not accepts(Rounds(4, lambda _: (halves[0],)), Need.connected)


def test_one_worker_alone_satisfies_every_method_or_the_topology_is_refused():
    """Also with random graphs, which change with the round where there are others."""
    for name in TOPOLOGIES:
        try:
            rounds = TOPOLOGIES[name]().schedule(1)
        except ConfigError:
            continue
        check(rounds, set(Need), "relaysgd", name)
        assert rounds.period == 1 and len(rounds.edges()) == 0 and rounds.mixing(7)[0].dense().tolist() == [[1.0]]


# -- Groups that change by a butterfly: every property that WAGMA-SGD relies on, and where its printed algorithm fails

POWERS = [1 << n for n in range(11)]
CELLS = [(P, S) for P in POWERS for S in POWERS if S <= P]


def versions(P: int, S: int) -> list[int]:
    return [*range(group_period(P, S) + 1), 4095, 4096, 10**9 + 7]


def test_groups_have_the_right_size_and_partition_the_workers():
    for P, S in CELLS:
        for t in versions(P, S):
            groups = grouping(t, P, S)
            assert groups.shape == (P // S, S)
            assert sorted(groups.ravel().tolist()) == list(range(P))
            assert (np.diff(groups, axis=1) > 0).all() and (np.diff(groups[:, 0]) > 0).all()


def test_a_worker_sees_the_same_group_as_its_members():
    for P, S in [(P, S) for P, S in CELLS if P <= 64]:
        for t in versions(P, S):
            groups = {tuple(members) for members in grouping(t, P, S).tolist()}
            for p in range(P):
                assert tuple(group(p, t, P, S)) in groups and p in group(p, t, P, S)
                for r, partner in enumerate(partners(p, t, P, S)):
                    assert partners(partner, t, P, S)[r] == p and partner in group(p, t, P, S)


def test_a_contribution_reaches_everybody_in_ceil_n_over_k_versions_and_no_sooner():
    for P, S in [(P, S) for P, S in CELLS if P == 1 or S > 1]:
        needed = math.ceil(math.log2(P) / math.log2(S)) if P > 1 else 0
        for start in range(group_period(P, S)):
            reached = {0}
            for t in range(start, start + needed):
                assert len(reached) < P
                bits = phases(t, P, S)
                for bit in bits:
                    reached |= {p ^ (1 << bit) for p in reached}
            assert len(reached) == P


def test_the_examples_of_the_paper():
    assert grouping(0, 8, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grouping(1, 8, 4).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert activation_children(1, -1, 4) == [0, 3]
    assert activation_children(0, dimension(1, 0), 4) == [2]
    assert [group_size_auto(P) for P in (1, 2, 4, 8, 16, 64, 256, 1024)] == [1, 2, 2, 4, 4, 8, 16, 32]


def test_an_activation_reaches_every_worker_once_whoever_activates():
    for P in [1, 2, 4, 8, 64, 1024]:
        for root in {0, 1 % P, P - 1, P // 3}:
            heard, waiting = [root], [(root, -1)]
            while waiting:
                worker, came_over = waiting.pop()
                children = activation_children(worker, came_over, P)
                heard += children
                waiting += [(child, dimension(worker, child)) for child in children]
            assert sorted(heard) == list(range(P))


@pytest.mark.parametrize(
    ("P", "S", "said"),
    [
        (12, 4, "num_workers=12 does not allow butterfly groups: use a power of two, for "
         "example 8 or 16."),
        (0, 1, "use a power of two, for example 1 or 2."),
        (8, 3, "algo.group_size=3 is not a valid group size for num_workers=8: use one of 1, 2, 4, 8."),
        (4, 8, "algo.group_size=8 is not a valid group size for num_workers=4: use one of 1, 2, 4."),
        (4, 0, "algo.group_size=0 is not a valid group size"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused_with_those_that_work(P, S, said):
    with pytest.raises(ConfigError) as error:
        check_groups(P, S)
    assert said in str(error.value)
