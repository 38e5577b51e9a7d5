"""What algorithms ask of a topology, and the sentence one gets when it is not so."""

from __future__ import annotations

import re

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.topology.requirements import Need, check
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights

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
AT_32 = [name for name in TOPOLOGIES if name != "file"]

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


@pytest.mark.parametrize("need", Need)
@pytest.mark.parametrize("name", AT_32)
def test_which_topology_gives_what(name, need):
    assert accepts(TOPOLOGIES[name]().schedule(32), need) == (name in GIVEN[need])


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in TOPOLOGIES
        if name not in {"file", "dbt", "social", "spanning_tree"} and not name.startswith("inner_outer")
    ],
)
def test_one_worker_satisfies_every_need(name):
    assert accepts(TOPOLOGIES[name]().schedule(1), *Need)


@pytest.mark.parametrize("num_workers", [4, 8, 16, 64])
def test_even_rings_sit_on_the_bound_of_d2_and_pass(num_workers):
    assert accepts(TOPOLOGIES["ring"]().schedule(num_workers), Need.d2_spectrum)


@pytest.mark.parametrize("name", sorted(D2_REFUSES - {"equistatic"}))  # which has no edge weight to choose
def test_the_edge_weight_that_the_d2_message_proposes_is_accepted(name):
    with pytest.raises(ConfigError) as error:
        check(TOPOLOGIES[name]().schedule(32), {Need.d2_spectrum}, algo="d2", topology=name)
    proposed = re.search(r"topology\.edge_weight=(\S+) \(or less\)", str(error.value))
    assert proposed is not None
    constant = TOPOLOGIES[name](weights=Weights.constant, edge_weight=float(proposed[1]))
    assert accepts(constant.schedule(32), Need.d2_spectrum)


def test_the_sentences_name_the_values_and_a_way_out():
    with pytest.raises(ConfigError) as relay:
        check(TOPOLOGIES["ring"]().schedule(16), {Need.tree}, algo="relaysgd", topology="ring")
    assert str(relay.value) == (
        "algo=relaysgd relays over trees, but topology=ring with num_workers=16 has a cycle: "
        "use topology=chain, bt, dbt, star or spanning_tree."
    )
    with pytest.raises(ConfigError) as directed:
        check(TOPOLOGIES["exponential"]().schedule(16), {Need.undirected}, algo="a", topology="exponential")
    assert str(directed.value) == (
        "algo=a needs links that go both ways, but topology=exponential with num_workers=16 is directed: "
        "use an undirected topology, such as grid, or an algorithm with push-sum, such as algo=sgp."
    )
    with pytest.raises(
        ConfigError, match=r"smallest eigenvalue of W is -0\.434, below -1/3, .*: use algo=exact_diffusion"
    ):
        check(TOPOLOGIES["social"]().schedule(32), {Need.d2_spectrum}, algo="d2", topology="social")


def test_matrices_that_are_not_stochastic_are_refused_with_their_worst_sum():
    push = TOPOLOGIES["star"](weights=Weights.uniform).schedule(4)
    assert accepts(push, Need.column_stochastic) and not accepts(push, Need.row_stochastic)
    pull = TOPOLOGIES["star"](weights=Weights.pull).schedule(4)
    assert accepts(pull, Need.row_stochastic) and not accepts(pull, Need.column_stochastic)
    with pytest.raises(ConfigError, match=r"a row of topology=star with num_workers=4 sums to 1\.75 instead of 1"):
        check(push, {Need.doubly_stochastic}, algo="dpsgd", topology="star")
    with pytest.raises(
        ConfigError, match=r"a row of topology=star .* 1\.75 instead of 1: use topology\.weights=pull\.$"
    ):
        check(push, {Need.row_stochastic}, algo="a", topology="star")
    with pytest.raises(
        ConfigError, match=r"a column of topology=star .* so that the workers would agree on a wrong mean"
    ):
        check(pull, {Need.doubly_stochastic}, algo="dpsgd", topology="star")
    with pytest.raises(ConfigError, match=r"a column of topology=file with num_workers=2 sums to 1\.5 instead of 1"):
        check(fixed([[1, 0], [0.5, 0.5]]), {Need.column_stochastic}, algo="sgp", topology="file")


def test_weights_that_are_not_finite_are_refused_whatever_is_needed():
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


def test_graphs_of_different_rounds_connect_together():
    halves = [np.kron(np.eye(2), np.full((2, 2), 0.5)), np.kron(np.full((2, 2), 0.5), np.eye(2))]
    groups = Rounds(4, lambda round: (halves[round],), period=2)
    assert accepts(groups, Need.connected, Need.doubly_stochastic, Need.symmetric)
    assert not accepts(groups, Need.static)
    assert not accepts(Rounds(4, lambda _: (halves[0],)), Need.connected)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_one_worker_alone_satisfies_every_method_or_the_topology_is_refused(name):
    """Also with random graphs, which change with the round where there are others."""
    try:
        rounds = TOPOLOGIES[name]().schedule(1)
    except ConfigError:
        return
    check(rounds, set(Need), "relaysgd", name)
    assert rounds.period == 1 and len(rounds.edges()) == 0 and rounds.mixing(7)[0].dense().tolist() == [[1.0]]
