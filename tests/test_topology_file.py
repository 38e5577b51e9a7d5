"""Topologies of your own: what a file of edges means, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.report.summary import summary
from decentral.runtime.launch import launch
from decentral.topology.file import File
from decentral.topology.spanning_tree import SpanningTree
from decentral.topology.weights import Weights


@pytest.fixture
def csv(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "graph.csv"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    "text", ["0,1\n1,2\n", "source,target\n0,1\n1,2\n", "\n 0 , 1\n\n2,1", "\ufeffsource,target\r\n0,1\r\n1,2\r\n"]
)
def test_edges_without_weights_are_undirected_and_get_metropolis_weights(csv, text):
    (W,) = File(path=csv(text)).schedule(3).matrices(0)
    np.testing.assert_allclose(W, np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3)


def test_directed_edges_lead_from_source_to_target_and_push_equal_parts(csv):
    (W,) = File(path=csv("0,1\n0,2\n1,2\n2,0"), directed=True).schedule(3).matrices(0)
    np.testing.assert_allclose(W, [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])


def test_weights_in_the_file_are_the_matrix_and_the_rest_of_a_row_is_its_own(csv):
    (W,) = File(path=csv("source,target,weight\n0,1,0.25\n1,2,0.5")).schedule(3).matrices(0)
    np.testing.assert_allclose(W, [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]])


@pytest.mark.parametrize(
    "text",
    ["target,source,weight\n1,0,0.25\n2,1,0.5", "weight,Source , target\n.25,0,1\n.5,1,2", "# source,weight,target\n"
     "0,.25,1\n1,.5,2", "weight,target,source\n0.25,1,0\n\n0.5,2,1\n"],
)  # fmt: skip
def test_a_header_names_the_columns(csv, text):
    (W,) = File(path=csv(text), directed=True).schedule(3).matrices(0)
    np.testing.assert_allclose(W, [[1, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5]])


@pytest.mark.parametrize(
    "head", ["from,to", "source,target,color", "source,source", "weight,source", "source", ",source,target", "a,b,c,d"]
)
def test_a_header_of_other_columns_is_refused(csv, head):
    with pytest.raises(ConfigError, match=r"line 1 of .* names the columns .*: name them source,target or source,t"):
        File(path=csv(f"{head}\n0,1,1\n")).implied_num_workers()


def test_an_edge_that_is_written_over_is_read_again(csv):
    for target in (1, 2):  # of the same size, at once
        assert File(path=csv(f"0,{target}")).implied_num_workers() == target + 1


def test_a_loop_gives_the_weight_of_its_own(csv):
    (W,) = File(path=csv("0,0,0.5\n0,1,0.5\n1,0,1"), directed=True).schedule(2).matrices(0)
    np.testing.assert_allclose(W, [[0.5, 1], [0.5, 0.5]])


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
        ("", "holds no edges"),
        ("# later\n", "holds no edges"),
        ("0\t1\n", "line 1 .* has 1 columns|holds no edges"),
        ("source,target\n", "holds no edges"),
        ("0,1\n1,two\n", "line 2 .* has 'two' where a worker's number should be"),
        ("0.5,1\n", "line 1 .* has '0.5'"),
        ("0,99999999999999999999\n", "line 1 .* has '99999999999999999999'"),
        ("0,1\n\n1,3\n", "line 3 .* has the edge 1,3, but with num_workers=3 workers are numbered 0 to 2"),
        ("0,1\n-1,2\n", "line 2 .* has the edge -1,2"),
        ("0,1\n1,2\n1,0\n", r"line 3 .* repeats the edge 1,0 of line 1 \(an edge goes both ways unless"),
        ("0,1\n1,1\n", "line 2 .* is a loop from worker 1 to itself"),
        ("0,1\n1,2,0.5\n", "line 2 .* has 3 columns"),
        ("0\n1\n", "line 1 .* has 1 columns"),
        ("0,1,0.5\n1,2,nan\n", "line 2 .* has 'nan' where a finite weight should be"),
    ],
)
def test_a_broken_file_is_refused_naming_the_line(csv, text, says):
    with pytest.raises(ConfigError, match=rf"({says}).*\.$") as error:
        File(path=csv(text)).schedule(3)
    assert "graph.csv" in str(error.value)


def test_a_file_without_edges_says_so_when_asked_for_its_number_of_workers(csv):
    with pytest.raises(ConfigError, match="holds no edges"):
        File(path=csv("")).implied_num_workers()


def test_a_directed_edge_may_have_its_opposite_but_not_its_double(csv):
    assert File(path=csv("0,1\n1,0\n"), directed=True).schedule(2).edges().src.tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"line 2 .* repeats the edge 0,1 of line 1: list every edge once\.$"):
        File(path=csv("0,1\n0,1\n"), directed=True).schedule(2)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"links": np.zeros((2, 2), int)}, "cannot be read as .npz with an array 'edges'"),
        ({"edges": np.zeros((2, 2))}, r"integers of shape \[E, 2\], not float64 \[2, 2\]"),
        ({"edges": np.zeros((0, 2), int)}, "holds no edges"),
        ({"edges": np.zeros(4, int)}, r"not int64 \[4\]"),
        ({"edges": np.array([[0, 1]]), "weights": np.ones(2)}, "one entry for each of the 1 edges"),
        ({"edges": np.array([[0, 1]]), "weights": np.array([np.inf])}, "row 0 of 'edges' .* has 'inf'"),
        ({"edges": np.array([[0, 1], [1, 7]])}, "row 1 of 'edges' .* has the edge 1,7"),
    ],
)
def test_a_broken_npz_file_is_refused(tmp_path, arrays, says):
    np.savez(tmp_path / "graph.npz", **arrays)
    with pytest.raises(ConfigError, match=says):
        File(path=str(tmp_path / "graph.npz")).schedule(3)


@pytest.mark.parametrize("content", [b"", b"0,1\n", b"PK\x03\x04 cut short"])
def test_a_file_that_only_claims_to_be_npz_is_refused(tmp_path, content):
    (tmp_path / "graph.npz").write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be read as \.npz"):
        File(path=str(tmp_path / "graph.npz")).schedule(3)


def test_a_missing_file_and_a_missing_path_are_told_apart():
    with pytest.raises(ConfigError, match=r"topology=file needs topology\.path=FILE"):
        File().schedule(3)
    with pytest.raises(ConfigError, match=r"topology\.path=nowhere\.csv is not a file"):
        File(path="nowhere.csv").schedule(3)


def test_an_algorithm_that_needs_other_weights_than_those_of_the_file_is_not_told_to_choose_a_rule_beside_them(csv):
    path = csv("0,1,0.5\n1,0,0.25")
    with pytest.raises(ConfigError, match=r"sums to .*: give other weights, or remove them and use topology\.weights="):
        compose(["algo=dpsgd", "topology=file", f"topology.path={path}", "topology.directed=true", "task=quadratics"])


@pytest.mark.parametrize("weights", [Weights.metropolis, Weights.uniform])
def test_a_rule_for_weights_contradicts_weights_in_the_file(csv, weights):
    with pytest.raises(ConfigError, match=f"topology.weights={weights.name} contradicts topology.path="):
        File(path=csv("0,1,0.5"), weights=weights).schedule(2)


@pytest.mark.parametrize(
    ("fields", "num_workers", "says"),
    [
        ({"graph": "rnig"}, 8, "topology.graph=rnig .* Did you mean 'ring'"),
        ({"graph": "spanning_tree"}, 8, "topology.graph=spanning_tree is not another topology"),
        ({"graph": "ring", "path": "x.csv"}, 8, "topology.path=x.csv is read with topology.graph=file only"),
        ({"graph": "ring", "root": 8}, 8, "topology.root=8 is not a worker: with num_workers=8 use 0 to 7"),
        ({"graph": "dbt"}, 8, "topology.graph=dbt is 2 graphs"),
        ({"graph": "exponential"}, 8, "topology.graph=exponential is directed"),
        ({"graph": "one_peer_exponential"}, 8, "topology.graph=one_peer_exponential changes with the round"),
        ({}, 8, "use num_workers=32"),
    ],
)
def test_what_has_no_spanning_tree_is_refused(fields, num_workers, says):
    with pytest.raises(ConfigError, match=says):
        SpanningTree(**fields).schedule(num_workers)


def test_a_disconnected_file_has_no_spanning_tree(csv):
    with pytest.raises(ConfigError, match=r"topology\.graph=file is not connected for num_workers=4"):
        SpanningTree(graph="file", path=csv("0,1\n2,3")).schedule(4)


@pytest.mark.parametrize(
    ("topology", "fields", "num_workers", "says"),
    [
        ("hypercube", {}, 12, "use num_workers=8 or 16"),
        ("grid", {"rows": 5}, 12, "topology.rows=5 does not divide num_workers=12: choose one of 1, 2, 3, 4, 6, 12"),
        ("dbt", {}, 1, "use num_workers=2 or more, or topology=bt"),
        ("ring", {}, 0, "num_workers=0 must be from 1 to"),
    ],
)
def test_sizes_that_do_not_exist_come_with_sizes_that_do(topology, fields, num_workers, says):
    from decentral.registry import components

    with pytest.raises(ConfigError, match=says):
        components("topology")[topology](**fields).schedule(num_workers)


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
    outcome = launch(compose([*quick, *topology, f"topology.path={path}", f"run_dir={tmp_path}/run"]))
    assert f"Note:     a line a,b of topology.path={path} is an edge {way}\n" in summary(outcome.directory)
