"""Runs that decide which share of the coordinates they send: the rules, the costs, exploration, when, and resuming."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from configure import configure
from decentral.cluster.clock import Clock
from decentral.cluster.costs import LinkCosts
from decentral.cluster.links import Links
from decentral.compression.adaptation import CANDIDATES, Adapt, Knee, Solver, Throughput, changed, front, gains_at, grid
from decentral.compression.row_layout import RowLayout
from decentral.config.identity import identity
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.registry import components
from decentral.report.summary import summary
from decentral.topology.delivery import Losses
from decentral.topology.ring import Ring
from decentral.training.adaptive import AdaptiveStepper
from decentral.training.faults import VARIABLE, Injected
from table import FREE

RATIOS = np.array(sorted(CANDIDATES))
GAINS = {"flat": RATIOS**0.1, "root": RATIOS**0.5, "steep": RATIOS**0.9}

# -- rules -------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(20))
def test_the_knee_is_that_of_the_definition(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    seconds, gain = drawn.random(9), drawn.uniform(0.1, 1, 9)
    assert Knee().best(seconds, gain, 1.0) == knee(seconds.tolist(), gain.tolist())


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
def test_within_a_collective_the_knee_does_not_depend_on_the_network(gain: np.ndarray) -> None:
    """Scaling removes A and B of T = A + B c (specification, section 4)."""
    found = {Knee().best(A + B * RATIOS, gain, 1.0) for A in (0.0, 0.1, 3.0) for B in (1e-3, 1.0, 50.0)}
    assert len(found) == 1 and found == {knee(RATIOS.tolist(), gain.tolist())}


def test_throughput_sends_less_over_slower_links() -> None:
    def best(alpha: float, gbps: float) -> float:
        gathered = 3 * alpha + 2 * 7 * RATIOS * 4 * 25_557_032 * 8e-9 / gbps
        place = Throughput().best(gathered, GAINS["root"], 0.1)
        assert place == min(range(5), key=lambda i: (0.1 + gathered[i]) / GAINS["root"][i])
        return float(RATIOS[place])

    assert best(1e-3, 25.0) > best(4e-3, 5.0) >= best(32e-3, 1.0)


def test_gains_are_interpolated_in_the_logarithm_and_never_fall() -> None:
    measured = [0.9, 0.5, 0.6, 0.2, 0.1]  # at .1, .033, .011, ...
    ratios = grid(list(CANDIDATES), 50)
    gain = gains_at(ratios, list(CANDIDATES), measured)
    assert np.all(np.diff(gain) >= 0) and set(CANDIDATES) <= set(ratios.tolist())
    known = dict(zip(ratios.tolist(), gain.tolist(), strict=True))
    assert [known[c] for c in CANDIDATES] == [0.9, 0.6, 0.6, 0.2, 0.1]
    middle = gains_at(np.array([np.sqrt(0.001 * 0.004)]), list(CANDIDATES), measured)
    assert middle == pytest.approx(0.15)
    assert np.all(gains_at(ratios, list(CANDIDATES), [float("nan")] * 5) > 0)
    assert grid([0.1, 0.01], 0).tolist() == [0.01, 0.1]


def test_a_tenth_is_a_change() -> None:
    assert changed(1.1, 1.0) and changed(0.9, 1.0) and changed(1.0, 0.0) and changed(inf, 1.0)
    assert not changed(1.099, 1.0) and not changed(0.901, 1.0) and not changed(0.0, 0.0)


# -- costs -------------------------------------------------------------------------------------------------------------

SHARES = sorted(name for name, cls in components("compression").items() if hasattr(cls, "planned_s"))


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("keep", [0.5, 0.07])
def test_what_is_planned_is_what_it_takes(name: str, keep: float) -> None:
    layout, n = RowLayout(("a", "b"), ((10, 20), (30,))), 5
    compressor: Any = components("compression")[name](keep=keep).bound(layout, 3)
    net = LocalNetwork(Ring().schedule(n), Losses(0.0, 0))
    links = Links(latency_s=0.01, bandwidth_gbps=1e-5, copy_gbps=inf)
    net.clock = Clock(n, None, LinkCosts(links.open(n), n))  # type: ignore[arg-type]
    net.clock.bytes_scale = 7.5
    g = torch.randn(n, 230, generator=torch.Generator().manual_seed(0))
    r, memory = compressor.residual(g), compressor.memory(g, n)
    for t in range(3):
        before = net.clock.latest_s
        planned = compressor.planned_s(net.clock, t, g.dtype)
        compressor.combine(g.clone(), r, memory, net, t)
        assert planned > 0 and net.clock.latest_s - before == pytest.approx(planned, rel=1e-12)


# -- runs --------------------------------------------------------------------------------------------------------------

RUN = ("algo=allreduce", "task=quadratics", "task.dimension=400", "task.noise=0.1", "num_workers=4", "lr=0.02")
EVERY = ("steps=30", "evaluation.every_epochs=10", "optim=momentum", "checkpoint_every_s=0.000001")
LINKS = (*FREE, "cluster.links.latency_s=0.01", "cluster.links.bandwidth_gbps=1e-4")
STEPS = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=6", "cluster.network.latency_s=[0.01,0.0105,0.01,0.01]"),
    "cluster.network.bandwidth_gbps=[1e-2,1e-2,1e-5,1e-5]",
)
"""A change by a twentieth after 6 steps, one by a factor of 1,000 after 12, and none after 18."""


@pytest.mark.parametrize("name", ["topk", "randomk", "artopk", "flexible", "mstopk", "lwtopk"])
def test_exploring_leaves_no_trace_but_time_and_bytes(start, name: str) -> None:
    settings = [*RUN, *EVERY, *LINKS, f"compress={name}", "compress.keep=0.05", "trace=true"]
    static = start(*settings, directory="static")
    one = ["compress.adapt=knee", "compress.candidates=[0.05]", "compress.explore_steps=3", "compress.grid=0"]
    adaptive = start(*settings, *one, directory="adaptive")
    assert np.array_equal(adaptive.iterates, static.iterates)
    assert adaptive.facts["ratios"][0] == [0, 0.05] and {c for _, c in adaptive.facts["ratios"]} == {0.05}
    kept = [[row for row in run.rows if row["split"] in ("train", "message")] for run in (static, adaptive)]
    values = [[(row["step"], row["metric"], row["worker"], row["value"]) for row in rows] for rows in kept]
    assert [each for each in values[1] if each[1] != "keep"] == values[0]
    tried = 3 * adaptive.facts["explored"]
    assert adaptive.facts["bytes_sent"] * 30 == static.facts["bytes_sent"] * (30 + tried)
    assert adaptive.facts["simulated_s"] * 30 == pytest.approx(static.facts["simulated_s"] * (30 + tried))


def test_a_changed_network_is_a_reason_to_decide_again(start) -> None:
    settings = [
        *RUN,
        *EVERY,
        *STEPS,
        "compress=topk",
        "compress.adapt=throughput",
        "compress.candidates=[0.5,0.1,0.02]",
    ]
    run = start(*settings, "compress.explore_steps=2")
    steps = [step for step, _ in run.facts["ratios"]]
    assert steps == [0, 12] and run.facts["explored"] == 1
    first, second = (ratio for _, ratio in run.facts["ratios"])
    assert 0.02 <= second < first <= 0.5
    told = [(row["step"], row["value"]) for row in run.rows if row["metric"] == "keep"]
    assert told == [(10, first), (20, second), (30, second)]
    assert f"Sending:  {first:.3g} from step 0, {second:.3g} from step 12 (explored 1 times)" in summary(run.directory)


def test_it_begins_after_the_warm_up(start) -> None:
    settings = [*RUN, *EVERY, *LINKS, "compress=topk", "compress.warmup_epochs=8", "compress.adapt=knee"]
    assert [step for step, _ in start(*settings).facts["ratios"]] == [8]


@pytest.mark.parametrize("name", ["topk", "flexible"])
def test_it_goes_on_bit_for_bit(start, monkeypatch, name: str) -> None:
    settings = [*RUN, *EVERY, *STEPS, f"compress={name}", "compress.adapt=throughput", "compress.explore_steps=2"]
    straight = start(*settings, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (11, 13, 25)]))
    for _ in range(3):
        with pytest.raises(Injected):
            start(*settings, directory="broken")
    broken = start(*settings, directory="broken")
    strip = [[{key: row[key] for key in row if key != "wall_s"} for row in run.rows] for run in (straight, broken)]
    assert strip[0] == strip[1]
    for fact in ("ratios", "explored", "bytes_sent", "simulated_s"):
        assert broken.facts[fact] == straight.facts[fact]


def test_a_changed_gain_is_a_reason_to_explore() -> None:
    stepper: Any = object.__new__(AdaptiveStepper)
    stepper.gains, stepper.readings, stepper.usual = [1.0], [], None
    for reading in (0.4, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.54, 0.54, 0.54):  # means 0.5 and 0.544
        stepper._compare(reading)
    assert stepper.usual == pytest.approx(0.5) and stepper.gains == [1.0]
    for reading in (0.55, 0.55, 0.55, 0.55, 0.56):
        stepper._compare(reading)
    assert stepper.gains == []


@pytest.mark.parametrize(
    ("further", "told"),
    [
        (["compress=topk", "compress.adapt=knee"], "compress.adapt=knee decides by what links cost"),
        (["compress=topk", "compress.adapt=knee", *LINKS, "algo=choco", "topology=ring"], "algo=choco is none"),
        (["compress=topk", "compress.adapt=knee", "compress.candidates=[]"], "give at least one share"),
        (["compress=topk", "compress.candidates=[0.1,2]"], "give at least one share"),
        (
            ["compress=topk", "compress.adapt=knee", *LINKS, "simulate=timeline", "steps=9"],
            "simulate=timeline has none",
        ),
        (
            ["compress=topk", "compress.adapt=knee", *LINKS, "algo=sparseloco"],
            "algo=sparseloco sends once in 30 steps: add algo.period_steps=1",
        ),
        (
            ["compress=topk", "compress.warmup_epochs=5", *LINKS, "simulate=timeline", "steps=9"],
            "compress.warmup_epochs=5 counts epochs, and simulate=timeline has none",
        ),
    ],
)
def test_what_cannot_be_decided_is_refused(further: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configure(*RUN, *further)
    assert told in str(refused.value)


def test_a_run_that_decides_nothing_has_its_old_identity() -> None:
    assert set(identity(configure(*RUN, "compress=topk"))["compress"]) == {
        *("name", "error_feedback", "keep", "warmup_epochs", "index_bytes"),
    }
    assert identity(configure(*RUN, *LINKS, "compress=topk", "compress.adapt=knee"))["compress"]["adapt"] == "knee"
    assert [each.name for each in Adapt] == ["none", "knee", "throughput"]


# -- a network that is measured ----------------------------------------------------------------------------------------

MEASURED = ("network.measure=true", "network.measure_every_steps=5", "network.measure_bytes=6250")


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


def test_what_is_measured_decides_and_the_configuration_does_not(start) -> None:
    """The change after step 12 is seen by the probe before step 15."""
    settings = [*RUN, *EVERY, *STEPS, "compress=flexible", "compress.adapt=throughput", "compress.explore_steps=2"]
    known = start(*settings, directory="known")
    found = start(*settings, *MEASURED, directory="measured")
    assert [step for step, _ in known.facts["ratios"]] == [0, 12]
    assert [step for step, _ in found.facts["ratios"]] == [0, 15]
    ratios = [[ratio for _, ratio in run.facts["ratios"]] for run in (known, found)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-9)


def test_a_measured_run_goes_on_bit_for_bit(start, monkeypatch) -> None:
    settings = [*RUN, *EVERY, *STEPS, *MEASURED, "compress=flexible", "compress.adapt=knee", "compress.explore_steps=2"]
    straight = start(*settings, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": 13, "kind": "raise"}]))
    with pytest.raises(Injected):
        start(*settings, directory="broken")
    broken = start(*settings, directory="broken")
    for fact in ("ratios", "explored", "bytes_sent", "simulated_s", "measured", "probes", "collectives"):
        assert broken.facts[fact] == straight.facts[fact]


@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("torch", marks=pytest.mark.slow)])
def test_between_processes_links_are_measured_for_real(start, transport: str) -> None:
    """10 ms and 0.1 Gbit/s, limited: nobody says so to those who decide, and no cluster is described."""
    limits = ("network.latency_ms=10", "network.bandwidth_gbps=0.1", f"network.transport={transport}")
    words = ("steps=6", "evaluation.every_epochs=6", "compress=topk", "compress.adapt=throughput", *limits)
    run = start(*RUN, *words, "compress.explore_steps=1", "network.measure=true", "processes=4", processes=4)
    latency_ms, gbps = run.facts["measured"][0][1:]
    assert 10 <= latency_ms < 100 and 0.02 < gbps < 0.2
    times, predicted, taken = run.facts["collectives"]["allgather"]
    assert times == 6 + 5 and predicted > 0.02 * times and taken > 0, "two phases of 10 ms at least"
    assert run.facts["ratios"] and run.facts["explored"] == 1


@pytest.mark.parametrize(
    ("further", "told"),
    [
        (["processes=1"], "network.measure=true has nothing to measure: within one process nothing crosses"),
        (["algo=wagma", *LINKS], "network.measure=true is for methods in rounds"),
        (["simulate=timeline", *LINKS], "network.measure=true is for runs that train"),
    ],
)
def test_what_cannot_be_measured_is_refused(further: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configure(*RUN, "steps=9", "network.measure=true", *further)
    assert told in str(refused.value)


# -- a front that is searched for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
@pytest.mark.parametrize("rule", [Knee(), Throughput()])
def test_nsga2_comes_close_to_the_grid(gain: np.ndarray, rule: Any) -> None:
    pytest.importorskip("pymoo")
    measured = dict(zip(RATIOS.tolist(), gain.tolist(), strict=True))
    gains = [measured[c] for c in CANDIDATES]

    def seconds(ratios: np.ndarray) -> np.ndarray:
        return 3e-3 + 1.2 * ratios

    def chosen(ratios: np.ndarray) -> tuple[float, float]:
        at = gains_at(ratios, list(CANDIDATES), gains)
        place = rule.best(seconds(ratios), at, 0.01)
        return float(seconds(ratios)[place]), float(1 / at[place])

    found = front(list(CANDIDATES), gains, seconds)
    assert found.min() >= 0.001 and found.max() <= 0.1 and len(found) <= 40
    exact = chosen(grid(list(CANDIDATES), 2000))
    assert chosen(found) == pytest.approx(exact, rel=0.35), "the specification finds 7 % on average, 32 % at worst"


def test_nsga2_decides_in_a_run_and_says_what_it_needs(start, monkeypatch) -> None:
    pytest.importorskip("pymoo")
    settings = [*RUN, *EVERY, *LINKS, "compress=topk", "compress.adapt=knee", "compress.explore_steps=1"]
    run = start(*settings, "compress.solver=nsga2")
    assert 0.001 <= run.facts["ratios"][0][1] <= 0.1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs pymoo, which is not installed: pip install 'decentral\[nsga2\]'"):
        Solver.nsga2.check()
