"""What is known of a job on another machine: its run directory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from configure import configure
from counting_jobs import Counting
from decentral.config.files import dump
from decentral.measurements.training_run import TrainingRun
from decentral.scheduling.attempt import carry_out
from decentral.scheduling.job import Demand
from decentral.scheduling.pool import ended_without_report, newest_row, seen_in_directory
from decentral.store import COLUMNS, RunStore, Status
from table import ALGORITHMS


def rows(*steps: int) -> list[dict]:
    common = {"split": "test", "metric": "accuracy", "wall_s": 0.0, "bytes_sent": 0}
    workers = {0: 0.5, "worst": 0.25, "mean": 0.4}
    return [
        {"step": step, "epoch": step / 10, "worker": worker, "value": value + step / 1000, **common}
        for step in steps
        for worker, value in workers.items()
    ]


@pytest.mark.parametrize(("limit", "fraction"), [("steps=400", 0.25), ("epochs=20", 0.5)])
def test_progress_is_read_from_the_newest_evaluation(tmp_path, limit, fraction):
    config = replace(configure("task=quadratics", limit), run_dir=str(tmp_path / "run"))
    job = TrainingRun(config)
    assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", 0.0, "")
    with RunStore.open(job.directory, job.id, "") as store:
        store.append(rows(0, 100))
    assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", fraction, "epoch 10.0  worst accuracy 0.35")
    with RunStore.open(job.directory, job.id, "") as store:
        store.set_status(Status.running, step=200, epoch=20.0)
    assert seen_in_directory(job, "slurm 1").fraction == 2 * fraction, "a checkpoint is news, too"


def test_what_was_measured_before_the_first_step_does_not_pass_for_that_of_later_ones(tmp_path):
    job = TrainingRun(replace(configure("task=quadratics", "steps=400"), run_dir=str(tmp_path / "run")))
    with RunStore.open(job.directory, job.id, "") as store:
        store.append(rows(0))
        store.set_status(Status.running, step=200, epoch=20.0)
    assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", 0.5, "epoch 20.0")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_directory_that_another_process_writes_is_left_to_it(tmp_path, processes):
    config = configure("task=quadratics", "num_workers=4", "steps=2", "progress=false")
    config = replace(config, device="cpu", processes=processes, run_dir=str(tmp_path / "run"))
    job = TrainingRun(config)
    with RunStore.open(job.directory, job.id, dump(config)):
        report = carry_out(job)
    assert report.status is Status.running and "is being written by process" in report.reason
    assert carry_out(job).status is Status.done


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:7", "auto"])
def test_what_a_run_needs_does_not_depend_on_the_machine_that_asks(device):
    config = replace(configure("task=quadratics"), device=device, processes="3")
    assert TrainingRun(config).demand == Demand(3, device)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_keeps_its_id_where_the_launcher_chooses_its_processes(name, tmp_path):
    case = ALGORITHMS[name]
    overrides = [*case.nets[0].overrides(tmp_path), f"algo={name}", f"task={case.task}", *case.overrides]
    job = TrainingRun(configure(*overrides))
    placed = [job.placed(processes) for processes in (1, 2, 64)]
    assert [one.id for one in placed] == [job.id] * 3 and {one.directory for one in placed} == {job.directory}


def test_a_job_may_say_itself_how_far_it_is(tmp_path):
    job = Counting(str(tmp_path))
    with RunStore.open(job.directory, job.id, "") as store:
        store.set_status(Status.running, fraction=0.25, text="21 trials")
    assert seen_in_directory(job, "slurm 1")[1:] == ("slurm 1", 0.25, "21 trials")


def test_only_the_end_of_a_long_file_is_read_and_a_line_that_is_cut_short_does_no_harm(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({key: row[key] for key in COLUMNS if key in row}) for row in rows(*range(2000))]
    path.write_text("\n".join(lines) + '\n{"step": 2000, "ep')
    assert (newest_row(path)["step"], newest_row(path)["worker"]) == (1999, "worst")
    path.write_text("nonsense\n")
    assert newest_row(path) == {}
    assert newest_row(tmp_path / "missing") == {}


def test_a_process_that_is_gone_was_killed_unless_the_directory_or_the_user_says_otherwise(tmp_path):
    job = Counting(str(tmp_path))
    assert ended_without_report(job, "why")[1:] == ("failed", "killed", "why")
    assert ended_without_report(job, "why", stopped=True)[1:] == ("interrupted", None, "")
    with RunStore.open(job.directory, job.id, "") as store:
        store.set_status(Status.done)
    assert ended_without_report(job, "why")[1:] == ("done", None, "")
