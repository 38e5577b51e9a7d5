"""Simulated time: by hand, by max-plus recurrences, never from the future; what the clock makes of observed runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from configure import configure
from decentral.algorithms.a2cid2 import A2CiD2
from decentral.algorithms.adpsgd import ADPSGD
from decentral.algorithms.async_push_sum import AsyncPushSum
from decentral.algorithms.asynchronous import AsynchronousAlgorithm
from decentral.algorithms.eager_sgd import EagerSGD, Partial
from decentral.algorithms.wagma import WAGMA
from decentral.cluster.links import Links
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.plugins.papers.validation.clock import (
    Case,
    known_cluster,
    links_of,
    simulated,
)
from decentral.plugins.papers.validation.observed import Target
from decentral.registry import components
from decentral.topology.rounds import Rounds
from decentral.training.timing import Timed, timed
from handmade_cluster import Costs, Virtual
from table import ALGORITHMS, ASYNCHRONOUS, FREE, SEVERAL_GRADIENTS

# -- Simulated time: by hand, by max-plus recurrences in plain Python, and never from the future -----------------------

QUADRATICS = ("task=quadratics", "task.dimension=4")
SLOW = Costs(mean=0.3, hop=0.05, message=0.4, pair=0.25, copy=0.02)
METHODS = {
    "a2cid2": (A2CiD2(), "ring"),
    "adpsgd": (ADPSGD(gossips_per_step=2), "ring"),
    "async_push_sum": (AsyncPushSum(), "exponential"),
    "eager_sgd": (EagerSGD(period_steps=5), "ring"),
    "eager_sgd majority": (EagerSGD(Partial.majority.name, Partial.majority, 5), "ring"),
    "wagma": (WAGMA(tau=4), "ring"),
    "wagma that waits": (WAGMA(tau=4, wait_avoiding=False), "ring"),
    "wagma with one receive buffer": (WAGMA(tau=5, recv_depth=1, group_size="2"), "ring"),
}


def rounds(topology: str, n: int) -> Rounds:
    schedule: Rounds = components("topology")[topology]().schedule(n)
    return schedule


def uneven(n: int, steps: int = 64, seed: int = 0) -> np.ndarray:
    """Heavy-tailed times of gradients, [steps, n]."""
    return 0.05 + np.random.default_rng(seed).exponential(size=(steps, n)) ** 2


def virtual(method: str, n: int = 8, steps: int = 20, costs: Costs = SLOW, **options: bool) -> Virtual:
    algorithm: AsynchronousAlgorithm
    algorithm, topology = METHODS[method]
    return Virtual(algorithm, rounds(topology, n), uneven(n), costs, steps, **options)  # type: ignore[arg-type]


def time_of(steps: int, *overrides: str) -> Timed:
    return timed(prepare(configure(*QUADRATICS, *overrides)), steps, num_parameters=1000)


def traced(tmp_path, table: Sequence[Sequence[float]], latency_s: float) -> list[str]:
    """A cluster with these times of gradients, [T][n]."""
    path = tmp_path / "times.csv"
    lines = [f"{t},{i},{s}" for t, row in enumerate(table) for i, s in enumerate(row)]
    path.write_text("\n".join(["step,worker,seconds", *lines]) + "\n")
    return [
        "cluster=machines", "cluster.compute.distribution=trace", f"cluster.compute.trace={path}",
        f"cluster.links.latency_s={latency_s}", "cluster.links.bandwidth_gbps=inf", "cluster.links.copy_gbps=inf",
        f"num_workers={len(table[0])}", "cluster.links.collective=recursive_doubling",
    ]  # fmt: skip


BY_HAND = {
    "dpsgd": (["topology=chain"], 6.0),  # 2.5 and 2; 5.5 and 3, so that the second waits until 5.5 + 0.5
    "allreduce": ([], 6.0),  # 2 + 0.5; 5.5 + 0.5
    "local_sgd": (["algo.period_steps=2"], 4.5),  # 4 and 3; 4 + 0.5
    # the server is beside the first; the second waits for its answer from 2 to 3, and at last from 4 to 5
    "async_diloco": (["algo.period_steps=1"], 5.0),
    # the first sets version 0 off at 1, of which the second hears at 1.5: until 2. The all-reduce begins at 2 + 3
    "wagma": (["algo.tau=2", "algo.group_size=2"], 5.5),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_two_workers_and_two_steps(tmp_path, name):
    settings, expected = BY_HAND[name]
    found = time_of(2, f"algo={name}", *settings, *traced(tmp_path, [[1.0, 2.0], [3.0, 1.0]], 0.5))
    assert found.simulated_s == pytest.approx(expected, abs=1e-12)
    assert found.accounts["compute"].tolist() == [4.0, 3.0]
    assert sum(found.accounts.values()).max() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", [*ALGORITHMS, *ASYNCHRONOUS])
def test_equally_fast_workers_with_a_free_network_never_wait(tmp_path, name):
    if name in ASYNCHRONOUS:
        settings = [*ASYNCHRONOUS[name].net.overrides(tmp_path), *ASYNCHRONOUS[name].overrides]
    else:
        settings = [*ALGORITHMS[name].nets[0].overrides(tmp_path), *ALGORITHMS[name].overrides]
        settings += [f"task={ALGORITHMS[name].task}"]
    found = time_of(12, f"algo={name}", *settings, *FREE)
    assert found.simulated_s > 12.0 if name in SEVERAL_GRADIENTS else found.simulated_s == 12.0
    assert found.waiting_share == 0.0
    assert found.gradients == 12 * len(found.accounts["compute"])
    assert set(found.ages) <= (set(range(5)) if name == "async_diloco" else {0})


def test_rows_of_a_validation_are_cut_in_pieces_as_real_ones_are():
    config = configure(
        *QUADRATICS, "algo=relaysgd", "topology=dbt", "num_workers=4", "network.bandwidth_gbps=0.1", "processes=4"
    )
    case = Case(config, 9, 0, sleeps=True, free_running=False, row_bytes=1_000_000)
    cluster = known_cluster(np.full((9, 4), 0.12), links_of(case, 0.0, 0.0))
    halves = 4 * 0.04  # a worker has three neighbors in one tree and one in the other
    assert simulated(config, 9, cluster).step_s == pytest.approx(0.12 + halves, abs=1e-9)


LOGNORMAL = (
    *("cluster=machines", "cluster.compute.distribution=lognormal", "cluster.compute.mean_s=1"),
    *("cluster.compute.sigma=0.8", "cluster.links.bandwidth_gbps=inf", "cluster.links.copy_gbps=inf"),
)


@pytest.mark.parametrize("waits_for", ["neighbors", "everyone"])
def test_dpsgd_on_a_ring_is_a_loop_over_neighbors(waits_for):
    n, steps, latency = 6, 150, 0.1
    overrides = ["algo=dpsgd", "topology=ring", f"num_workers={n}", *LOGNORMAL, f"cluster.links.latency_s={latency}"]
    config = configure(*QUADRATICS, *overrides, f"cluster.waits_for={waits_for}")
    seconds = config.cluster.gradient_times(n, config.seed).seconds(0, steps)
    now = [0.0] * n
    for t in range(steps):
        now = [now[i] + float(seconds[t, i]) for i in range(n)]
        if waits_for == "everyone":
            now = [max(now) + latency] * n
        else:
            now = [max(now[i], now[i - 1] + latency, now[(i + 1) % n] + latency) for i in range(n)]
    assert timed(prepare(config), steps, 1000).simulated_s == pytest.approx(max(now), rel=1e-12)


def expected_maximum(n: int, tau: int, p: float) -> float:
    """E max of n independent Bin(tau, p)."""
    mass = [math.comb(tau, k) * p**k * (1 - p) ** (tau - k) for k in range(tau + 1)]
    below = np.cumsum(mass) ** n
    return sum(k * (below[k] - (below[k - 1] if k else 0.0)) for k in range(tau + 1))


def test_what_a_period_costs_has_a_closed_form():
    """Base + delay E[max_i Bin(tau, 2 / n)] / tau, for local SGD and for groups that wait for nobody."""
    n, tau, steps, delay = 8, 10, 6000, 0.5
    stragglers = ["cluster.stragglers.mode=independent", f"cluster.stragglers.probability={2 / n}"]
    cluster = [*FREE, *stragglers, f"cluster.stragglers.delay_s={delay}", f"num_workers={n}"]
    local = time_of(steps, "algo=local_sgd", f"algo.period_steps={tau}", *cluster)
    assert local.step_s == pytest.approx(1 + delay * expected_maximum(n, tau, 2 / n) / tau, rel=0.01)
    groups = time_of(steps, "algo=wagma", f"algo.tau={tau}", *cluster)
    assert groups.simulated_s == pytest.approx(local.simulated_s, rel=1e-12)
    assert groups.waiting_share == pytest.approx(local.waiting_share, rel=1e-9)


@pytest.mark.parametrize("costs", [SLOW, Costs(), Costs(hop=3.0, message=5.0, pair=4.0)], ids=["slow", "free", "far"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_used_before_it_was_sent(method, costs):
    run = virtual(method, costs=costs)
    run.run()
    times = [when for when, _, _ in run.seen]
    assert times == sorted(times)
    kept: dict[object, float] = {}
    travels = {"put": costs.message, "total": costs.mean + costs.copy}
    for when, what, arguments in run.seen:
        if what in travels:
            kept[arguments[0]] = when + travels[what]
        elif what == "take":
            assert when >= kept[arguments[0]] - 1e-12
    assert run.timeline.completed == 8 * 20
    spent = sum(run.timeline.accounts().values())
    assert np.all(spent <= run.timeline.now + 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_timeline_is_the_same_whoever_computes_how(method):
    runs = [virtual(method, together=together) for together in (True, False)]
    one, other = (run.run() for run in runs)
    assert np.array_equal(one, other)
    alone = virtual(method, trains=False)
    alone.run()
    for run in (*runs, alone):
        line, first = run.timeline, runs[0].timeline
        assert (line.now, line.ages, line.critical) == (first.now, first.ages, first.critical)
        assert (line.sent_by_now(), line.drawn) == (first.sent_by_now(), first.drawn)
        for part, seconds in line.accounts().items():
            assert np.array_equal(seconds, first.accounts()[part])


@pytest.mark.parametrize("algorithm", [ADPSGD(), A2CiD2()], ids=lambda algorithm: algorithm.name)
def test_a_worker_averages_with_one_other_at_a_time(algorithm):
    """Both ends of a chain ask its middle at 1 s: 10 s for the first, and then 10 s for the second."""
    run = Virtual(algorithm, rounds("chain", 3), np.ones((8, 3)), Costs(pair=10.0), 8)
    run.run()
    assert [when for when, what, _ in run.seen if what == "call"][:2] == [11.0, 21.0]


# -- What the clock makes of measured costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [["algo=allreduce"], ["algo=adpsgd", "topology=ring"]], ids=" ".join)
def test_time_to_a_target_is_simulated_time_when_it_is_first_seen_to_be_reached(algo: list[str]) -> None:
    """Four equal workers, gradients of two seconds and exchanges that take none: step t is over after 2 t seconds."""
    digits = ["task=images", "data=digits", "model=mlp", "partition=iid", "batch_size=32", "lr=0.1"]
    config = compose([*digits, *algo, "cluster=even", "num_workers=4", "processes=4"])
    cluster = known_cluster(np.full((3, 4), 2.0), Links(latency_s=0.0, bandwidth_gbps=math.inf, copy_gbps=math.inf))
    assert Target(1e-9, 5, 20).simulated_s(config, cluster) == pytest.approx(10.0)
    assert np.isnan(Target(1.0, 2, 3).simulated_s(config, cluster))
    later = Target(0.8, 5, 100).simulated_s(config, cluster)
    assert 10.0 < later < 200.0 and later % 10.0 == pytest.approx(0.0)
