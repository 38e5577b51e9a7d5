"""Topologies that see the data, and optimized weights: simple cases with a known solution, and runs."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.errors import ConfigError
from decentral.plugins.data_graphs.topology.d_cliques import Between, DCliques, joined, swap
from decentral.plugins.data_graphs.topology.optimized import Objective, Optimized
from decentral.plugins.data_graphs.topology.stl_fw import STLFW, permutation, stl_fw
from decentral.store.metrics import read_metrics
from decentral.topology.facts import class_error
from decentral.topology.graph import is_connected

pytestmark = pytest.mark.usefixtures("undrawn")

Pi = np.random.default_rng(0).dirichlet(np.full(10, 0.3), 16)


def test_stl_fw_descends_adds_a_neighbor_in_each_step_and_averages_one_class_workers_exactly() -> None:
    iterates = stl_fw(Pi, lam=0.1, budget=5)
    errors = [class_error(W, Pi, 0.1) for W in iterates]
    assert len(iterates) == 6 and errors == sorted(errors, reverse=True) and errors[-1] < 0.1 * errors[0]
    for number, W in enumerate(iterates):
        others = (W != 0) & ~np.eye(16, dtype=bool)
        assert max(others.sum(0).max(), others.sum(1).max()) == number
        assert np.abs(W.sum(0) - 1).max() < 1e-14 and np.abs(W.sum(1) - 1).max() < 1e-14
    assert np.abs(stl_fw(np.eye(7), lam=0.3, budget=7)[6] - 1 / 7).max() < 1e-15


def test_the_first_of_equal_permutations_is_taken() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        G = generator.integers(0, 3, (5, 5)).astype(float)
        cost = {p: sum(G[i, j] for i, j in enumerate(p)) for p in permutations(range(5))}
        first = min(p for p in cost if cost[p] == min(cost.values()))
        assert tuple(permutation(G).argmax(1)) == first


def test_d_cliques_lower_the_skew_and_hold_all_classes() -> None:
    shares = np.eye(4)[np.arange(16) // 4]
    cliques = [list(range(start, start + 4)) for start in range(0, 16, 4)]  # one class each: skew 1.5
    skew = lambda: sum(np.abs(shares[clique].mean(0) - 0.25).sum() for clique in cliques)  # noqa: E731
    generator, before = np.random.default_rng(0), skew()
    for _ in range(60):
        swap(shares, cliques, [generator.choice(4, 2, replace=False).tolist()], generator.random)
        assert skew() <= before
        before = skew()
    assert before == 0


def test_cliques_are_joined_by_their_least_burdened_workers() -> None:
    three = [[0, 1], [2, 3], [4, 5]]
    assert joined(three, Between.fully, 2) == [(0, 2), (1, 4), (3, 5)]
    assert joined(three, Between.ring, 2) == [(0, 2), (3, 4), (5, 1)]
    assert joined(three[:2], Between.ring, 2) == [(0, 2)]
    assert joined(three, Between.fractal, 2) == [(0, 2), (1, 4)]
    assert (0, 2) in joined(three, Between.smallworld, 2)


def test_every_graph_between_cliques_is_connected(tmp_path: Path) -> None:
    np.save(tmp_path / "shares.npy", Pi)
    for between in Between:
        topology = DCliques(shares=str(tmp_path / "shares.npy"), clique_size=3, between=between)
        assert is_connected(topology.schedule(16).mixing(0)[0].graph)


def test_optimized_weights_are_those_of_closed_forms() -> None:
    pytest.importorskip("clarabel")
    for graph, low, high in (("ring", 2 - 2 * np.cos(np.pi / 4), 4.0), ("star", 1.0, 8.0)):
        W = Optimized(graph=graph).schedule(8).mixing(0)[0].dense()  # all edges alike: 2 / (low + high)
        assert np.abs(np.linalg.eigvalsh(W - 1 / 8)).max() == pytest.approx((high - low) / (high + low), abs=1e-6)
    drawn = Optimized(budget=4).schedule(16).mixing(0)[0]
    assert (drawn.graph.indegree == 4).all()


def test_optimized_weights_for_classes_are_a_stationary_point(tmp_path: Path) -> None:
    np.save(tmp_path / "shares.npy", Pi)
    topology = Optimized(objective=Objective.classes, graph="exponential", shares=str(tmp_path / "shares.npy"))
    with pytest.raises(ConfigError, match="use an undirected graph"):
        topology.schedule(16)
    topology.graph = "torus"
    matrix = topology.schedule(16).mixing(0)[0]
    W, least = matrix.dense(), class_error(matrix.dense(), Pi, 0.1)
    for i, j in zip(matrix.graph.src, matrix.graph.dst, strict=True):
        for h in (1e-3, -1e-3):
            L = np.zeros((16, 16))
            L[i, i] = L[j, j] = h
            L[i, j] = L[j, i] = -h
            assert class_error(W - L, Pi, 0.1) > least


def command(*words: str) -> None:
    assert (
        exit_status(main, "algo=dpsgd", "num_workers=12", "steps=2", "alpha=0.1", "seed=3", "logger=none", *words) == 0
    )


def test_runs_see_their_own_partition_and_tables_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stl = "topology=stl_fw", "topology.budget=2"
    command(*stl, "run_dir=own")
    command(*stl, "topology.shares=own/partition.csv", "run_dir=table")
    command(*stl, "partition=iid", "run_dir=iid")
    loss = {name: [row["value"] for row in read_metrics(tmp_path / name)] for name in ("own", "table", "iid")}
    assert loss["own"] == loss["table"] != loss["iid"]
    command("topology=optimized", "topology.objective=classes", "run_dir=weights")
    notes = json.loads((tmp_path / "weights" / "status.json").read_text())["notes"]
    assert any(note.startswith("classes objective ") and "with Metropolis weights" in note for note in notes)


def test_what_has_no_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give topology\.shares=FILE"):
        STLFW().schedule(8)
    with pytest.raises(ConfigError, match="this task lacks"):
        configure("task=quadratics", "topology=stl_fw", "algo=dpsgd", "num_workers=8").rounds()
