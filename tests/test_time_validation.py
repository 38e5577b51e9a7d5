"""What is observed of real runs, and what the clock makes of it: a run of its own times comes out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.validation.clock import (
    Case,
    Costs,
    calibrated,
    computed,
    known_cluster,
    links_of,
    shared,
    work_on_cores,
)
from decentral.measurements.validation.observed import Method, ObservedTimes, Recording, Target, pace
from decentral.study import catalogue
from decentral.study.kinds.time_validation import HELD_OUT, TimeValidation, kendall

METHODS = {
    "All-reduce": ["algo=allreduce"],
    "Local SGD": ["algo=local_sgd", "algo.period_steps=5"],
    "D-PSGD": ["algo=dpsgd", "topology=ring"],
    "SGP": ["algo=sgp", "topology=one_peer_exponential"],
    "RelaySGD": ["algo=relaysgd", "topology=chain"],
    "WAGMA-SGD": ["algo=wagma", "algo.tau=5"],
    "Eager-SGD": ["algo=eager_sgd", "algo.period_steps=5"],
    "AD-PSGD": ["algo=adpsgd", "topology=ring"],
    "Async push-sum": ["algo=async_push_sum", "topology=one_peer_exponential"],
}
TWO = ["cluster.stragglers.mode=exactly", "cluster.stragglers.count=2", "cluster.stragglers.delay_s=0.06"]
STEPS, CORES = 20, 2


def config_of(method: str, n: int, *more: str) -> Config:
    shared_by_all = ["task=quadratics", "cluster=even", f"num_workers={n}", f"processes={n}", "lr=0.1"]
    return compose([*shared_by_all, *METHODS[method], *more])


def case_of(method: str, n: int, *more: str) -> Case:
    config = config_of(method, n, *more)
    return Case.of(ObservedTimes(config, {}, [Method(method, config)], 1, STEPS, 10, 1000), method)


def synthetic(case: Case, method: str, durations: np.ndarray, costs: Costs) -> Recording:
    """What would have been recorded if the clock were the world."""
    from dataclasses import replace

    from decentral.cluster.costs import LinkCosts
    from decentral.cluster.known import KnownCluster
    from decentral.cluster.spans import Spans
    from decentral.training.timing import timed

    n = durations.shape[1]
    busy = shared(durations, costs.work_s, CORES, case.free_running)
    cluster = KnownCluster(busy, LinkCosts(links_of(case.config, costs.latency_s, costs.transfer_s).open(n), n))
    spans = Spans(n)
    alone = replace(case.config, processes="1", cluster=cluster)
    found = timed(alone, STEPS, 1, spans)
    begins: list[list[float]] = [[] for _ in range(n)]
    ends: list[list[float]] = [[] for _ in range(n)]
    for span in spans.found:
        if span.kind == "compute":
            begins[span.worker].append(span.begin_s)
            number = len(begins[span.worker]) - 1
            ends[span.worker].append(span.begin_s + float(durations[number % len(durations), span.worker]))
    accounts = found.accounts
    waited = [float(accounts["wait"][i] + accounts["exchange"][i]) for i in range(n)]
    return Recording(
        method=method,
        round=0,
        steps=STEPS,
        cores=CORES,
        ended_s=[found.simulated_s] * n,
        first=[case.warm_up] * n,
        begin_s=begins,
        end_s=ends,
        waited_s=waited,
        ages=found.ages,
        operations=[],
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_replay_of_what_the_clock_did_is_what_it_did(method: str) -> None:
    case = case_of(method, 8, *TWO)
    costs = Costs(np.zeros(1), 0.0, 2e-4)
    recording = synthetic(case, method, case.planned(0, 10, 10 + 2 * STEPS), costs)
    replayed = costs.clock(case, recording.durations(), recording.cores)
    assert replayed.step_s == pytest.approx(recording.step_s(case.free_running), rel=1e-9)
    if not case.free_running:
        assert replayed.stale_share == recording.stale_share


@pytest.mark.parametrize("method", METHODS)
def test_costs_of_even_runs_predict_a_larger_cluster_with_stragglers(method: str) -> None:
    even, late = case_of(method, 4), case_of(method, 8, *TWO)
    costs = Costs(np.full(1, 1e-3), 2e-3, 4e-4)
    begins, ends = late.warm_up, late.warm_up + 2 * STEPS
    found = calibrated(even, [synthetic(even, method, even.planned(0, begins, ends) + 1e-3, costs)])
    assert found.beyond == pytest.approx(np.full(len(found.beyond), 1e-3))
    assert found.work_s == pytest.approx(2e-3, rel=0.3)
    predicted = found.predict(late, 0, CORES)
    truth = costs.clock(late, late.planned(0, begins, ends) + 1e-3, CORES)
    assert predicted.step_s == pytest.approx(truth.step_s, rel=0.01)


def test_who_comes_first_has_the_first_core_that_is_free() -> None:
    durations = np.array([[1.0, 1.0, 1.0, 9.0]])
    assert shared(durations, 0.5, 2, False).tolist() == [[1.5, 1.5, 2.0, 9.5]]
    apart = np.array([[1.0, 1.2], [1.0, 1.0]])
    assert shared(apart, 0.5, 1, True) == pytest.approx(np.array([[1.5, 2.0], [1.5, 1.5]]))
    longer = (shared(durations, 0.4, 2, False) - durations).mean()
    assert work_on_cores(durations, float(longer), 2, False) == pytest.approx(0.4)


def test_gradients_are_counted_until_the_first_worker_is_done() -> None:
    assert pace([[0.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 3.0]]) == pytest.approx(2 * 2 / 3)
    assert pace([[0.0], [0.0]], [[1.0], [4.0]]) == pytest.approx(2 / 1.25)


def test_orders_in_numbers() -> None:
    assert kendall([(1, 2), (2, 4), (3, 9)]) == 1 and kendall([(1, 3), (2, 2), (3, 1)]) == -1
    assert kendall([(1, 1), (2, 2), (3, 4), (4, 3)]) == pytest.approx(4 / 6)
    assert np.isnan(kendall([(1, 1), (1, 2)])) and np.isnan(kendall([(1, 1)]))


def study(**more: Any) -> TimeValidation:
    values = {
        **{"kind": "time_validation", "base": ["task=quadratics", "cluster=even"]},
        **{"rows": [{"method": name, "base": base} for name, base in METHODS.items()]},
        **{"processes": [2, 4], "settings": [{"stragglers": "even"}, {"stragglers": "two", "base": TWO}]},
        **{"calibrated": {"stragglers": "even", "processes": [2]}},
    }
    found = catalogue.study_from("mine", values | more)
    assert isinstance(found, TimeValidation)
    return found


def test_each_place_is_one_job_and_needs_that_from_which_costs_come(tmp_path: Path) -> None:
    cells = study().cells([f"results_dir={tmp_path}"])
    jobs = {job.id: job for cell in cells for job in cell.jobs()}
    assert [job.title for job in jobs.values()] == [
        f"{n} processes, {kind}" for kind in ("even", "two") for n in (2, 4)
    ]
    assert all(job.demand.alone for job in jobs.values())
    by_case = {cell.labels["case"]: [job.title for job in cell.jobs()] for cell in cells}
    assert by_case["2 processes, even"] == ["2 processes, even"]
    assert by_case["4 processes, two"] == ["4 processes, two", "2 processes, even"]
    assert len(by_case[HELD_OUT]) == 4 and not any(cell.values() for cell in cells)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps=0"),
        (
            {"calibrated": {"stragglers": "none", "processes": [2]}},
            "has no setting with stragglers=none and processes=",
        ),
        ({"calibrated": {"stragglers": "even", "processes": []}}, "calibrated.processes="),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        study(**changes)


def test_who_computes_at_the_same_time_shares_the_cores_equally():
    """Two cores: three begin at 0 with 2/3 of a core each; at 3 the first is done, and the others have one each."""
    found = computed(np.array([[0.0, 0.0, 0.0, 5.0]]), np.array([[2.0, 3.0, 4.0, 1.0]]), 2, False)
    np.testing.assert_allclose(found, [[3.0, 4.0, 5.0, 6.0]])


def test_a_worker_that_sleeps_leaves_its_core_to_the_others():
    work_s = np.ones((20, 4))
    sleeps = np.zeros((20, 4))
    sleeps[:, :2] = 30.0
    even, delayed = (computed(each, work_s, 2, False) for each in (np.zeros((20, 4)), sleeps))
    np.testing.assert_allclose(even, 2.0)
    np.testing.assert_allclose(delayed - sleeps, 1.0)


@pytest.mark.parametrize("method", ["All-reduce", "D-PSGD", "WAGMA-SGD", "AD-PSGD"])
def test_time_to_a_target_is_simulated_time_when_it_is_first_seen_to_be_reached(method: str) -> None:
    """Four equal workers, gradients of two seconds and exchanges that take none: step t is over after 2 t seconds."""
    digits = ["task=images", "data=digits", "model=mlp", "partition=iid", "batch_size=32"]
    config = config_of(method, 4, *digits)
    cluster = known_cluster(np.full((3, 4), 2.0), links_of(config, 0.0, 0.0))
    assert Target(1e-9, 5, 20).simulated_s(config, cluster) == pytest.approx(10.0)
    assert np.isnan(Target(1.0, 2, 3).simulated_s(config, cluster))
    later = Target(0.8, 5, 100).simulated_s(config, cluster)
    assert 10.0 < later < 200.0 and later % 10.0 == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [((0.0,), "target.accuracy=0 makes no sense"), ((0.9, 0), "target.every_steps"), ((0.9, 9, 8), "at_most_steps")],
)
def test_targets_that_make_no_sense_are_refused(settings: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Target(*settings)
