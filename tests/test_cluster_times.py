"""How long gradients take in a virtual cluster: distributions, stragglers, traces, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes, Distribution, GradientTimes
from decentral.cluster.links import Links
from decentral.cluster.stragglers import Mode, Stragglers
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.randomness import address, addresses, normal
from decentral.training.clock import without_training

LINKS = Links(latency_s=0.0, bandwidth_gbps=float("inf"), copy_gbps=float("inf"))
SECOND = ComputeTimes(mean_s=1.0)
PARETO = ComputeTimes(Distribution.shifted_pareto, floor_s=1.7, index=1.1, scale_s=0.015, cap_s=43.5)
STRAGGLERS = {
    Mode.none: Stragglers(),
    Mode.exactly: Stragglers(Mode.exactly, delay_s=0.5, count=3),
    Mode.independent: Stragglers(Mode.independent, delay_s=0.5, probability=0.2),
    Mode.persistent: Stragglers(Mode.persistent, slowdown=3.0, probability=0.02, residence_steps=20.0),
    Mode.fixed: Stragglers(Mode.fixed, slowdown=10.0, workers=[0, 5]),
    Mode.drifting: Stragglers(Mode.drifting, slowdown=4.0, drift=0.05),
}
COMPUTE = {
    Distribution.constant: SECOND,
    Distribution.lognormal: ComputeTimes(Distribution.lognormal, mean_s=0.4, sigma=0.7),
    Distribution.length_bucketed: ComputeTimes(
        Distribution.length_bucketed, buckets=[100.0, 200.0, 600.0], seconds_per_token=0.01
    ),
    Distribution.shifted_pareto: PARETO,
}


def times(
    compute: ComputeTimes = SECOND, stragglers: Stragglers | None = None, n: int = 16, seed: int = 3
) -> GradientTimes:
    return Machines(compute=compute, stragglers=stragglers or Stragglers(), links=LINKS).gradient_times(n, seed)


# -- pure functions of (seed, step, worker) ----------------------------------------------------------------------------


def test_a_time_does_not_depend_on_the_range_that_is_asked_for() -> None:
    for mode, distribution in itertools.product(Mode, COMPUTE):
        whole = times(COMPUTE[distribution], STRAGGLERS[mode]).seconds(0, 700)
        assert whole.shape == (700, 16) and whole.dtype == np.float64
        late_first = times(COMPUTE[distribution], STRAGGLERS[mode])
        for first, last in ((650, 700), (3, 4), (100, 400), (127, 129), (0, 1), (256, 512), (9, 9)):
            np.testing.assert_array_equal(late_first.seconds(first, last), whole[first:last])


def test_times_after_some_gradients_are_those_of_the_rest() -> None:
    whole = times(stragglers=Stragglers(Mode.exactly, delay_s=0.5, count=3))
    for number in (0, 7, 300):
        rest = whole.after(number)
        assert np.array_equal(rest.seconds(0, 9), whole.seconds(number, number + 9))
        assert np.array_equal(rest.after(2).delays(1, 9), whole.delays(number + 3, number + 11))


# -- distributions -----------------------------------------------------------------------------------------------------


def test_lognormal_times_have_this_mean_and_this_logarithm() -> None:
    seconds = times(COMPUTE[Distribution.lognormal], n=50).seconds(0, 4000)
    assert seconds.mean() == pytest.approx(0.4, rel=0.01)
    assert np.median(seconds) == pytest.approx(0.4 * np.exp(-0.49 / 2), rel=0.01)
    assert np.log(seconds).std() == pytest.approx(0.7, rel=0.01)


def test_the_shifted_pareto_distribution_is_that_of_habitat() -> None:
    seconds = times(PARETO, n=100).seconds(0, 5000)
    assert seconds.min() >= 1.7 and seconds.max() == 43.5, "with so many draws some are at the cap"
    for share in (0.5, 0.9, 0.99):
        expected = 1.7 + 0.015 * ((1 - share) ** (-1 / 1.1) - 1)
        assert np.quantile(seconds, share) == pytest.approx(expected, rel=0.05)
    assert np.median(seconds) == pytest.approx(1.713, abs=0.001)


# -- stragglers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 15, 16])
def test_a_fixed_number_straggles_equally_often(count: int) -> None:
    delays = times(SECOND, Stragglers(Mode.exactly, delay_s=0.25, count=count)).delays(0, 4000)
    assert set(np.unique(delays)) <= {0.0, 0.25}
    np.testing.assert_array_equal((delays > 0).sum(axis=1), count)
    np.testing.assert_allclose((delays > 0).mean(axis=0), count / 16, atol=0.04)


def test_independent_stragglers_have_their_probability_and_no_memory() -> None:
    slow = times(SECOND, STRAGGLERS[Mode.independent], n=40).delays(0, 5000) > 0
    assert slow.mean() == pytest.approx(0.2, abs=0.005)
    assert slow[1:][slow[:-1]].mean() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(("probability", "residence"), [(0.02, 20.0), (0.3, 4.0), (0.4, 1.0), (0.9, 2.0)])
def test_a_persistent_straggler_stays_slow_for_so_many_steps(probability: float, residence: float) -> None:
    mode = Stragglers(Mode.persistent, delay_s=1.0, probability=probability, residence_steps=residence)
    slow = times(SECOND, mode, n=400).delays(0, 2000) > 0
    assert slow[1:][~slow[:-1]].mean() == pytest.approx(probability, rel=0.03)
    assert slow[1:][slow[:-1]].mean() == pytest.approx(1 - 1 / residence, rel=0.03, abs=1e-12)
    share = probability / (probability + 1 / residence)
    for part in (slow[:1], slow):  # stationary from the first step on
        assert part.mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 400))


def test_a_drift_is_the_sum_of_its_steps_reflected_at_the_bounds() -> None:
    drift, n = 0.05, 8
    place = times(SECOND, Stragglers(Mode.drifting, delay_s=1.0, drift=drift), n=n, seed=0).delays(0, 600)
    steps = drift * normal(0, "cluster: stragglers", np.arange(600)[:, None], np.arange(n)[None, :])
    ways = [
        (place[:-1] + sign * steps[1:]) % 2 for sign in (1, -1)
    ]  # which way is up depends on the reflections so far
    reflected = [np.minimum(way, 2 - way) for way in ways]
    assert np.minimum(*(np.abs(way - place[1:]) for way in reflected)).max() < 1e-9


# -- recorded times ----------------------------------------------------------------------------------------------------


def trace(path: Path, text: str, n: int) -> GradientTimes:
    file = path / "trace.csv"
    file.write_text(text)
    return times(ComputeTimes(Distribution.trace, trace=str(file)), n=n)


RECORDED = np.array([[1.0, 2.0], [0.5, 4.0], [0.25, 8.0]])


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n.5,4\n0.25,8\n",
        "fast,slow\n1,2\n.5,4\n0.25,8\n",
        "step,worker,seconds\n0,0,1\n0,1,2\n1,0,.5\n1,1,4\n2,0,.25\n2,1,8\n",
        "step,worker,seconds\n\n2,1,8\n2,0,.25\n1,1,4\n1,0,.5\n0,1,2\n0,0,1\n",
    ],
)
def test_a_trace_is_replayed_and_begins_again(tmp_path: Path, text: str) -> None:
    found = trace(tmp_path, text, n=2)
    np.testing.assert_array_equal(found.seconds(0, 7), np.concatenate([RECORDED, RECORDED, RECORDED[:1]]))
    np.testing.assert_array_equal(found.seconds(1000, 1001), RECORDED[1000 % 3][None])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step,worker,seconds\n", "holds no times"),
        ("1,2\n1\n", "line 2 of cluster.compute.trace=.* has 1 columns, but num_workers=2"),
        ("1,2\n1,\n", "line 2 .* lacks a value: give"),
        ("1,2\n1,nan\n", "line 2 .* has 'nan'"),
        (
            "step,worker,seconds\n0,0,1\n0,2,1\n",
            "line 3 .* has '2' instead of the number of a worker, .* num_workers=2",
        ),
        ("step,worker,seconds\n0,0,1\n0,1,1\n1,0,1\n", "is incomplete: add the time of step 1 of worker 1"),
        ("step,worker,seconds\n0,0,1\n0,1,1\n0,1,2\n", "line 4 .* repeats step 0 of worker 1"),
        ("step,worker,seconds\n0.5,1,1\n", "line 2 .* has '0.5' instead of the number of a step"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trace(tmp_path, text, n=2)


# -- refusals ----------------------------------------------------------------------------------------------------------


def recorded(folder: Path, *operations: dict) -> Path:
    """The directory of a run that has kept these operations."""
    folder.mkdir()
    (folder / "operations.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in operations))
    return folder


def test_a_finished_run_is_a_trace_of_its_gradients(tmp_path: Path) -> None:
    def gradient(worker: int, begin_s: float, end_s: float) -> dict:
        return {"worker": worker, "what": "gradient", "number": 0, "begin_s": begin_s, "end_s": end_s}

    join = {**gradient(0, 1.0, 9.0), "what": "join"}
    gradients = [gradient(1, 0, 0.5), gradient(0, 0, 0.25), gradient(1, 1, 3), gradient(0, 1, 2), gradient(1, 4, 5)]
    run = recorded(tmp_path / "run", join, *gradients)
    found = times(ComputeTimes(Distribution.trace, trace=str(run)), n=2).seconds(0, 3)
    assert found == pytest.approx(np.array([[0.25, 0.5], [1.0, 2.0], [0.25, 0.5]]))
    with pytest.raises(ConfigError, match="gradients of 2 workers or processes, but num_workers=3"):
        times(ComputeTimes(Distribution.trace, trace=str(run)), n=3)
    with pytest.raises(ConfigError, match="cannot be read"):
        times(ComputeTimes(Distribution.trace, trace=str(recorded(tmp_path / "torn", {"worker": 0}))), n=1)
    with pytest.raises(ConfigError, match="record_operations=true and processes=2"):
        times(ComputeTimes(Distribution.trace, trace=str(tmp_path)), n=2)


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (dataclasses.replace(SECOND, mean_s=None), r"needs cluster\.compute\.mean_s, which is not"),
        (dataclasses.replace(SECOND, mean_s=float("inf")), r"cluster\.compute\.mean_s=inf is not finite"),
        (dataclasses.replace(COMPUTE[Distribution.length_bucketed], buckets=[]), "buckets=.* is empty"),
        (dataclasses.replace(COMPUTE[Distribution.length_bucketed], buckets=[1e300]), "the longest of .* at most"),
        (dataclasses.replace(COMPUTE[Distribution.lognormal], sigma=11.0), "sigma=11 is out of range; .* <= 10"),
        (dataclasses.replace(SECOND, sigma=2.0), "sigma=2.0 has no effect with cluster.compute.distribution=constant"),
        (dataclasses.replace(PARETO, cap_s=1.0), "cap_s=1 is below cluster.compute.floor_s=1.7"),
        (ComputeTimes(Distribution.trace, trace="none.csv"), "is not a file"),
    ],
)
def test_invalid_distributions_are_refused(compute: ComputeTimes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        times(compute)


def of(mode: Mode, **changed: Any) -> Stragglers:
    return dataclasses.replace(STRAGGLERS[mode], **changed)


@pytest.mark.parametrize(
    ("stragglers", "says"),
    [
        (of(Mode.exactly, count=None), "mode=exactly needs cluster.stragglers.count, which is not given"),
        (of(Mode.exactly, delay_s=None), "mode=exactly needs cluster.stragglers.delay_s or .*slowdown"),
        (of(Mode.exactly, slowdown=2.0), "delay_s=0.5 and cluster.stragglers.slowdown=2 conflict"),
        (of(Mode.exactly, count=17), "count=17 is out of range for num_workers=16: use a number from 1 to 16"),
        (of(Mode.exactly, workers=[1]), r"workers=\[1\] has no effect with cluster.stragglers.mode=exactly"),
        (of(Mode.independent, probability=1.0), "probability=1 is out of range"),
        (of(Mode.fixed, workers=[3, 3]), r"workers=\[3, 3\] is empty or repeats a worker: name"),
        (of(Mode.fixed, workers=[16]), "names worker 16: with num_workers=16, use 0 to 15"),
    ],
)
def test_invalid_stragglers_are_refused(stragglers: Stragglers, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Machines(compute=SECOND, stragglers=stragglers, links=LINKS).check(16)


# -- the configuration -------------------------------------------------------------------------------------------------

SMALL = ("task=quadratics", "algo=dpsgd", "topology=ring")


def test_a_trace_counts_by_what_is_in_it(tmp_path: Path) -> None:
    for name, text in (("a", "1,2\n"), ("copy", "1,2\n"), ("b", "1,3\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    clear = ("cluster=even", "cluster.compute.mean_s=null", "cluster.compute.distribution=trace", "num_workers=2")
    found = [
        run_id(compose([*SMALL[:2], "topology=chain", *clear, f"cluster.compute.trace={tmp_path / name}.csv"]))
        for name in ("a", "copy", "b")
    ]
    assert found[0] == found[1] != found[2]


def test_many_addresses_are_those_that_are_asked_for_one_by_one() -> None:
    for place in ((), (7,), (2**63 + 1, 0)):
        found = list(islice(addresses(11, "gossip", *place), 150))
        assert found == [address(11, "gossip", *place, t) for t in range(150)]


def test_an_all_reduce_overlaps_the_backward_pass() -> None:
    """Buckets of 25 MB, each once all have it and the one before is through; messages and bytes are the same."""
    words = ["algo=allreduce", "task=quadratics", "num_workers=4", "cluster=even", "cluster.num_parameters=25557032"]
    words += ["cluster.compute.mean_s=0.3", "simulate=timeline", "steps=3"]
    found = {}
    for each in ([], ["algo.overlap_backward=true"]):
        config = compose([*words, *each])
        times = config.cluster.gradient_times(4, 0)
        stepper = without_training(config, config.cluster, times, 25557032, torch.float32, 3)
        with torch.no_grad():
            for _ in range(3):
                stepper.step()
        found[bool(each)] = stepper
    costs, num_bytes = compose(words).cluster.costs(4), 4.0 * 25557032
    buckets, end = math.ceil(num_bytes / 25e6), 0.0
    for b in range(1, buckets + 1):
        end = max(end, (1 / 3 + 2 / 3 * b / buckets) * 0.3) + costs.all_reduce_s(4, num_bytes / buckets)
    assert found[True].simulated_s == pytest.approx(3 * end, rel=1e-12)
    assert 0.3 * 3 < found[True].simulated_s < found[False].simulated_s
    assert found[True].traffic.bytes_sent == found[False].traffic.bytes_sent
    accounts = found[True].accounts()
    np.testing.assert_allclose(sum(accounts.values()), found[True].simulated_s)


def test_a_compressor_that_looks_at_whole_gradients_does_not_travel_behind_them() -> None:
    with pytest.raises(ConfigError, match="overlap_backward"):
        compose(["algo=allreduce", "compress=topk", "algo.overlap_backward=true", "task=quadratics"])
    compose(["algo=allreduce", "compress=bf16", "algo.overlap_backward=true", "task=quadratics"])
