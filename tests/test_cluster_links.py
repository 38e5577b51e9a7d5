"""What links cost in a virtual cluster, by hand for a few workers, and how they change during a run."""

from __future__ import annotations

import dataclasses
import json
import math
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configure import configure
from decentral.cluster import links as collectives
from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.links import CollectiveName, LinkCosts, Links, Ports
from decentral.cluster.network_changes import ChangingCosts, Mode, NetworkChanges
from decentral.cluster.ports import Exchange, borders_of
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.training.faults import VARIABLE, Injected
from table import FREE

# -- What links cost in a virtual cluster: closed forms by hand for a few workers, and what is refused -----------------

ALPHA, BETA = 0.5, 2.0  # seconds; seconds per byte
PLAIN = Links(latency_s=ALPHA, bandwidth_gbps=8e-9 / BETA, copy_gbps=inf)
TWO_TIERS = dataclasses.replace(
    PLAIN, workers_per_machine=2, between_latency_s=3.0, between_bandwidth_gbps=8e-9 / 5
)  # between machines: 3 s, 5 s per byte
RING = np.array([3, 1, 0, 2, 1, 3, 2, 0]), np.array([0, 0, 1, 1, 2, 2, 3, 3])


def costs(links: Links = PLAIN, n: int = 4, **changed: Any) -> LinkCosts:
    opened = dataclasses.replace(links, **changed)
    return Machines(compute=ComputeTimes(mean_s=1.0), links=opened).costs(n)


def ready(known: LinkCosts, src: np.ndarray, dst: np.ndarray, now: np.ndarray, num_bytes: Any) -> np.ndarray:
    """When everybody is ready, if all ports are free."""
    free = np.zeros(len(now))
    return Exchange(known, src, dst).move(now, num_bytes, free, free, borders_of(known, len(now))).ready


def exchange(now: list[float], edges: list[tuple[int, int]], num_bytes: Any, **changed: Any) -> list[float]:
    """When everybody is ready, for edges (from, to)."""
    src, dst = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return ready(costs(n=len(now), **changed), src, dst, np.array(now), num_bytes).tolist()


def test_machines_have_links_of_two_kinds() -> None:
    known = costs(TWO_TIERS)
    assert not known.uniform
    assert known.hop_s(0, 1) == known.hop_s(3, 2) == ALPHA and known.hop_s(1, 2) == 3
    assert known.pair_s(0, 1, 10) == ALPHA + 10 * BETA and known.pair_s(0, 3, 10) == 53
    assert costs(TWO_TIERS, n=2).uniform and costs(TWO_TIERS, n=2).pair_s(0, 1, 10) == ALPHA + 10 * BETA
    assert costs(TWO_TIERS, n=2).all_reduce_s(2, 10) == costs(n=2).all_reduce_s(2, 10), "there is one machine only"


FILE = "source,target,latency_s,bandwidth_gbps\n1,0,7,inf\n0,2,0,8e-10\n"


def test_links_of_a_file_have_costs_of_their_own_in_their_direction(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text(FILE)
    known = costs(file=str(tmp_path / "links.csv"))
    assert not known.uniform
    assert known.message_s(1, 0, 1) == 7 and known.message_s(0, 1, 1) == ALPHA + BETA
    assert known.message_s(0, 2, 3) == pytest.approx(30) and known.message_s(2, 0, 3) == ALPHA + 3 * BETA
    assert known.pair_s(0, 1, 4) == 7 + 4 * BETA, "the slower direction of each"
    assert known.all_reduce_s(4, 8) == pytest.approx(2 * 3 * (7 + 2 * 10)), "the largest latency, the slowest link"


def test_links_that_a_file_replaces_altogether_cost_nobody_anything(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("source,target,latency_s,bandwidth_gbps\n0,1,0.5,inf\n1,0,0.25,inf\n")
    known = costs(n=2, file=str(tmp_path / "links.csv"))
    assert known.all_reduce_s(2, 8) == 2 * 0.5, "not the slower links of cluster.links, of which there are none"
    assert costs(n=3, file=str(tmp_path / "links.csv")).all_reduce_s(3, 8) > 2 * 0.5


def test_two_workers_wait_for_the_later_one() -> None:
    both = [(1, 0), (0, 1)]
    # worker 0 hears of 1 at 10 + alpha; worker 1 itself begins at 10, and that of 0 has been there for long
    assert exchange([0, 10], both, 4) == [10 + ALPHA + 4 * BETA, 10 + 4 * BETA]
    assert exchange([0, 0], both, 4) == [ALPHA + 4 * BETA] * 2
    assert exchange([0, 0], both, 4, ports=Ports.one) == [ALPHA + 8 * BETA] * 2
    assert exchange([0, 0], both, 4, ports=Ports.one)[0] == costs(ports=Ports.one, n=2).pair_s(0, 1, 4)


def test_a_shared_port_is_as_fast_as_its_total() -> None:
    shared = dataclasses.replace(TWO_TIERS, shared_gbps=8e-9 / 5)  # 5 s per byte
    found = ready(costs(shared), *RING, np.zeros(4), 1.0)
    np.testing.assert_allclose(found, 3 + 2 * 5)  # two messages leave each machine, and two come in
    one = ready(costs(shared, ports=Ports.one), *RING, np.zeros(4), 1.0)
    np.testing.assert_allclose(one, 3 + 4 * 5)
    crossing = ready(costs(shared), np.array([1, 0]), np.array([0, 2]), np.zeros(4), 1.0)
    # 1 -> 0 stays inside; 0 -> 2 crosses: 1 has no part in that
    np.testing.assert_allclose(crossing, [5, BETA, 3 + 5, 0])
    fast = dataclasses.replace(shared, shared_gbps=inf)
    np.testing.assert_array_equal(
        ready(costs(fast), *RING, np.zeros(4), 1.0), ready(costs(TWO_TIERS), *RING, np.zeros(4), 1.0)
    )


def test_exchanges_of_many_workers_are_the_maxima_and_sums_of_their_edges() -> None:
    rng, n = np.random.default_rng(0), 60
    src, dst = rng.integers(n, size=(2, 400))
    now, sizes = rng.uniform(size=n), rng.uniform(size=400)
    for ports in Ports:
        known = costs(TWO_TIERS, n=n, ports=ports)
        found = ready(known, src, dst, now, sizes)
        port_s = [known.message_s(s, d, b) - known.hop_s(s, d) for s, d, b in zip(src, dst, sizes, strict=True)]
        sent, received = np.bincount(src, port_s, n), np.bincount(dst, port_s, n)
        left = now + sent
        for i in range(n):
            senders = src[dst == i].tolist()
            heard = max(now[j] + known.hop_s(j, i) for j in senders)
            arrived = max(left[j] + known.hop_s(j, i) for j in senders)
            opens = max(left[i], arrived) if ports is Ports.one else heard
            assert found[i] == pytest.approx(max(now[i], left[i], arrived, opens + received[i]))


def test_an_all_reduce_of_twelve_bytes() -> None:
    for collective, workers, expected in [
        (CollectiveName.recursive_doubling, 2, ALPHA + 12 * BETA),
        (CollectiveName.recursive_doubling, 4, 2 * (ALPHA + 12 * BETA)),
        (CollectiveName.recursive_doubling, 3, 2 * (ALPHA + 12 * BETA)),
        (CollectiveName.rabenseifner, 2, 2 * ALPHA + 12 * BETA),
        (CollectiveName.rabenseifner, 4, 4 * ALPHA + 18 * BETA),
        (CollectiveName.ring, 2, 2 * ALPHA + 12 * BETA),
        (CollectiveName.ring, 3, 4 * ALPHA + 16 * BETA),
        (CollectiveName.ring, 4, 6 * ALPHA + 18 * BETA),
        (CollectiveName.tree, 2, 2 * (ALPHA + 12 * BETA)),
        (CollectiveName.tree, 4, 4 * (ALPHA + 12 * BETA)),
        (CollectiveName.star, 2, 2 * ALPHA + 24 * BETA),
        (CollectiveName.star, 5, 2 * ALPHA + 96 * BETA),
        *((collective, 1, 0.0) for collective in CollectiveName),
    ]:
        assert costs(collective=collective).all_reduce_s(workers, 12) == pytest.approx(expected)
    assert costs().sends(collectives.RING, 4) == (24, 6)  # in 6 phases 4 messages each, of a quarter of a row


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 1024])
def test_for_powers_of_two_the_collectives_cost_what_the_formulas_with_a_real_logarithm_say(n: int) -> None:
    M, log = 1e6, math.log2(n)
    formulas = {
        collectives.STAR: 2 * ALPHA + 2 * (n - 1) * M * BETA,
        collectives.RING: 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * M * BETA,
        collectives.TREE: 2 * ALPHA * log + 2 * log * M * BETA,
        collectives.ALL_GATHER: ALPHA * log + (n - 1) * M * BETA,
        collectives.BROADCAST: ALPHA * log + log * M * BETA,
    }
    for collective, seconds in formulas.items():
        assert costs(n=n).collective_s(collective, n, M) == pytest.approx(seconds, rel=1e-12)


def test_the_slowest_link_and_a_shared_way_out_decide_on_an_all_reduce() -> None:
    ring, doubling = ({"collective": one} for one in (CollectiveName.ring, CollectiveName.recursive_doubling))
    assert costs(TWO_TIERS, **doubling).all_reduce_s(4, 12) == 2 * (3 + 12 * 5)
    shared = dataclasses.replace(TWO_TIERS, shared_gbps=8e-9 / 4)  # 4 s per byte; two workers on a machine
    assert costs(shared, **doubling).all_reduce_s(4, 12) == pytest.approx(2 * (3 + 12 * 8))
    assert costs(shared, **ring).all_reduce_s(4, 12) == pytest.approx(6 * 3 + 18 * 5), "one of them sends outside"


@pytest.mark.parametrize(
    ("links", "changed", "says"),
    [
        (PLAIN, {"copy_gbps": None}, "cluster=machines needs cluster.links.copy_gbps, which is not given"),
        (TWO_TIERS, {"between_latency_s": None}, "needs cluster.links.between_latency_s, which is not given"),
        (PLAIN, {"latency_s": 1e10}, r"latency_s=1e\+10 is out of range; .* from 0 to 1e\+09 \(seconds\)"),
        (PLAIN, {"bandwidth_gbps": 0.0}, r"bandwidth_gbps=0 is out of range; .* >= 1e-12 \(Gbit/s\)"),
        (PLAIN, {"shared_gbps": 1.0}, "shared_gbps=1 has no effect without machines"),
        (TWO_TIERS, {"workers_per_machine": 3}, "workers_per_machine=3 does not divide num_workers=4"),
        (PLAIN, {"file": "nowhere.csv"}, "is not a file"),
    ],
)
def test_invalid_links_are_refused(links: Links, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        costs(links, **changed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("source,target,latency_s,bandwidth_gbps\n", "holds no links"),
        ("0,1,1\n", "line 1 of cluster.links.file=.* has 3 columns"),
        ("0,1,1,1\n0,1,1,1\n", "line 2 .* repeats the link 0,1"),
        ("0,4,1,1\n", "line 1 .* has '4' instead of the number of a worker, 0 to 3 with num_workers=4"),
        ("2,2,1,1\n", "line 1 .* is a link from worker 2 to itself"),
        ("0,1,1e300,1\n", "line 1 .* has '1e300' instead of a number of seconds from 0 to 1e"),
        ("0,1,1,fast\n", "line 1 .* has 'fast' instead of a bandwidth"),
    ],
)
def test_invalid_link_files_are_refused_with_their_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "links.csv").write_text(text)
    with pytest.raises(ConfigError, match=says):
        costs(file=str(tmp_path / "links.csv"))


def named(name: str) -> Machines:
    cluster = compose(["task=quadratics", f"cluster={name}"]).cluster
    assert isinstance(cluster, Machines)
    return cluster


def test_the_papers_cluster_delays_two_workers_of_each_step() -> None:
    seconds = named("paper_wagma_resnet").gradient_times(64, 0).seconds(0, 50)
    np.testing.assert_allclose(np.sort(seconds, axis=1)[:, -3:], np.tile([0.62, 0.94, 0.94], (50, 1)))
    assert named("paper_wagma_resnet").costs(64).message_s(0, 1, 9e9) == pytest.approx(1, rel=1e-3), "9 GB/s"


# -- Networks that change under way: what links are like in which step, what that takes, and what is refu --------------

PAPER_C1 = """1/25, 2/20, 4/15, 8/10, 16/5, 32/1, 32/1, 16/5, 8/10, 4/15, 2/20, 1/25"""
"""Latency in ms / Gbit/s of each 4 epochs (specification, section 5); afterwards 1/25."""
STEPS = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=5", "cluster.network.latency_s=[0.25,0.5]"),
    "cluster.network.bandwidth_gbps=[inf,inf]",
)
"""Without links of its own: 0.25 s for five epochs, then 0.5 s."""
QUADRATICS = ("task=quadratics", "task.dimension=5", "steps=20", "num_workers=4", "evaluation.every_epochs=5")


def changing(mode: Mode, links: Links | None = None, seed: int = 0, **settings: object) -> ChangingCosts:
    links = links or Links(copy_gbps=math.inf)
    changes = NetworkChanges(mode, **settings)  # type: ignore[arg-type]
    return ChangingCosts(changes, links, 4, seed, steps_per_epoch=2.5)


def seen(network: ChangingCosts, step: int, seconds: float = 0.0) -> tuple[float, float]:
    """Latency in seconds, Gbit/s."""
    costs = network.at(step, seconds)
    return costs.hop_s(0, 1), 8e-9 / (costs.message_s(0, 1, 1.0) - costs.hop_s(0, 1))


def test_paper_c1_is_the_schedule_of_the_papers_code() -> None:
    cluster = configure("cluster=paper_c1", "algo=allreduce", "num_workers=8", *QUADRATICS[:2]).cluster
    network = cluster.changing(8, 0, steps_per_epoch=3.0)
    expected = [tuple(map(float, each.split("/"))) for each in PAPER_C1.split(", ")]
    for epoch in range(101):
        latency_ms, gbps = expected[min(epoch // 4, 11)]
        for step in (3 * epoch, 3 * epoch + 2):
            assert seen(network, step) == (pytest.approx(latency_ms * 1e-3), pytest.approx(gbps))


def test_a_walk_begins_as_usual_and_stays_in_its_range() -> None:
    links = Links(latency_s=1e-3, bandwidth_gbps=10.0, copy_gbps=math.inf)
    settings = {"segment_epochs": 0.4, "drift": 0.3, "most": 2.0}
    walk = [seen(changing(Mode.random_walk, links, **settings), step) for step in range(200)]
    assert walk[0] == (1e-3, pytest.approx(10.0))
    ratios = np.log2(np.array(walk) / walk[0])
    assert np.abs(ratios).max() <= 1 + 1e-9 and np.all(np.ptp(ratios, axis=0) > 1.5), "in steps of a fifth of the range"
    steps = np.diff(np.array(walk)[:, 0]) != 0
    assert steps.all(), "a segment is a step here"
    backwards = changing(Mode.random_walk, links, **settings)
    assert [seen(backwards, step) for step in reversed(range(200))] == walk[::-1]
    assert [seen(changing(Mode.random_walk, links, 1, **settings), step) for step in range(9)] != walk[:9]


@pytest.mark.parametrize("unit", ["epoch", "seconds"])
def test_a_trace_says_from_when_on(tmp_path: Path, unit: str) -> None:
    (tmp_path / "network.csv").write_text(f"{unit},latency_s,bandwidth_gbps\n0,1,8\n2,3,4\n10,0.5,16\n")
    network = changing(Mode.trace, trace=str(tmp_path / "network.csv"))
    places = [(0, 1.0), (4, 1.9), (5, 2.0), (24, 9.9), (25, 10.0), (10**6, 1e9)]
    expected = [(1, 8), (1, 8), (3, 4), (3, 4), (0.5, 16), (0.5, 16)]
    for (step, seconds), (latency, gbps) in zip(places, expected, strict=True):
        where = (step, 0.0) if unit == "epoch" else (0, seconds)
        assert seen(network, *where) == (latency, pytest.approx(gbps, rel=1e-6))


def test_of_machines_the_links_between_them_change() -> None:
    links = Links(latency_s=1.0, bandwidth_gbps=8e-9, copy_gbps=math.inf, workers_per_machine=2)
    network = changing(Mode.steps, links, segment_epochs=1.0, latency_s=[5.0], bandwidth_gbps=[4e-9])
    assert network.first.message_s(0, 1, 10) == 11 and network.first.message_s(1, 2, 10) == pytest.approx(25)


@pytest.mark.parametrize(
    ("algo", "messages"),
    [(("algo=allreduce",), 6), (("algo=allreduce", "compress=topk"), 2), (("algo=dpsgd", "topology=ring"), 1)],
    ids=["ring all-reduce", "all-gather", "neighbors"],
)
def test_steps_take_what_links_cost_in_their_epoch(start, algo: tuple[str, ...], messages: int) -> None:
    plain = start(*algo, *QUADRATICS, "trace=true", directory="plain")
    run = start(*algo, *QUADRATICS, *STEPS, "trace=true", directory="run")
    assert np.array_equal(run.iterates, plain.iterates), "time follows from values nowhere"
    found = {row["step"]: row["simulated_s"] for row in run.rows}
    for step in (0, 5, 10, 20):
        latencies = 0.25 * min(step, 5) + 0.5 * max(0, step - 5)
        assert found[step] == pytest.approx(step + messages * latencies, rel=1e-12)


def test_a_trace_by_seconds_holds_from_the_first_step_that_begins_after_it(start, tmp_path: Path) -> None:
    (tmp_path / "network.csv").write_text("seconds,latency_s,bandwidth_gbps\n0,0.5,inf\n2.9,0,inf\n")
    trace = f"cluster.network.trace={tmp_path / 'network.csv'}"
    run = start("algo=dpsgd", "topology=ring", *QUADRATICS, *STEPS[:-4], "cluster.network.mode=trace", trace)
    assert {row["step"]: row["simulated_s"] for row in run.rows}[20] == 2 * 1.5 + 18


def test_it_goes_on_bit_for_bit(start, monkeypatch) -> None:
    overrides = [
        *("algo=dpsgd", "topology=ring", *QUADRATICS, "checkpoint_every_s=0.000001", *FREE),
        *("cluster.links.latency_s=0.1", "cluster.network.mode=random_walk", "cluster.network.drift=0.5"),
        "cluster.network.segment_epochs=2",
    ]
    straight = start(*overrides, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (5, 12)]))
    for _ in range(2):
        with pytest.raises(Injected):
            start(*overrides, directory="broken")
    broken = start(*overrides, directory="broken")
    for fact in ("simulated_s", "simulated_shares"):
        assert broken.facts[fact] == straight.facts[fact]
    assert straight.facts["simulated_s"] > 20.5 and straight.facts["simulated_s"] != pytest.approx(22, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,1,8\n", "has no header: start it with epoch,latency_s,bandwidth_gbps or"),
        ("epoch,latency_s,bandwidth_gbps\n4,1,8\n", "is incomplete: add the line that holds from the start"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n2,5\n", "line 3 of cluster.network.trace"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n2,x,8\n", "has 'x' instead of a number of seconds"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n3,1,8\n2,1,8\n", "line 4"),
    ],
)
def test_traces_with_holes_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "network.csv").write_text(text)
    with pytest.raises(ConfigError) as refused:
        changing(Mode.trace, trace=str(tmp_path / "network.csv"))
    assert told in str(refused.value)
