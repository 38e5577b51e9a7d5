"""Throughput: a method and a baseline take steps in turn, and the study reports speeds and their ratio."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decentral.data.synthetic import Synthetic
from decentral.errors import ConfigError
from decentral.measurements.throughput import IMAGES, RATIO, cudnn_by_times
from decentral.published import key as published_key
from decentral.report.published import numbers
from decentral.report.spec import parse
from decentral.scheduling.job import Demand
from decentral.scheduling.slots import Slots
from decentral.store import Status
from decentral.store.files import read_json
from decentral.study import catalogue
from waiting import until

STUDIES = [name for name in catalogue.names() if catalogue.load(name, "smoke").name == "throughput"]
SMALL = ["model=mlp", "num_workers=2", "batch_size=2", "data.image_size=8", "data.num_classes=4", "device=cpu"]


def cells_of(tmp_path, *overrides: str):
    return catalogue.load("thesis_table5_1", "smoke").cells([*SMALL, f"results_dir={tmp_path}", *overrides])


def check_values(cell):
    speeds = [value for value in cell.values() if value.metric == IMAGES]
    ratios = [value for value in cell.values() if value.metric == RATIO]
    assert [value.seed for value in speeds] == [value.seed for value in ratios] == [0, 1]
    assert all(value.value > 0 for value in (*speeds, *ratios))
    assert {value.published for value in speeds} == {"model_averaging|full|ResNet-50, 8 GPUs"}
    assert {value.published for value in ratios} == {""}


def test_a_job_that_was_killed_goes_on_after_the_iterations_that_it_has(tmp_path):
    (job,) = cells_of(tmp_path)[0].jobs()
    job.directory.mkdir(parents=True)
    line = '{"iteration": 0, "images_per_s": 1.0, "baseline_images_per_s": 2.0}\n'
    (job.directory / "iterations.jsonl").write_text(line + '{"iteration": 1, "im')
    (job.directory / "config.yaml").write_text(f"# run {job.id}\n")
    job.carry_out()
    assert [found["iteration"] for found in job.found()] == [0, 1]
    assert job.found()[0]["images_per_s"] == 1.0


def test_two_processes_are_timed_together(tmp_path):
    cell = cells_of(tmp_path, "processes=2")[0]
    (job,) = cell.jobs()
    assert job.demand == Demand(2, "cpu", alone=True)
    assert job.carry_out() is Status.done
    check_values(cell)
    assert {line["processes"] for line in job.found()} == {2}
    assert read_json(job.directory / "provenance.json")["processes"] == 2


def test_the_device_of_the_machine_that_asks_is_no_part_of_the_question(tmp_path, monkeypatch):
    def job(device: str):
        return cells_of(tmp_path, f"device={device}")[0].jobs()[0]

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
    (job,) = cells_of(tmp_path)[0].jobs()
    job.directory.mkdir(parents=True)
    line = '{"iteration": 0, "images_per_s": 1.0, "baseline_images_per_s": 2.0, "device": "NVIDIA TITAN Xp"}\n'
    (job.directory / "iterations.jsonl").write_text(line)
    (job.directory / "config.yaml").write_text(f"# run {job.id}\n")
    with pytest.raises(ConfigError, match="has times of NVIDIA TITAN Xp, this is"):
        job.carry_out()


def test_several_processes_stop_after_an_iteration(tmp_path):
    job = replace(cells_of(tmp_path, "processes=2")[0].jobs()[0], warm_up=0, iterations=100_000, steps=1)

    def stop_when_begun() -> None:
        until(job.found)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_begun)
    thread.start()
    assert job.carry_out() is Status.interrupted
    thread.join()
    assert [line["iteration"] for line in job.found()] == list(range(len(job.found())))


def test_on_a_gpu_cudnn_chooses_by_time():
    before = torch.backends.cudnn.benchmark
    with cudnn_by_times(torch.device("cpu")):
        assert torch.backends.cudnn.benchmark == before
    with cudnn_by_times(torch.device("cuda")):
        assert torch.backends.cudnn.benchmark is True
    assert torch.backends.cudnn.benchmark == before


def test_a_job_that_takes_times_has_the_machine_to_itself():
    slots = Slots(4)
    timed, other = Demand(1, alone=True), Demand(1)
    seat = slots.seat(other, 1)
    residents = slots.take(seat)
    assert slots.seat(timed, 1) is None
    slots.free(seat, residents)
    alone = slots.seat(timed, 1)
    residents = slots.take(alone)
    assert slots.seat(other, 1) is None
    slots.free(alone, residents)
    assert slots.seat(other, 1) is not None


def test_columns_are_settings_of_methods_and_baseline_alike(tmp_path):
    values = {"kind": "throughput", "base": ["task=images", "data=synthetic", *SMALL[1:], "processes=${num_workers}"]}
    values |= {
        "baseline": ["algo=allreduce"],
        "columns": {"model": ["mlp", "cnn"], "n": [2, 3]},
        "keys": {"n": "num_workers"},
    }
    ring = {"method": "AWC", "topology": "ring", "base": ["algo=dpsgd"], "published": "awc|ring", "only": {"n": [3]}}
    rows = [{"method": "All-reduce", "base": ["algo=allreduce"]}, ring]
    study = catalogue.study_from(
        "mine", {**values, "rows": rows, "setting": "{model}, {n} workers", "compares": "ratio"}
    )
    cells = study.cells([f"results_dir={tmp_path}"])
    assert len(cells) == 4 + 2 and study.decided_keys() >= {"model", "num_workers"}
    last = cells[-1]
    assert last.labels == {"method": "AWC", "topology": "ring", "model": "cnn", "n": 3}
    assert (last.line, last.setting, last.job.compared) == ("awc|ring", "{model}, {n} workers", RATIO)
    for config in (last.job.config, last.job.held_against):
        assert (config.model.name, config.num_workers, config.processes) == ("cnn", 3, "3")
    assert len({cell.job.id for cell in cells}) == 6


def test_the_published_numbers_are_speeds_or_ratios(tmp_path):
    (cell, *_), published = cells_of(tmp_path), "a|b|c"
    cell.job.carry_out()
    for compared in (IMAGES, RATIO):
        job = replace(cell.job, compares="speed" if compared == IMAGES else "ratio")
        found = replace(cell, job=job, line=published).values()
        assert [value.metric for value in found] == sorted(
            (value.metric for value in found), key=lambda m: m != compared
        )
        assert {value.metric for value in found if value.published} == {compared}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_composes_at_every_scale_and_has_a_cell_for_every_published_number(name: str, tmp_path: Path):
    for scale in catalogue.scales(name):
        study = catalogue.load(name, scale)
        cells = study.cells([f"results_dir={tmp_path}", "device=cpu"])
        assert len({job.id for cell in cells for job in cell.jobs()}) == len(cells)
        spec = parse(study.report, name)
        if scale == "paper" and spec.published is not None:
            keys = sorted(published_key(cell.line, cell.setting, **cell.labels) for cell in cells if cell.line)
            assert keys == sorted(number.key for number in numbers(study.paper, spec.published.item))


def test_synthetic_batches_are_fixed_for_each_worker_and_differ_between_workers():
    info = replace(Synthetic(), image_size=4, num_classes=7, num_train=40, num_test=5)
    data = info.load("cpu", seed=3)

    def order(step: int) -> torch.Tensor:
        return torch.zeros(2, 6, dtype=torch.long)

    (images, labels), (again, _) = data.train_batches(order, range(1, 3), 0, 2)
    assert images.shape == (2, 6, 3, 4, 4) and torch.equal(images, again)
    assert not torch.equal(images[0], images[1])
    assert labels.max() < 7 and len(data.train_labels) == 40
    other, _ = next(data.train_batches(order, range(2, 4), 5, 6))
    assert torch.equal(other[0], images[1])
    assert sum(len(found) for found, _ in data.test_batches(2)) == 5
