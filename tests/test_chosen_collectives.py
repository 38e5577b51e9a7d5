"""Which collective is cheapest, against the closed forms of the specification, and the record of what was chosen."""

from __future__ import annotations

import json
from collections import Counter
from math import inf, log2

import pytest
import torch

from configure import configure
from decentral.cluster.clock import Clock
from decentral.cluster.costs import LinkCosts
from decentral.cluster.links import CollectiveName, Links, Ports
from decentral.compression.flexible import Flexible
from decentral.compression.row_layout import RowLayout
from decentral.errors import ConfigError
from decentral.report.summary import summary
from decentral.training.faults import VARIABLE, Injected
from table import FREE
from test_network_changes import PAPER_C1

RATIOS = (0.1, 0.033, 0.011, 0.004, 0.001)
MODELS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "alexnet": 61_100_840, "vit_l_16": 304_326_632}
NETWORKS = PAPER_C1.split(", ")[:6]


def costs(latency_s: float, gbps: float, collective: CollectiveName, n: int = 8) -> LinkCosts:
    """With log2 as in the paper's formulas."""
    links = Links(latency_s=latency_s, bandwidth_gbps=gbps, copy_gbps=inf, collective=collective, whole_phases=False)
    return LinkCosts(links.open(n), n)


def clock(latency_s: float, gbps: float, n: int = 8, collective: CollectiveName = CollectiveName.ring_or_tree) -> Clock:
    return Clock(n, None, costs(latency_s, gbps, collective, n))  # type: ignore[arg-type]


def chosen(time: Clock, parameters: int, keep: float) -> tuple[str, float]:
    """What the flexible compressor takes: ring, tree or allgather, and its seconds."""
    compressor = Flexible(keep=keep).bound(RowLayout.flat(parameters), 0)
    way = compressor._cheaper(time, 0, torch.float32)
    seconds = way.planned_s(time, 0, torch.float32)
    if way is compressor.ways[1]:
        return "allgather", seconds
    k = way.count(parameters, 0)
    return CollectiveName(type(time.costs.all_reduce(time.n, 4 * k)[0])).name, seconds


# -- crossovers, specification section 3 -------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c1"), [(4, 1.250), (6, 0.725), (8, 0.531), (16, 0.278), (32, 0.155), (64, 0.088)])
def test_a_ring_below_the_crossover_and_a_tree_above_it(n: int, c1: float) -> None:
    Q, gbps = 1e6, 8e-9 / 1e-3  # 1/beta = 1000 bytes/s
    assert c1 == pytest.approx((log2(n) - (n - 1) / n) / (n - 1 - log2(n)), abs=1e-3)
    for factor, expected in ((0.99, CollectiveName.ring), (1.01, CollectiveName.tree)):
        links = costs(factor * c1 * Q * 1e-3, gbps, CollectiveName.ring_or_tree, n)
        found, seconds = links.all_reduce(n, Q)
        assert type(found) is expected.value
        assert seconds == links.all_reduce_s(n, Q) == links.collective_s(expected.value(), n, Q)


@pytest.mark.parametrize(
    ("n", "c1", "c2", "c3"),
    [(4, 1.25, 0.417, 0), (6, 0.725, 0.575, 0.434),
     (8, 0.531, 0.661, 0.833), (16, 0.278, 0.804, 2.25), (32, 0.155, 0.888, 4.7),
     (64, 0.088, 0.937, 9.0)],
)  # fmt: skip
def test_what_is_cheapest_over_latency_times_bandwidth(n: int, c1: float, c2: float, c3: float) -> None:
    parameters, keep = 10_000_000, 0.1
    Q = 4 * parameters * keep
    borders = [(c1, "ring", "tree"), (c3, "tree", "allgather")] if c1 < c3 else [(c2, "ring", "allgather")]
    for border, below, above in borders:
        for factor, expected in ((0.99, below), (1.01, above)):
            assert chosen(clock(factor * border * Q * 1e-9, 8.0, n), parameters, keep)[0] == expected


def test_algorithms_have_whole_phases_unless_the_paper_is_meant() -> None:
    def seconds(whole_phases: bool, n: int) -> float:
        links = Links(1.0, inf, copy_gbps=inf, collective=CollectiveName.tree, whole_phases=whole_phases)
        return LinkCosts(links.open(n), n).all_reduce_s(n, 100.0)

    assert [seconds(True, n) for n in (2, 6, 8, 9)] == [2, 6, 6, 8]
    assert [seconds(False, n) for n in (2, 6, 8, 9)] == pytest.approx([2, 2 * log2(6), 6, 2 * log2(9)], rel=1e-12)
    assert not configure("task=quadratics", "algo=allreduce", "cluster=paper_c1").cluster.links.whole_phases


@pytest.mark.parametrize(
    ("keep", "ring", "tree", "gathered"),
    [(0.1, 55.9, 82.6, 117.5), (0.033, 29.8, 33.3, 40.8), (0.011, 21.3, 17.1, 15.6), (0.001, 17.4, 9.7, 4.1)],
)
def test_the_papers_example(keep: float, ring: float, tree: float, gathered: float) -> None:
    """ResNet-50, 8 workers, 1 ms, 10 Gbit/s: milliseconds."""
    parameters = MODELS["resnet50"]
    for collective, expected in ((CollectiveName.ring, ring), (CollectiveName.tree, tree)):
        compressor = Flexible(keep=keep).bound(RowLayout.flat(parameters), 0)
        times = [1e3 * way.planned_s(clock(1e-3, 10.0, 8, collective), 0, torch.float32) for way in compressor.ways]
        assert times == [pytest.approx(expected, abs=0.06), pytest.approx(gathered, abs=0.06)]
    best = min((ring, "ring"), (tree, "tree"), (gathered, "allgather"))
    assert chosen(clock(1e-3, 10.0), parameters, keep) == (best[1], pytest.approx(best[0] * 1e-3, abs=6e-5))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("resnet18", {"allgather": 29, "tree": 1}),
        ("resnet50", {"allgather": 26, "ring": 3, "tree": 1}),
        ("alexnet", {"allgather": 21, "ring": 8, "tree": 1}),
        ("vit_l_16", {"ring": 15, "allgather": 10, "tree": 5}),
    ],
)
def test_what_is_best_over_the_papers_schedule(model: str, expected: dict[str, int]) -> None:
    """6 networks and 5 ratios, 8 workers."""
    networks = [tuple(map(float, each.split("/"))) for each in NETWORKS]
    places = [(1e-3 * ms, gbps, keep) for ms, gbps in networks for keep in RATIOS]
    found = Counter(chosen(clock(latency, gbps), MODELS[model], keep)[0] for latency, gbps, keep in places)
    assert found == expected


@pytest.mark.parametrize("n", [3, 8, 11])
def test_auto_takes_least_of_its_candidates(n: int) -> None:
    names = (CollectiveName.ring, CollectiveName.tree, CollectiveName.recursive_doubling, CollectiveName.rabenseifner)
    found = set()
    for num_bytes in (1.0, 1e4, 1e8):
        for ports in Ports:
            links = Links(1e-4, 1.0, ports, inf, CollectiveName.auto)
            known = LinkCosts(links.open(n), n)
            each = {name: known.collective_s(name.value(), n, num_bytes) for name in names}
            collective, seconds = known.all_reduce(n, num_bytes)
            assert seconds == min(each.values()) == each[CollectiveName(type(collective))]
            found.add(type(collective))
    assert len(found) > 1


# -- runs --------------------------------------------------------------------------------------------------------------

RUN = ("task=quadratics", "task.dimension=50", "num_workers=8", "steps=20", "evaluation.every_epochs=5")
CHANGES = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=8", "cluster.network.latency_s=[0.001,1]"),
    *("cluster.network.bandwidth_gbps=[1e-6,1e-5]", "checkpoint_every_s=0.000001"),
)
"""Rows have 400 bytes (float64). At first a byte takes 8 ms and latency is 1 ms, then a byte 0.8 ms and latency 1 s."""


def test_every_choice_is_recorded(start) -> None:
    run = start("algo=allreduce", *RUN, *CHANGES, "cluster.links.collective=ring_or_tree")
    ring_s, tree_s = 14 * (0.001 + 400 / 8 * 8e-3), 6 * (1 + 400 * 8e-4)
    assert run.facts["collectives"] == {
        "ring": [8, pytest.approx(8 * ring_s)],
        "tree": [12, pytest.approx(12 * tree_s)],
    }
    assert run.facts["simulated_s"] == pytest.approx(20 + sum(spent for _, spent in run.facts["collectives"].values()))
    seen = [
        (row["step"], row["metric"], row["value"])
        for row in run.rows
        if row["split"] == "collective" and row["metric"] in ("ring", "tree")
    ]
    assert seen == [
        *((5, "ring", 5.0), (10, "ring", 8.0), (10, "tree", 2.0), (15, "ring", 8.0), (15, "tree", 7.0)),
        *((20, "ring", 8.0), (20, "tree", 12.0)),
    ]
    assert "Chosen:   ring 8 times (" in summary(run.directory)


@pytest.mark.parametrize("collective", ["ring", "auto"])
def test_a_run_that_chooses_goes_on_bit_for_bit(start, monkeypatch, collective: str) -> None:
    settings = ["algo=allreduce", *RUN, *CHANGES, f"cluster.links.collective={collective}"]
    settings += ["compress=flexible", "compress.keep=0.2"]
    straight = start(*settings, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (7, 13)]))
    for _ in range(2):
        with pytest.raises(Injected):
            start(*settings, directory="broken")
    broken = start(*settings, directory="broken")
    strip = [[{key: row[key] for key in row if key != "wall_s"} for row in run.rows] for run in (straight, broken)]
    assert strip[0] == strip[1]
    assert broken.facts["collectives"] == straight.facts["collectives"]
    assert {"allgather", "broadcast"} <= set(straight.facts["collectives"])


def test_nothing_is_said_where_nothing_is_chosen(start) -> None:
    run = start("algo=allreduce", *RUN, *FREE)
    assert "collectives" not in run.facts and not [
        row for row in run.rows if row["split"] == "collective" and row["metric"] in ("ring", "tree")
    ]
    assert "Chosen" not in summary(run.directory)


def test_whoever_decides_by_costs_needs_them() -> None:
    with pytest.raises(ConfigError, match=r"compress=flexible decides by what links cost, .* choose a cluster"):
        configure("algo=allreduce", *RUN, "compress=flexible")
