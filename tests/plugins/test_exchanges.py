"""Exchanges that are timed, workers that sleep, and times over other links."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.config.composition import compose_all
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.measurements.timeline import cluster_of
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Value
from decentral.plugins.papers.kinds.over_links import BANDWIDTH, LATENCY, LinkCell
from decentral.plugins.papers.measurements.exchanges import ExchangeTimes, SleepingSteps
from decentral.runtime.launch import launch
from decentral.store import Status
from decentral.store.metrics import LineFile
from decentral.study import catalogue
from decentral.study.catalogue import study_from
from decentral.study.measure import Measure
from decentral.study.study import Study

# -- exchanges ------------------------------------------------------------------------------------------------------

EXCHANGED: list[dict[str, Any]] = [
    {"method": "All-reduce", "topology": "complete", "base": ["topology=complete"], "verb": "mean"},
    {"method": "Ring", "topology": "ring", "base": ["topology=ring"]},
    {"method": "One-peer", "topology": "one_peer_exponential", "base": ["topology=one_peer_exponential"]},
]


def exchange_study(**more: Any) -> Study:
    values = {
        **{
            "kind": "exchanges",
            "base": ["task=quadratics", "algo=dpsgd", "network.transport=torch"],
            "rows": EXCHANGED,
        },
        **{
            "baseline": "All-reduce",
            "columns": {"num_workers": [2]},
            "megabytes": [0.004, 0.001],
            "rounds": 2,
            "warm_up": 1,
        },
    }
    return catalogue.study_from("mine", values | more)


def exchange_cells(folder: Path, **more: Any):
    return exchange_study(**more).cells([f"results_dir={folder}"])


def test_every_exchange_is_timed_in_every_round_and_a_second_attempt_goes_on(tmp_path: Path) -> None:
    cell = exchange_cells(tmp_path)[0]
    (job,) = cell.jobs()
    assert isinstance(job, ExchangeTimes) and cell.values() == []
    job.directory.mkdir(parents=True)
    known = {
        "megabytes": 0.004,
        **{clock: {row["method"]: [1.0, 1.0] for row in EXCHANGED} for clock in ("wall_s", "cpu_s")},
    }
    with closing(LineFile(job.directory / job.lines)) as lines:
        lines.append(known)
        assert not job.work(lines, lambda: True, lambda *_: None), "stopped before the first"
        assert job.work(lines, lambda: False, lambda *_: None)
    times = {line["megabytes"]: line for line in job.found()}
    assert list(times) == [0.004, 0.001] and times[0.004]["wall_s"]["Ring"] == [1.0, 1.0]
    for clock in ("wall_s", "cpu_s"):
        assert {name: len(seconds) for name, seconds in times[0.001][clock].items()} == {
            **{"All-reduce": 2, "Ring": 2, "One-peer": 2}
        }
        assert all(0 < second < 60 for seconds in times[0.001][clock].values() for second in seconds)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"baseline": "Al-reduce"}, "baseline=Al-reduce is not the method of a row. Did you mean 'All-reduce'?"),
        ({"columns": {"num_workers": [1]}}, "needs several workers"),
        ({"rounds": 0}, "rounds=0 is out of range; use a number >= 1"),
        ({"rows": [{**EXCHANGED[0], "verb": "median"}]}, "verb='median' has the wrong type"),
    ],
)
def test_exchanges_that_cannot_be_timed_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        exchange_study(**changes).cells([])


# -- sleeping -------------------------------------------------------------------------------------------------------

NO_LINKS = ["task=quadratics", "cluster=free", "cluster.num_parameters=11", "cluster.compute.mean_s=0.002"]
SLEEPY = [
    *NO_LINKS,
    "cluster.stragglers.mode=exactly",
    "cluster.stragglers.count=1",
    "cluster.stragglers.delay_s=0.003",
]
SLEEPING_ROWS: list[dict[str, Any]] = [
    {"method": "WAGMA-SGD", "base": ["algo=wagma", "algo.tau=2"]},
    {"method": "All-reduce", "base": ["algo=allreduce"]},
    {"method": "AD-PSGD", "topology": "ring", "base": ["algo=adpsgd", "topology=ring"]},
]


def sleeping_study(**more: Any) -> Study:
    values = {
        "kind": "sleeping",
        "base": SLEEPY,
        "rows": SLEEPING_ROWS,
        "columns": {"num_workers": [2]},
        "baseline": "WAGMA-SGD",
    }
    return study_from("mine", {**values, "seeds": [1], "steps": 4, "warm_up": 2, **more})


def sleeping_cells_of(folder: Path, **more: Any) -> list[Any]:
    return sleeping_study(**more).cells([f"results_dir={folder}"])


def test_real_workers_sleep_and_the_clock_is_asked_about_the_same_gradients(tmp_path: Path) -> None:
    cells = sleeping_cells_of(tmp_path)
    (job,) = {job.id: job for cell in cells for job in cell.jobs()}.values()
    assert isinstance(job, SleepingSteps)
    (line,) = [{"seed": seed, **job.line(seed)} for seed in job.seeds]
    slept = cluster_of(job.config).gradient_times(2, 1).seconds(2, 6)
    least = {
        "All-reduce": slept.max(1).mean(),
        "WAGMA-SGD": np.mean([slept[:2].sum(0).max(), slept[2:].sum(0).max()]) / 2,
    }
    for method, seconds in least.items():
        assert line["clock_s"][method] == pytest.approx(seconds, rel=1e-9)
        assert line["measured_s"][method] > 0.999 * seconds, "who sleeps is not there sooner"
    assert list(line["measured_s"]) == list(line["clock_s"]) == [row["method"] for row in SLEEPING_ROWS]


LINK_BASE = [
    *("task=images", "data=digits", "model=mlp", "model.hidden=[8]", "num_workers=4", "batch_size=8", "steps=8"),
    *("optim=sgd", "algo=allreduce", "partition=iid", "evaluation.every_epochs=0.02", "processes=1"),
    *("cluster=even", "cluster.num_parameters=1000000"),
]
TO_REACH = {"worker": "mean", "to_reach": 12, "axis": "step"}
LINK_ROW = {"method": "mine", "base": ["compress=topk"], "lr": 0.3}


def links_study(rows: list[dict[str, Any]], **settings: Any) -> Any:
    values = {"kind": "over_links", "base": LINK_BASE, "rows": rows, "seeds": [1], "measure": TO_REACH}
    return study_from("mine", values | {"gbps": [0.1, 10], "latency_ms": [0.05, 5]} | settings)


def links_run(found: Any, folder: Path) -> list[tuple[LinkCell, list[Value]]]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert (launch(job.prepared).status if isinstance(job, TrainingRun) else job.carry_out()) is Status.done
    return [(cell, cell.values()) for cell in cells]


ON_LINKS = ["topk", *(pytest.param(name, marks=pytest.mark.slow) for name in ("powersgd", "artopk"))]


@pytest.mark.parametrize("compress", ON_LINKS)
def test_the_time_on_other_links_is_that_of_a_run_on_them(compress: str, tmp_path: Path) -> None:
    ((_, values),) = links_run(links_study([LINK_ROW | {"base": [f"compress={compress}"]}]), tmp_path)
    steps, *times = values
    assert (
        math.isfinite(steps.value) and len(times) == 4 and (steps.labels[BANDWIDTH], steps.labels[LATENCY]) == ("", "")
    )
    place = {BANDWIDTH: 0.1, LATENCY: 5}
    links = ["cluster.links.bandwidth_gbps=0.1", "cluster.links.latency_s=0.005"]
    (config,) = compose_all(
        [[*LINK_BASE, f"compress={compress}", f"results_dir={tmp_path}", "progress=false", *links]], None
    )
    there = launch(prepare(replace(config, lr=0.3, seed=1))).directory
    expected = Measure(worker="mean", to_reach=12, axis="simulated_s").of(there)
    (found,) = [value for value in times if place.items() <= value.labels.items()]
    assert found.metric == expected.metric and found.value == pytest.approx(
        expected.value, rel=1e-6
    )  # stored times are rounded
    assert not found.meaning.larger_is_better


def test_what_overlaps_hides_at_most_its_share_of_the_gradient(tmp_path: Path) -> None:
    rows = [LINK_ROW | {"base": ["compress=bf16"], "method": f"{o}", "overlap": o} for o in (0, 0.5, 1)]
    found = links_run(links_study(rows), tmp_path)
    steps = found[0][1][0].value
    whole, half, hidden = ([value.value / steps for value in values[1:]] for _, values in found)
    for alone, some, most in zip(whole, half, hidden, strict=True):
        exchange = alone - 0.16
        assert some == pytest.approx(0.16 + max(0.0, exchange - 0.08))
        assert most == pytest.approx(0.16 + max(0.0, exchange - 0.16))


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        ([], {"gbps": []}, "gbps=.. and latency_ms=.* do not span a map"),
        ([], {"measure": TO_REACH | {"axis": "epoch"}}, "steps to a target"),
        (["algo=dpsgd", "topology=ring", "compress=none"], {}, "algo must be allreduce"),
        (["cluster=paper_c1"], {}, "all links must be alike"),
        (["compress=flexible"], {}, "must not depend on the links"),
        (["cluster=two_delayed"], {}, "all gradients must take the same time"),
    ],
)
def test_what_does_not_follow_from_one_run_is_refused(
    base: list[str], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        links_study([LINK_ROW | {"base": ["compress=topk", *base]}], **settings).cells([f"results_dir={tmp_path}"])
