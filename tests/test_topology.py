"""What every topology promises. A new one joins by being a component of `decentral.topology`."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.registry import components
from decentral.report.summary import summary
from decentral.runtime.launch import launch
from decentral.topology.file import File, NetworkX
from decentral.topology.graph import Graph, is_undirected
from decentral.topology.rounds import Rounds, Split
from decentral.topology.topology import GraphTopology, Topology, Weights
from decentral.topology.trees import SpanningTree

TOPOLOGIES = components("topology")
DIRECTED = {"exponential", "inner_outer_exponential", "inner_outer_ring", "one_peer", "one_peer_exponential"} | {
    "epidemic",
    "stl_fw",
}
PULLS = {"epidemic"}
"""Whose default weights keep agreement, but not the mean."""
WEIGHED = [name for name, cls in TOPOLOGIES.items() if issubclass(cls, GraphTopology)]
"""Those with `weights`; the others have weights of their own."""


def exists(name: str, num_workers: int) -> bool:
    if name == "social":
        return num_workers == 32
    if name == "hypercube":
        return num_workers in (1, 2, 4, 8, 16, 32)
    if name.startswith("inner_outer"):
        return num_workers >= 1 and num_workers % 4 == 0
    return num_workers >= (2 if name in ("dbt", "file", "networkx") else 1)


@pytest.fixture
def build(tmp_path):
    """name -> topology; `file` and `networkx` get a chain with a chord, `spanning_tree` a grid, `one_peer` a ring."""

    def _build(name: str, num_workers: int, **fields) -> Topology:
        if name in ("file", "networkx"):
            edges = {(i, i + 1) for i in range(num_workers - 1)} | (
                {(0, num_workers // 2)} if num_workers > 2 else set()
            )
            np.savez(tmp_path / "graph.npz", edges=np.array(sorted(edges), dtype=np.int64).reshape(-1, 2))
            fields |= {"path": str(tmp_path / "graph.npz")} if name == "file" else {"graph": nx.Graph(edges)}
        if name in ("spanning_tree", "one_peer"):
            fields["graph"] = {"spanning_tree": "grid", "one_peer": "ring"}[name]
        if name in ("stl_fw", "d_cliques"):
            np.save(tmp_path / "shares.npy", np.random.default_rng(0).random((num_workers, 5)) + 0.1)
            fields["shares"] = str(tmp_path / "shares.npy")
        if "drawn_rounds" in TOPOLOGIES[name].__dataclass_fields__:
            fields["drawn_rounds"] = 12
        return TOPOLOGIES[name](**fields)

    return _build


def all_matrices(schedule: Rounds) -> list[np.ndarray]:
    return [W for round in range(schedule.period) for W in schedule.matrices(round)]


def test_slices_partition_the_coordinates():
    for split, num_pieces, num_coordinates in itertools.product(Split, [1, 2, 3], [1, 2, 7, 12, 101]):
        schedule = Rounds(2, lambda _, pieces=num_pieces: (np.eye(2),) * pieces, num_pieces=num_pieces, split=split)
        pieces = [np.arange(num_coordinates)[piece] for piece in schedule.slices(num_coordinates)]
        assert sorted(np.concatenate(pieces)) == list(range(num_coordinates))
        sizes = [len(piece) for piece in pieces]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
        step = num_pieces if split is Split.interleaved else 1
        assert all((np.diff(piece) == step).all() for piece in pieces)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_default_matrices(build, name):
    """They exist or n is refused; they are stochastic, contracting, periodic, and symmetric if undirected."""
    for n in [0, 1, 2, 3, 5, 8, 32]:
        if not exists(name, n):
            with pytest.raises(ConfigError, match=r"(num_workers=\d+|no edges).*\.$"):
                build(name, n).schedule(n)
            continue
        schedule = build(name, n).schedule(n)
        products = [np.eye(n)] * schedule.num_pieces
        for round in range(schedule.period):
            later = schedule.matrices(round + 7 * schedule.period)
            for piece, W in enumerate(schedule.matrices(round)):
                assert np.array_equal(W, later[piece])
                assert W.shape == (n, n) and W.dtype == np.float64 and (W >= 0).all() and (np.diag(W) > 0).all()
                np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-13)
                if name not in PULLS:
                    np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-13)
                assert name in DIRECTED or np.array_equal(W, W.T)
                products[piece] = W @ products[piece]
        for product in products:
            assert name in PULLS or np.linalg.norm(product - 1 / n, 2) < 1 - 1e-6


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_follow_their_formula(build, name):
    for weights in Weights:
        edge_weight = 1 / 64 if weights is Weights.constant else None
        for n in (3, 8, 32):
            if not exists(name, n):
                continue
            default = all_matrices(build(name, n).schedule(n))
            topology = build(name, n, weights=weights, edge_weight=edge_weight)
            symmetric = all(is_undirected(Graph.of(W)) for W in default)
            if weights is Weights.metropolis and not symmetric and name != "one_peer":
                with pytest.raises(ConfigError, match=f"topology={name} is directed: use topology.weights=uniform"):
                    topology.schedule(n)
                continue
            for before, W in zip(default, all_matrices(topology.schedule(n)), strict=True):
                A = Graph.of(before).dense()
                if weights is Weights.metropolis:  # an edge of a round goes both ways
                    A = A | A.T
                own, into, out = np.eye(n, dtype=bool), A.sum(1), A.sum(0)
                rest = A * (edge_weight or 0) if weights is Weights.constant else A / (1 + np.maximum.outer(out, out))
                expected = rest + np.diag(1 - rest.sum(1))
                if weights is Weights.uniform or (weights is Weights.auto and not symmetric):
                    expected = (A | own) / (1 + out)
                elif weights is Weights.pull:
                    expected = (A | own) / (1 + into)[:, None]
                if (name, weights) != ("epidemic", Weights.auto):  # which pulls
                    np.testing.assert_allclose(W, expected, rtol=0, atol=1e-15)


def test_what_does_not_exist_is_refused():
    for name, fields, n, says in [
        ("ring", {"weights": Weights.constant}, 8, "topology.weights=constant needs topology.edge_weight"),
        ("ring", {"edge_weight": 0.2}, 8, "topology.edge_weight=0.2 needs topology.weights=constant"),
        ("ring", {"weights": Weights.constant, "edge_weight": 0.6}, 8, ".*use at most 1/2 = 0.5"),
        ("star", {"center": 8}, 8, "topology.center=8 is not a worker: with num_workers=8 use 0 to 7"),
        ("hypercube", {}, 12, ".*use num_workers=8 or 16"),
        ("grid", {"rows": 5}, 12, "topology.rows=5 does not divide num_workers=12: choose one of 1, 2, 3, 4, 6, 12"),
        ("dbt", {}, 1, ".*use num_workers=2 or more, or topology=bt"),
        ("spanning_tree", {"graph": "rnig"}, 8, ".*topology.graph=rnig .* Did you mean 'ring'"),
        (
            "spanning_tree",
            {"graph": "ring", "path": "x.csv"},
            8,
            "topology.path=x.csv is not a setting of topology.graph=",
        ),
        ("spanning_tree", {"graph": "ring", "root": 8}, 8, "topology.root=8 is not a worker: .* use 0 to 7"),
        ("spanning_tree", {"graph": "dbt"}, 8, ".*topology.graph=dbt is 2 graphs"),
        ("spanning_tree", {"graph": "one_peer_exponential"}, 8, ".* changes with the round"),
        ("spanning_tree", {}, 8, ".*use num_workers=32"),
        ("one_peer", {"graph": "one_peer"}, 8, "topology.graph=one_peer is not another topology"),
        ("one_peer", {"graph": "one_peer_exponential"}, 8, ".*changes with the round.* topology=one_peer_exponential"),
        ("one_peer", {"graph": "hypercube"}, 6, "topology=hypercube needs a power of two"),
        ("one_peer_exponential", {"neighbors": 4}, 8, "topology.neighbors=4 exceeds the 3 hops .* use at most 3"),
        (
            "inner_outer_ring",
            {"workers_per_machine": 2},
            8,
            "topology.workers_per_machine=2 is too small .* use at least 3",
        ),
        ("inner_outer_exponential", {}, 10, ".*num_workers=10 is not a multiple of .*=4: use num_workers=12, or"),
        (
            "inner_outer_exponential",
            {"workers_per_machine": 1021},
            8168,
            "topology=inner_outer_exponential with num_wo",
        ),
        ("random_regular", {"degree": 3}, 5, ".*num_workers=5 are both odd"),
        ("random_regular", {"degree": 5}, 5, "topology.degree=5 .* use 1 to 4"),
        ("epidemic", {"sends": 5}, 5, "topology.sends=5 .* use 1 to 4"),
        ("equidyn", {"drawn_rounds": 0}, 5, "topology.drawn_rounds=0 .* from 1 to"),
    ]:
        with pytest.raises(ConfigError, match=rf"^{says}.*[.?]$"):
            TOPOLOGIES[name](**fields).schedule(n)


# -- Topologies of your own: what a file of edges means, and what is refused -------------------------------------------


@pytest.fixture
def csv(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "graph.csv"
        path.write_text(text)
        return str(path)

    return write


def test_an_edge_that_is_written_over_is_read_again(csv):
    for target in (1, 2):  # of the same size, at once
        assert File(path=csv(f"0,{target}")).implied_num_workers() == target + 1


def test_npz_and_csv_files_mean_the_same(csv, tmp_path):
    np.savez(tmp_path / "graph.npz", edges=np.array([[0, 1], [1, 2]]), weights=np.array([0.25, 0.5]))
    ours = File(path=str(tmp_path / "graph.npz")).schedule(3).matrices(0)
    assert np.array_equal(ours, File(path=csv("0,1,.25\n1,2,.5")).schedule(3).matrices(0))


def test_a_file_can_be_spanned(csv):
    (A,) = SpanningTree(graph="file", path=csv("0,1\n1,2\n2,3\n3,0"), root=1).schedule(4).graphs()
    assert sorted((i, j) for i, j in zip(A.src, A.dst, strict=True) if i < j) == [(0, 1), (0, 3), (1, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no edges"),
        ("source,target\n", "has no edges"),
        ("0,1\n1,two\n", "line 2 .* has 'two' instead of a worker's number"),
        ("0.5,1\n", "line 1 .* has '0.5'"),
        ("0,99999999999999999999\n", "line 1 .* has '99999999999999999999'"),
        ("0,1\n\n1,3\n", "line 3 .* has the edge 1,3: with num_workers=3, use workers 0 to 2"),
        ("0,1\n1,2\n1,0\n", r"line 3 .* repeats the edge 1,0 of line 1 \(edges are undirected unless"),
        ("0,1\n1,1\n", "line 2 .* is a loop from worker 1 to itself"),
        ("0,1\n1,2,0.5\n", "line 2 .* has 3 columns"),
        ("0 1\n1 2\n", "line 1 .* has no comma: .*; topology=networkx reads edge lists separated by spaces"),
        ("0,1,0.5\n1,2,nan\n", "line 2 .* has 'nan' instead of a finite weight"),
        ("from,to\n0,1\n", "line 1 of .* names the columns .*: name them source,target or source,t"),
        ("weight,source\n0,1\n", "line 1 of .* names the columns .*: name them source,target or source,t"),
    ],
)
def test_a_broken_file_is_refused_naming_the_line(csv, text, says):
    with pytest.raises(ConfigError, match=rf"({says}).*\.$") as error:
        File(path=csv(text)).schedule(3)
    assert "graph.csv" in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"links": np.zeros((2, 2), int)}, "cannot be read as .npz with an array 'edges'"),
        ({"edges": np.zeros((2, 2))}, r"integers of shape \[E, 2\], not float64 \[2, 2\]"),
        ({"edges": np.array([[0, 1]]), "weights": np.ones(2)}, "one entry for each of the 1 edges"),
        ({"edges": np.array([[0, 1]]), "weights": np.array([np.inf])}, "row 0 of 'edges' .* has 'inf'"),
        ({"edges": np.array([[0, 1], [1, 7]])}, "row 1 of 'edges' .* has the edge 1,7"),
        (b"PK\x03\x04 cut short", r"cannot be read as \.npz"),
    ],
)
def test_a_broken_npz_file_is_refused(tmp_path, arrays, says):
    if isinstance(arrays, bytes):
        (tmp_path / "graph.npz").write_bytes(arrays)
    else:
        np.savez(tmp_path / "graph.npz", **arrays)
    with pytest.raises(ConfigError, match=says):
        File(path=str(tmp_path / "graph.npz")).schedule(3)


def test_an_algorithm_that_needs_other_weights_than_those_of_the_file_is_not_told_to_choose_a_rule_beside_them(csv):
    path = csv("0,1,0.5\n1,0,0.25")
    with pytest.raises(ConfigError, match=r"sum to 1.*: give other weights, or remove them and use topology\.weights="):
        compose(["algo=dpsgd", "topology=file", f"topology.path={path}", "topology.directed=true", "task=quadratics"])


def test_a_disconnected_file_has_no_spanning_tree(csv):
    with pytest.raises(ConfigError, match=r"topology\.graph=file is not connected for num_workers=4"):
        SpanningTree(graph="file", path=csv("0,1\n2,3")).schedule(4)


@pytest.mark.parametrize(
    ("topology", "way"),
    [
        (["topology=file"], "both ways; topology.directed=true reads it from a to b only"),
        (["topology=file", "topology.directed=true"], "from a to b only"),
        (["topology=one_peer", "topology.graph=file", "topology.directed=true"], "from a to b only"),
    ],
)
def test_a_run_says_which_way_it_read_the_lines(csv, tmp_path, topology, way):
    path = csv("0,1\n1,2\n2,0")
    quick = ["task=quadratics", "num_workers=3", "steps=2", "progress=false", "device=cpu", "algo=sgp", "processes=1"]
    outcome = launch(prepare(compose([*quick, *topology, f"topology.path={path}", f"run_dir={tmp_path}/run"])))
    assert f"Note:     a line a,b of topology.path={path} is an edge {way}\n" in summary(outcome.directory)


@pytest.mark.parametrize(
    ("text", "directed", "expected"),
    [
        ("0,1\n1,2\n", False, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3),
        ("\ufeffsource,target\r\n0,1\r\n1,2\r\n", False, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3),
        ("0,1\n0,2\n1,2\n2,0", True, [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]]),
        ("source,target,weight\n0,1,0.25\n1,2,0.5", False, [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]]),
        ("target,source,weight\n1,0,0.25\n2,1,0.5", True, [[1, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5]]),
        ("# weight,Source , target\n.25,0,1\n\n.5,1,2", True, [[1, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5]]),
        ("0,0,0.5\n0,1,0.5\n1,0,1\n1,2,0", True, [[0.5, 1, 0], [0.5, 0.5, 0], [0, 0, 1]]),
    ],
)
def test_lines_of_a_graph_file_are_edges(csv, text, directed, expected):
    (W,) = File(path=csv(text), directed=directed).schedule(3).matrices(0)
    np.testing.assert_allclose(W, expected)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, r"topology=file needs topology\.path=FILE"),
        ({"path": "nowhere.csv"}, r"topology\.path=nowhere\.csv is not a file"),
        ({"path": "0,1,0.5", "weights": Weights.uniform}, "topology.weights=uniform conflicts with topology.path="),
        (
            {"path": "0,1\n0,1\n", "directed": True},
            r"line 2 .* repeats the edge 0,1 of line 1: list each edge once\.$",
        ),
    ],
)
def test_settings_that_do_not_go_with_a_file_are_refused(csv, fields, says):
    if "," in fields.get("path", ""):
        fields = fields | {"path": csv(fields["path"])}
    with pytest.raises(ConfigError, match=says):
        File(**fields).schedule(2)


def test_networkx_reads_the_largest_component_of_every_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    edges = [("x", "y"), ("n10", "n2"), ("n2", "n1"), ("n1", "n10"), ("n2", "n10"), ("n1", "n1"), ("n1", "q")]
    G = nx.MultiDiGraph(edges)
    simple = nx.Graph(G)
    nx.write_graphml(G, "g.graphml")
    nx.write_gml(simple, "g.gml")
    nx.write_adjlist(simple, "g.adjlist")
    nx.write_weighted_edgelist(simple, "g.txt.gz")
    nx.write_edgelist(simple, "g.edgelist")
    degrees = np.array([3, 2, 2, 1])
    A = np.array([[0, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    W = A / (1 + np.maximum.outer(degrees, degrees))
    W += np.diag(1 - W.sum(1))
    for given in ({"path": "g.graphml"}, {"path": "g.gml"}, {"path": "g.adjlist"}, {"path": "g.txt.gz"},
                  {"path": "g.edgelist"}, {"graph": G}):  # fmt: skip
        topology = NetworkX(**given)
        assert (topology.implied_num_workers(), topology.worker_names(4)) == (4, ["n1", "n2", "n10", "q"])
        np.testing.assert_allclose(topology.schedule(4).mixing(0)[0].dense(), W, rtol=0, atol=1e-15)
        assert "has 4 of its 6 nodes" in topology.notes()[0]
    nx.write_edgelist(nx.karate_club_graph(), "karate.edges")
    assert NetworkX(path="karate.edges").implied_num_workers() == 34
    assert NetworkX(path="karate.edges").worker_names(34) == []
    nodes = "".join(f"node [ id {number} ]\n" for number in (10, 2, 1))
    Path("ids.gml").write_text(f"graph [ {nodes} edge [ source 1 target 10 ]\nedge [ source 2 target 10 ] ]")
    assert NetworkX(path="ids.gml").worker_names(3) == ["1", "2", "10"]
    Path("bad.graphml").write_text("<graphml")
    Path("comma.edges").write_text("1,2\n2,3\n")
    Path("empty.adjlist").write_text("a\nb\n")
    for given, words in (
        ({"path": "g.csv"}, "is not a file"),
        ({"path": "bad.graphml"}, "cannot be read by networkx.read_graphml"),
        ({"path": "empty.adjlist"}, "has no edges between different nodes"),
        ({"path": "comma.edges"}, r"have spaces between nodes \(topology=file reads commas\)"),
        ({}, "topology=networkx needs topology.path=FILE"),
    ):
        with pytest.raises(ConfigError, match=words):
            NetworkX(**given).schedule(4)
    with pytest.raises(ConfigError, match="has 4 nodes in its largest component, not num_workers=5: leave num_workers"):
        NetworkX(path="g.gml").schedule(5)
    Path("g.csv").touch()
    with pytest.raises(ConfigError, match=r"has the extension '\.csv': use \.graphml"):
        NetworkX(path="g.csv").schedule(4)


def test_a_graph_of_fedivertex_has_the_number_of_workers(tmp_path, monkeypatch):
    """With the package and small files in its format, instead of those that it downloads."""
    fedivertex = pytest.importorskip("fedivertex")
    folder = tmp_path / "peertube" / "follow" / "20250324"
    folder.mkdir(parents=True)
    (folder / "instances.csv").write_text("host,Id,Label\n" + "".join(f"s{i},s{i},s{i}\n" for i in range(6)))
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 2), (4, 5)]
    lines = [f"s{a},s{b},1" for a, b in edges]
    (folder / "interactions.csv").write_text("\n".join(["Source,Target,Weight", *lines]) + "\n")
    info = SimpleNamespace(light_version=True, dataset_dir=tmp_path)
    monkeypatch.setattr(fedivertex.main, "load_dataset", lambda *_: info)
    monkeypatch.chdir(Path(__file__).parents[1] / "examples" / "own_model")
    found = compose(["task=quadratics", "algo=dpsgd", "topology=mymodule:fediverse"])
    assert (found.num_workers, found.topology.worker_names(4)) == (4, ["s0", "s1", "s2", "s3"])
