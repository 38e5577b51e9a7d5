"""Runs with compressed messages, and runs that decide which share of the coordinates they send."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from decentral.compression.ratio import Knee, Solver
from decentral.compression.rows import AcceptedCompression, RowLayout
from decentral.compression.sparse import TopK
from decentral.errors import ConfigError
from decentral.registry import components
from decentral.report.summary import summary
from decentral.training.faults import VARIABLE, Injected
from table import FREE

# -- Runs with compressed messages: they diverge in the open, sizes that divide nothing work, what has no meaning is ---

MEASURED = ("network.measure=true", "network.measure_every_steps=5", "network.measure_bytes=6250")
SMALL = ("task=quadratics", "task.dimension=7", "steps=30", "evaluation.every_epochs=10")
COMPRESSORS: dict[str, Any] = components("compression")


def users(takes: AcceptedCompression) -> list[str]:
    return sorted(name for name, cls in COMPRESSORS.items() if cls.suits(takes))


RUNS = [
    *(("allreduce", "ring", name) for name in users(AcceptedCompression.means)),
    *(("choco", "ring", "topk"), ("dpsgd", "ring", "int8"), ("relaysgd", "dbt", "sign")),
]


def test_a_learning_rate_that_is_far_too_large_ends_as_diverged(start) -> None:
    for place, (algo, topology, compress) in enumerate(RUNS):
        words = [f"algo={algo}", f"topology={topology}", "num_workers=5", f"compress={compress}", "lr=1e150"]
        words += ["cluster=slow_network"] if COMPRESSORS[compress].chooses else []
        result = start(*SMALL, *words, directory=f"{place}")
        assert result.status == result.facts["status"] == "diverged", compress


@pytest.mark.parametrize("select", ["star", "var"])
def test_ar_topk_sends_a_nan_in_its_workers_turn(select: str) -> None:
    """It lies where nobody else's largest entries are, and waits in the residual until then: n steps at most."""
    from test_compression import Together

    compressor = COMPRESSORS["artopk"](keep=0.1, select=type(COMPRESSORS["artopk"]().select)(select))
    compressor = compressor.bound(RowLayout.flat(20), 0)
    g, net = torch.ones(4, 20), Together(4)
    g[:, :2] = 5.0
    r, memory = compressor.residual(g), compressor.memory(g, 4)
    found = []
    for t in range(4):
        rows = g.clone()
        rows[3, 11] = torch.nan if t == 0 else 1.0
        mean, r, memory = compressor.combine(rows, r, memory, net, t)
        found.append(bool(mean.isnan().any()))
    assert found == ([False, False, False, True] if select == "star" else [True, False, False, False])


@pytest.mark.parametrize(
    ("algo", "topology", "compress", "most"),
    [("dpsgd", "ring", "bf16", 2**-16), ("relaysgd", "dbt", "int8", 0.01), ("choco", "ring", "sign", 1)],
)
def test_compression_errors_are_recorded(start, algo, topology, compress, most) -> None:
    result = start(*SMALL, f"algo={algo}", f"topology={topology}", "num_workers=4", f"compress={compress}")
    found = [row for row in result.rows if row["metric"] == "compression_error" and row["worker"] != "mean"]
    assert {(row["step"], row["worker"]) for row in found} == {(t, i) for t in (10, 20, 30) for i in range(4)}
    assert all(0 < row["value"] <= most for row in found)


@pytest.mark.parametrize(
    ("algo", "topology", "block"), [("allreduce", "ring", 3), ("choco", "ring", 8), ("relaysgd", "dbt", 3)]
)
def test_blocks_that_do_not_divide_a_row_are_counted(start, algo: str, topology: str, block: int) -> None:
    """Seven numbers, on two trees four and three: a byte for each, and 8 for every block that has begun."""
    words = (f"algo={algo}", f"topology={topology}", "num_workers=4", "compress=int8", f"compress.block={block}")
    result = start(*SMALL, *words)
    widths, messages = ([4, 3], 6) if topology == "dbt" else ([7], 12 if algo == "allreduce" else 8)
    assert result.status == "done"
    assert result.facts["bytes_sent"] == 30 * messages * sum(width + 8 * -(-width // block) for width in widths)


@pytest.mark.parametrize(("algo", "topology"), [("choco", "ring"), ("allreduce", "ring"), ("relaysgd", "chain")])
def test_one_worker_sends_nothing(start, algo: str, topology: str) -> None:
    words = (f"algo={algo}", f"topology={topology}", "num_workers=1", "task.zeta2=0", "compress=bf16")
    result = start(*SMALL, *words)
    assert result.status == "done" and result.facts["bytes_sent"] == 0


def test_lost_messages_of_a_relay_are_zero_whatever_they_say(start) -> None:
    words = ("algo=relaysgd", "topology=dbt", "num_workers=5", "network.drop_probability=0.3", "trace=true")
    rounded, plain = (start(*SMALL, *words, *more, directory=str(more)) for more in (("compress=bf16",), ()))
    assert rounded.facts["messages_sent"] == plain.facts["messages_sent"]
    assert 4 * rounded.facts["bytes_sent"] == plain.facts["bytes_sent"]
    assert abs(rounded.iterates - plain.iterates).max() < 0.1 * abs(plain.iterates).max()


# -- Runs that decide which share of the coordinates they send: the rules, the costs, exploration, when, and resuming --


def knee(seconds: list[float], gain: list[float]) -> int:
    """By the definition, one ratio at a time."""
    points = [(t, 1 / g) for t, g in zip(seconds, gain, strict=True)]
    front = [
        i for i, a in enumerate(points) if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points)
    ]  # fmt: skip
    low = [min(points[i][k] for i in front) for k in range(2)]
    high = [max(points[i][k] for i in front) for k in range(2)]

    def worst(i: int) -> float:
        scaled = [(points[i][k] - low[k]) / (high[k] - low[k]) if high[k] > low[k] else 0.0 for k in range(2)]
        return max(0.6 * scaled[0], 0.4 * scaled[1])

    return min(front, key=worst)


@pytest.mark.parametrize("seed", range(3))
def test_the_knee_is_that_of_the_definition(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    seconds, gain = drawn.random(9), drawn.uniform(0.1, 1, 9)
    assert Knee().best(seconds, gain, 1.0) == knee(seconds.tolist(), gain.tolist())


RUN = ("algo=allreduce", "task=quadratics", "task.dimension=100", "task.noise=0.1", "num_workers=4", "lr=0.02")
EVERY = ("steps=30", "evaluation.every_epochs=10", "optim=momentum", "checkpoint_every_s=0.000001")
LINKS = (*FREE, "cluster.links.latency_s=0.01", "cluster.links.bandwidth_gbps=1e-4")
STEPS = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=6", "cluster.network.latency_s=[0.01,0.0105,0.01,0.01]"),
    "cluster.network.bandwidth_gbps=[1e-2,1e-2,1e-5,1e-5]",
)
"""A change by a twentieth after 6 steps, one by a factor of 1,000 after 12, and none after 18."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topk", "flexible"])
def test_exploring_leaves_no_trace_but_time_and_bytes(start, name: str) -> None:
    settings = [*RUN, *EVERY, *LINKS, f"compress={name}", "compress.keep=0.05", "trace=true"]
    static = start(*settings, directory="static")
    one = ["compress.adapt=knee", "compress.candidates=[0.05]", "compress.explore_steps=3", "compress.grid=0"]
    adaptive = start(*settings, *one, directory="adaptive")
    assert np.array_equal(adaptive.iterates, static.iterates)
    assert adaptive.facts["ratios"][0] == [0, 0.05] and {c for _, c in adaptive.facts["ratios"]} == {0.05}
    tried = 3 * adaptive.facts["explored"]
    assert adaptive.facts["bytes_sent"] * 30 == static.facts["bytes_sent"] * (30 + tried)
    assert adaptive.facts["simulated_s"] * 30 == pytest.approx(static.facts["simulated_s"] * (30 + tried))


@pytest.mark.slow
def test_an_adaptive_run_resumes_bit_for_bit(start, monkeypatch) -> None:
    rule = ("compress.adapt=throughput", "compress.explore_steps=2")
    settings = [*RUN, *EVERY, *STEPS, *MEASURED, "compress=flexible", *rule]
    straight = start(*settings, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (11, 13, 25)]))
    for _ in range(3):
        with pytest.raises(Injected):
            start(*settings, directory="broken")
    broken = start(*settings, directory="broken")
    assert straight.rows == broken.rows
    for fact in ("ratios", "explored", "bytes_sent", "simulated_s", "measured", "probes", "collectives"):
        assert broken.facts.get(fact) == straight.facts.get(fact)


def test_a_probe_finds_what_links_are_like_and_its_cost_counts(start) -> None:
    """Over 1e-2 Gbit/s a byte takes 0.8 us, over 1e-5 0.8 ms: pairs 0-1 and 2-3, then 1-2 and 3-0, there and back."""
    settings = [*RUN, *EVERY, *STEPS, "compress=topk"]
    plain, measured = (start(*settings, *more, directory=str(len(more))) for more in ((), MEASURED))
    assert measured.facts["measured"] == [
        [0, pytest.approx(10), pytest.approx(1e-2)],  # 10.5 ms from step 6 on is no tenth more
        [15, pytest.approx(10), pytest.approx(1e-5)],
    ]
    assert measured.facts["probes"] == 6
    assert measured.facts["bytes_sent"] - plain.facts["bytes_sent"] == 6 * 8 * (64 + 6250)
    latencies = 4 * 2 * (5 * 0.01 + 0.0105)
    probes_s = latencies + 4 * (64 + 6250) * (3 * 8e-7 + 3 * 8e-4)
    assert measured.facts["simulated_s"] - plain.facts["simulated_s"] == pytest.approx(probes_s, rel=1e-9)
    assert "Measured: 10 ms and 0.01 Gbit/s from step 0, 10 ms and 1e-05 Gbit/s from step 15 (by 6 probes)" in summary(
        measured.directory
    )


@pytest.mark.slow
def test_between_processes_links_are_measured_for_real(start) -> None:
    """10 ms and 0.1 Gbit/s, limited: nobody says so to those who decide, and no cluster is described."""
    limits = ("network.latency_ms=10", "network.bandwidth_gbps=0.1")
    words = ("steps=6", "evaluation.every_epochs=6", "compress=topk", "compress.adapt=throughput", *limits)
    run = start(*RUN, *words, "compress.explore_steps=1", "network.measure=true", "processes=4", processes=4)
    latency_ms, gbps = run.facts["measured"][0][1:]
    assert 10 <= latency_ms < 100 and 0.02 < gbps < 0.2
    times, predicted, taken = run.facts["collectives"]["allgather"]
    assert times == 6 + 5 and predicted > 0.02 * times and taken > 0, "two phases of 10 ms at least"
    assert run.facts["ratios"] and run.facts["explored"] == 1


def test_nsga2_decides_in_a_run(start, monkeypatch) -> None:
    pytest.importorskip("pymoo")
    settings = [*RUN, *EVERY, *LINKS, "compress=topk", "compress.adapt=knee", "compress.explore_steps=1"]
    run = start(*settings, "compress.solver=nsga2")
    assert 0.001 <= run.facts["ratios"][0][1] <= 0.1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs pymoo, which is not installed: pip install '\.\[nsga2\]'"):
        TopK(solver=Solver.nsga2)
