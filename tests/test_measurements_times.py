"""Throughput: a method and a baseline take steps in turn, and the study reports speeds and their ratio."""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.config.composition import compose_all
from decentral.errors import ConfigError
from decentral.measurements.exchanges import ExchangeTimes, SleepingSteps
from decentral.measurements.throughput import IMAGES, RATIO
from decentral.measurements.timeline import SENT, STEP, THROUGHPUT, WAITING, cluster_of
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Value
from decentral.runtime.launch import launch
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.store.files import read_json
from decentral.store.metrics import LineFile
from decentral.study import catalogue
from decentral.study.catalogue import study_from
from decentral.study.kinds.over_links import BANDWIDTH, LATENCY, LinkCell
from decentral.study.measure import Measure
from decentral.study.study import Study
from waiting import until

SMALL_IMAGES = ["model=mlp", "num_workers=2", "batch_size=2", "data.image_size=8", "data.num_classes=4", "device=cpu"]


def throughput_cells(tmp_path, *overrides: str):
    return catalogue.load("thesis_table5_1", "smoke").cells([*SMALL_IMAGES, f"results_dir={tmp_path}", *overrides])


def check_values(cell):
    speeds = [value for value in cell.values() if value.metric == IMAGES]
    ratios = [value for value in cell.values() if value.metric == RATIO]
    assert [value.seed for value in speeds] == [value.seed for value in ratios] == [0, 1]
    assert all(value.value > 0 for value in (*speeds, *ratios))
    assert {value.published for value in speeds} == {"model_averaging|full|ResNet-50, 8 GPUs"}
    assert {value.published for value in ratios} == {""}


def test_a_job_that_was_killed_goes_on_after_the_iterations_that_it_has(tmp_path):
    (job,) = throughput_cells(tmp_path)[0].jobs()
    job.directory.mkdir(parents=True)
    line = '{"iteration": 0, "images_per_s": 1.0, "baseline_images_per_s": 2.0}\n'
    (job.directory / "lines.jsonl").write_text(line + '{"iteration": 1, "im')
    (job.directory / "config.yaml").write_text(f"# run {job.id}\n")
    job.carry_out()
    assert [found["iteration"] for found in job.found()] == [0, 1]
    assert job.found()[0]["images_per_s"] == 1.0


@pytest.mark.slow
def test_two_processes_are_timed_together(tmp_path):
    cell = throughput_cells(tmp_path, "processes=2")[0]
    (job,) = cell.jobs()
    assert job.demand == Demand(2, "cpu", alone=True)
    assert job.carry_out() is Status.done
    check_values(cell)
    assert {line["processes"] for line in job.found()} == {2}
    assert read_json(job.directory / "provenance.json")["processes"] == 2


@pytest.mark.slow
def test_the_device_of_the_machine_that_asks_is_no_part_of_the_question(tmp_path, monkeypatch):
    def job(device: str):
        return throughput_cells(tmp_path, f"device={device}")[0].jobs()[0]

    with_gpu = []
    for gpus in (0, 2):
        monkeypatch.setattr("decentral.runtime.devices.num_gpus", lambda gpus=gpus: gpus)
        assert job("auto").demand == Demand(1, "auto", alone=True)
        with_gpu.append(job("auto").id)
    assert len(set(with_gpu)) == 1
    assert job("cuda:1").id == job("cuda").id != job("cpu").id
    placed = job("cuda:1").placed(1)
    assert placed.config.device == "cuda" and placed.id == job("cuda:1").id, "it sees one GPU, whose number is 0"


def test_times_of_two_devices_are_not_mixed(tmp_path):
    (job,) = throughput_cells(tmp_path)[0].jobs()
    job.directory.mkdir(parents=True)
    line = '{"iteration": 0, "images_per_s": 1.0, "baseline_images_per_s": 2.0, "device": "NVIDIA TITAN Xp"}\n'
    (job.directory / "lines.jsonl").write_text(line)
    (job.directory / "config.yaml").write_text(f"# run {job.id}\n")
    with pytest.raises(ConfigError, match="has times of NVIDIA TITAN Xp, this is"):
        job.carry_out()


@pytest.mark.slow
def test_several_processes_stop_after_an_iteration(tmp_path):
    job = replace(throughput_cells(tmp_path, "processes=2")[0].jobs()[0], warm_up=0, iterations=100_000, steps=1)

    def stop_when_begun() -> None:
        until(job.found)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_begun)
    thread.start()
    assert job.carry_out() is Status.interrupted
    thread.join()
    assert [line["iteration"] for line in job.found()] == list(range(len(job.found())))


# -- timeline -------------------------------------------------------------------------------------------------------

INSTANT = ["cluster=free", "cluster.num_parameters=1000"]
SLOW = [*INSTANT, "cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[0]", "cluster.stragglers.slowdown=3"]
DELAYED = [*INSTANT, "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1", "cluster.stragglers.slowdown=2"]
WAGMA = {"method": "WAGMA-SGD", "base": ["algo=wagma", "algo.tau=4"]}
ALLREDUCE = {"method": "All-reduce", "base": ["algo=allreduce"]}
DPSGD = {"method": "D-PSGD", "topology": "ring", "base": ["algo=dpsgd", "topology=ring"]}


def timeline_study(base: list[str], rows: list[dict], **settings) -> Study:
    values = {
        "kind": "timeline",
        "base": ["task=quadratics", "num_workers=8", *base],
        "rows": rows,
        "baseline": rows[0]["method"],
        "seeds": [1],
        "steps": 12,
    }
    return study_from("mine", {**values, **settings})


def timeline_run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert job.carry_out() is Status.done
    return [value for cell in cells for value in cell.values()]


def number(values: list[Value], method: str, metric: str, seed: int = 1, **labels: object) -> float:
    wanted = {"method": method, **labels}
    (one,) = [v for v in values if v.metric == metric and v.seed == seed and wanted.items() <= v.labels.items()]
    return one.value


def test_the_numbers_of_one_slow_worker_are_those_that_follow_by_hand(tmp_path: Path) -> None:
    values = timeline_run(
        timeline_study(SLOW, [ALLREDUCE, {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}]),
        tmp_path,
    )
    assert number(values, "All-reduce", STEP) == pytest.approx(3.0)
    assert number(values, "All-reduce", THROUGHPUT) == pytest.approx(1 / 3)
    assert number(values, "All-reduce", WAITING) == pytest.approx(100 * 7 * 2 / (8 * 3))
    assert number(values, "Alone", WAITING) == 0
    assert number(values, "All-reduce", SENT) == pytest.approx(2 * 7 / 8 * 4 * 1000 / 1e6)


def test_seeds_that_are_known_are_not_computed_again_and_more_can_be_added(tmp_path: Path) -> None:
    first = timeline_run(timeline_study(DELAYED, [WAGMA]), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("lines.jsonl")}
    assert timeline_run(timeline_study(DELAYED, [WAGMA]), tmp_path) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("lines.jsonl")} == files and len(files) == 1
    both = timeline_run(timeline_study(DELAYED, [WAGMA], seeds=[1, 2]), tmp_path)
    assert [value.value for value in both if value.seed == 1] == [value.value for value in first]


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        (["cluster=none"], {}, "cluster=none has no simulated time"),
        (["cluster=free"], {}, "cluster.num_parameters is not given"),
        (INSTANT, {"baseline": "WAGMA"}, "baseline=WAGMA is not the method of a row"),
        (INSTANT, {"published_at": {"workers": [8]}}, "published_at: workers is not a column"),
        ([*INSTANT, "network.drop_probability=0.1"], {"rows": [{**DPSGD, "method": "WAGMA-SGD"}]}, "cannot be used"),
    ],
)
def test_a_timeline_that_cannot_be_is_refused(base: list[str], settings: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        timeline_study(base, **{"rows": [WAGMA], **settings}).cells([f"results_dir={tmp_path}"])


# -- map ------------------------------------------------------------------------------------------------------------

MAP_SLOW = [
    "cluster=free",
    "cluster.num_parameters=1000",
    "cluster.stragglers.mode=fixed",
    "cluster.stragglers.workers=[0]",
    "cluster.stragglers.slowdown=2",
]
MAP_ALLREDUCE = {"method": "All-reduce", "base": ["algo=allreduce"]}
ALONE = {"method": "Alone", "base": ["algo=local_sgd", "algo.period_steps=99"]}


def map_study(base: list[str], **settings: Any) -> Study:
    values = {
        "kind": "timeline_map",
        "base": ["task=quadratics", "num_workers=4", *base],
        "rows": [MAP_ALLREDUCE, ALONE],
        "slowdowns": [2, 5],
        "gbps": [1.0e-6, 1],
        "steps": 6,
    }
    return study_from("mine", {**values, **settings})


def map_run(found: Study, folder: Path) -> list[Value]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in (job for cell in cells for job in cell.jobs()):
        assert job.carry_out() is Status.done
    return [one for cell in cells for one in cell.values()]


def test_the_time_of_a_step_at_each_place_follows_by_hand(tmp_path: Path) -> None:
    values = map_run(map_study(MAP_SLOW), tmp_path)
    found = {(v.labels["method"], v.labels["slowdown"], v.labels["gbps"]): v.value for v in values}
    assert len(values) == len(found) == 8 and {v.metric for v in values} == {STEP}
    for slowdown in (2, 5):
        for gbps in (1.0e-6, 1):  # a ring: 2 (n - 1) / n rows of 4,000 bytes
            assert found["All-reduce", slowdown, gbps] == pytest.approx(slowdown + 1.5 * 4000 * 8e-9 / gbps)
    assert found["Alone", 5, 1] > found["Alone", 2, 1]


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
        assert (launch(job.config).status if isinstance(job, TrainingRun) else job.carry_out()) is Status.done
    return [(cell, cell.values()) for cell in cells]


ON_LINKS = ["topk", *(pytest.param(name, marks=pytest.mark.slow) for name in ("powersgd", "artopk"))]


@pytest.mark.parametrize("compress", ON_LINKS)
def test_the_time_on_other_links_is_that_of_a_run_on_them(compress: str, tmp_path: Path) -> None:
    ((cell, values),) = links_run(links_study([LINK_ROW | {"base": [f"compress={compress}"]}]), tmp_path)
    steps, *times = values
    assert (
        math.isfinite(steps.value) and len(times) == 4 and (steps.labels[BANDWIDTH], steps.labels[LATENCY]) == ("", "")
    )
    place = {BANDWIDTH: 0.1, LATENCY: 5}
    links = ["cluster.links.bandwidth_gbps=0.1", "cluster.links.latency_s=0.005"]
    (config,) = compose_all(
        [[*LINK_BASE, f"compress={compress}", f"results_dir={tmp_path}", "progress=false", *links]], None
    )
    there = launch(replace(config, lr=0.3, seed=1)).directory
    expected = Measure(worker="mean", to_reach=12, axis="simulated_s").of(there)
    (found,) = [value for value in times if place.items() <= value.labels.items()]
    assert found.metric == expected.label and found.value == pytest.approx(
        expected.value, rel=1e-6
    )  # stored times are rounded
    assert not cell.meanings()[found.metric].larger_is_better


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
