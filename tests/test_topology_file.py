"""Topologies of your own: what a file of edges means, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.report.summary import summary
from decentral.runtime.launch import launch
from decentral.topology.file import File
from decentral.topology.topology import Weights
from decentral.topology.trees import SpanningTree


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
        ("", "holds no edges"),
        ("source,target\n", "holds no edges"),
        ("0,1\n1,two\n", "line 2 .* has 'two' where a worker's number should be"),
        ("0.5,1\n", "line 1 .* has '0.5'"),
        ("0,99999999999999999999\n", "line 1 .* has '99999999999999999999'"),
        ("0,1\n\n1,3\n", "line 3 .* has the edge 1,3, but with num_workers=3 workers are numbered 0 to 2"),
        ("0,1\n1,2\n1,0\n", r"line 3 .* repeats the edge 1,0 of line 1 \(an edge goes both ways unless"),
        ("0,1\n1,1\n", "line 2 .* is a loop from worker 1 to itself"),
        ("0,1\n1,2,0.5\n", "line 2 .* has 3 columns"),
        ("0,1,0.5\n1,2,nan\n", "line 2 .* has 'nan' where a finite weight should be"),
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
    outcome = launch(compose([*quick, *topology, f"topology.path={path}", f"run_dir={tmp_path}/run"]))
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
def test_what_the_lines_of_a_file_mean(csv, text, directed, expected):
    (W,) = File(path=csv(text), directed=directed).schedule(3).matrices(0)
    np.testing.assert_allclose(W, expected)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, r"topology=file needs topology\.path=FILE"),
        ({"path": "nowhere.csv"}, r"topology\.path=nowhere\.csv is not a file"),
        ({"path": "0,1,0.5", "weights": Weights.uniform}, "topology.weights=uniform contradicts topology.path="),
        (
            {"path": "0,1\n0,1\n", "directed": True},
            r"line 2 .* repeats the edge 0,1 of line 1: list every edge once\.$",
        ),
    ],
)
def test_settings_that_do_not_go_with_a_file_are_refused(csv, fields, says):
    if "," in fields.get("path", ""):
        fields = fields | {"path": csv(fields["path"])}
    with pytest.raises(ConfigError, match=says):
        File(**fields).schedule(2)
