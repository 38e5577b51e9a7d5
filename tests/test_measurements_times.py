"""Throughput: a method and a baseline take steps in turn, and the study reports speeds and their ratio."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.measurements.throughput import IMAGES, RATIO
from decentral.measurements.timeline import SENT, STEP, THROUGHPUT, WAITING
from decentral.measurements.values import Value
from decentral.scheduling.job import Demand
from decentral.store import Status
from decentral.store.files import read_json
from decentral.study import catalogue
from decentral.study.catalogue import study_from
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
