"""What every topology promises. A new one joins by being a component of `decentral.topology`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.registry import components
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.rounds import Rounds, Split
from decentral.topology.topology import GraphTopology, Topology
from decentral.topology.weights import Weights

TOPOLOGIES = components("topology")
DIRECTED = {"exponential", "inner_outer_exponential", "inner_outer_ring", "one_peer", "one_peer_exponential"} | {
    "epidemic"
}
PULLS = {"epidemic"}
"""Whose default weights keep agreement, but not the mean."""
WEIGHED = {name for name, cls in TOPOLOGIES.items() if issubclass(cls, GraphTopology)}
"""Those with `weights`; the others have weights of their own."""
SIZES = [1, 2, 3, 5, 8, 16, 32]


def exists(name: str, num_workers: int) -> bool:
    if name == "social":
        return num_workers == 32
    if name == "hypercube":
        return num_workers in (1, 2, 4, 8, 16, 32)
    if name.startswith("inner_outer"):
        return num_workers >= 1 and num_workers % 4 == 0
    return num_workers >= 2 or name != "dbt"


@pytest.fixture
def build(tmp_path):
    """name -> topology; `file` gets a ring with a chord, `spanning_tree` the grid, `one_peer` the ring."""

    def _build(name: str, num_workers: int, **fields) -> Topology:
        if name == "file":
            edges = {(i, i + 1) for i in range(num_workers - 1)} | (
                {(0, num_workers // 2)} if num_workers > 2 else set()
            )
            np.savez(tmp_path / "graph.npz", edges=np.array(sorted(edges), dtype=np.int64).reshape(-1, 2))
            fields["path"] = str(tmp_path / "graph.npz")
        if name in ("spanning_tree", "one_peer"):
            fields["graph"] = {"spanning_tree": "grid", "one_peer": "ring"}[name]
        if "drawn_rounds" in TOPOLOGIES[name].__dataclass_fields__:
            fields["drawn_rounds"] = 12
        return TOPOLOGIES[name](**fields)

    return _build


def cases(*, sizes=SIZES, without=(), among=TOPOLOGIES):
    """(name, n) wherever the topology exists; an empty file is no graph, so `file` starts at n = 2."""
    return [
        pytest.param(name, n, id=f"{name}-{n}")
        for name in TOPOLOGIES
        if name in among
        for n in sizes
        if name not in without and exists(name, n) and (name, n) != ("file", 1)
    ]


def support(W: np.ndarray) -> np.ndarray:
    """Where j sends to i."""
    return Graph.of(W).dense()


def all_matrices(schedule: Rounds) -> list[np.ndarray]:
    return [W for round in range(schedule.period) for W in schedule.matrices(round)]


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("num_workers", [0, *SIZES])
def test_a_topology_that_does_not_exist_for_n_workers_says_so(build, name, num_workers):
    if num_workers >= 1 and (exists(name, num_workers) and (name, num_workers) != ("file", 1)):
        assert build(name, num_workers).schedule(num_workers).num_workers == num_workers
    else:
        with pytest.raises(ConfigError, match=r"(num_workers=\d+|no edges).*\.$"):
            build(name, num_workers).schedule(num_workers)


@pytest.mark.parametrize(("name", "n"), cases(without=PULLS))
def test_the_default_weights_are_nonnegative_and_doubly_stochastic(build, name, n):
    for W in all_matrices(build(name, n).schedule(n)):
        assert W.shape == (n, n) and W.dtype == np.float64
        assert (W >= 0).all() and (np.diag(W) > 0).all()
        np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-13)
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-13)


@pytest.mark.parametrize(("name", "n"), cases(without=DIRECTED))
def test_undirected_topologies_have_symmetric_matrices(build, name, n):
    for W in all_matrices(build(name, n).schedule(n)):
        assert np.array_equal(W, W.T)


@pytest.mark.parametrize(("name", "n"), cases(without=PULLS))
def test_mixing_preserves_the_mean_and_a_consensus(build, name, n):
    x = np.sin(np.arange(n) + 1.0)
    for W in all_matrices(build(name, n).schedule(n)):
        assert (W @ x).mean() == pytest.approx(x.mean(), abs=1e-14)
        np.testing.assert_allclose(W @ np.full(n, 3.0), 3.0, rtol=1e-14)


@pytest.mark.parametrize(("name", "n"), cases(without=PULLS))
def test_one_period_of_mixing_contracts_disagreement(build, name, n):
    schedule = build(name, n).schedule(n)
    for piece in range(schedule.num_pieces):
        product = np.eye(n)
        for round in range(schedule.period):
            product = schedule.matrices(round)[piece] @ product
        assert np.linalg.norm(product - 1 / n, 2) < 1 - 1e-6


@pytest.mark.parametrize(("name", "n"), cases(among=WEIGHED))
def test_uniform_weights_are_column_stochastic_and_split_a_column_equally(build, name, n):
    for W in all_matrices(build(name, n, weights=Weights.uniform).schedule(n)):
        np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-13)
        for column in W.T:
            assert len(set(column[column != 0])) == 1


@pytest.mark.parametrize(("name", "n"), cases(among=WEIGHED))
def test_pull_weights_are_row_stochastic_and_take_equally(build, name, n):
    for W in all_matrices(build(name, n, weights=Weights.pull).schedule(n)):
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-13)
        for row in W:
            assert len(set(row[row != 0])) == 1


@pytest.mark.parametrize(("name", "n"), cases(among=WEIGHED))
def test_pull_and_push_weights_are_transposes_on_undirected_graphs_and_equal_on_regular_ones(build, name, n):
    push, pull = (all_matrices(build(name, n, weights=w).schedule(n)) for w in (Weights.uniform, Weights.pull))
    for one, other in zip(push, pull, strict=True):
        A = support(one)
        assert not (A == A.T).all() or np.array_equal(one, other.T)
        assert np.array_equal(one, other) == (len({*A.sum(axis=0), *A.sum(axis=1)}) == 1)


@pytest.mark.parametrize(("name", "n"), cases(among=WEIGHED))
def test_metropolis_weights_follow_the_larger_degree_and_refuse_one_way_edges(build, name, n):
    default = build(name, n).schedule(n)
    topology = build(name, n, weights=Weights.metropolis)
    if name != "one_peer" and not all(is_undirected(Graph.of(W)) for W in all_matrices(default)):
        with pytest.raises(ConfigError, match=f"topology={name} is directed: use topology.weights=uniform"):
            topology.schedule(n)
        return
    for W in all_matrices(topology.schedule(n)):
        degree = support(W).sum(axis=1)
        for i, j in np.argwhere(support(W)):
            assert W[i, j] == 1 / (1 + max(degree[i], degree[j]))


@pytest.mark.parametrize(("name", "n"), cases(among=WEIGHED))
def test_constant_weights_put_the_same_weight_on_every_edge(build, name, n):
    for W in all_matrices(build(name, n, weights=Weights.constant, edge_weight=1 / 64).schedule(n)):
        assert set(W[support(W)]) <= {1 / 64}
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-13)


@pytest.mark.parametrize(("name", "n"), cases())
def test_the_matrices_of_a_round_are_kept_read_only_and_periodic(build, name, n):
    schedule = build(name, n).schedule(n)
    for round in range(schedule.period):
        first = schedule.matrices(round)
        assert len(first) == schedule.num_pieces
        for W, again, later in zip(
            first, schedule.matrices(round), schedule.matrices(round + 7 * schedule.period), strict=True
        ):
            assert W is again and W is later and not W.flags.writeable


@pytest.mark.parametrize("num_workers", range(2, 18))
def test_one_peer_exponential_averages_exactly_in_one_period_iff_n_is_a_power_of_two(num_workers):
    schedule = TOPOLOGIES["one_peer_exponential"]().schedule(num_workers)
    assert 2 ** (schedule.period - 1) < num_workers <= 2**schedule.period
    for start in range(schedule.period):
        product = np.eye(num_workers)
        for round in range(start, start + schedule.period):
            product = schedule.matrices(round)[0] @ product
        assert np.allclose(product, 1 / num_workers, atol=1e-15) == (num_workers == 2**schedule.period)


def test_a_schedule_may_compute_a_different_matrix_for_each_of_many_rounds():
    asked: list[int] = []

    def matrices(round: int) -> tuple[np.ndarray, ...]:
        asked.append(round)
        return (np.roll(np.eye(5), round, axis=0),)

    schedule = Rounds(5, matrices, period=1000)
    for round in [0, 0, *range(1, 200), 3, 1003]:
        assert np.array_equal(schedule.matrices(round)[0], np.roll(np.eye(5), round % 1000, axis=0))
    assert asked == [*range(200)]  # a round is computed once, as long as all that is known of rounds is little


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("num_pieces", [1, 2, 3])
@pytest.mark.parametrize("num_coordinates", [1, 2, 7, 12, 101])
def test_slices_partition_the_coordinates(split, num_pieces, num_coordinates):
    schedule = Rounds(2, lambda _: (np.eye(2),) * num_pieces, num_pieces=num_pieces, split=split)
    pieces = [np.arange(num_coordinates)[piece] for piece in schedule.slices(num_coordinates)]
    assert sorted(np.concatenate(pieces)) == list(range(num_coordinates))
    sizes = [len(piece) for piece in pieces]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    step = num_pieces if split is Split.interleaved else 1
    assert all((np.diff(piece) == step).all() for piece in pieces)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"weights": Weights.constant}, "weights=constant needs topology.edge_weight"),
        ({"edge_weight": 0.2}, "edge_weight=0.2 is used with topology.weights=constant only"),
        ({"weights": Weights.metropolis, "edge_weight": 0.2}, "not with topology.weights=metropolis"),
        ({"weights": Weights.constant, "edge_weight": 0.6}, r"the largest possible edge weight is 1/2 = 0.5"),
    ],
)
def test_weights_that_make_no_sense_are_refused(fields, says):
    with pytest.raises(ConfigError, match=says):
        TOPOLOGIES["ring"](**fields).schedule(8)


def test_every_topology_can_be_chosen_by_a_file_in_conf():
    folder = Path(__file__).parents[1] / "conf" / "topology"
    assert {path.stem for path in folder.glob("*.yaml")} == set(TOPOLOGIES)
    for name in TOPOLOGIES:
        first = (folder / f"{name}.yaml").read_text().splitlines()[0]
        assert first.startswith("# ") and first.endswith(".")


def test_double_binary_trees_need_neither_torch_nor_networkx():
    code = (
        "import sys; from decentral.registry import components; components('topology')['dbt']().schedule(16).edges();"
        "print(sorted({'torch', 'networkx', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
