"""kind=sleeping: real processes that sleep instead of computing, beside what the clock says of the same gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.measurements.gradient_times import cluster_of
from decentral.measurements.sleeping import BY_CLOCK, ERROR, STEP, THROUGHPUT, SleepingSteps
from decentral.scheduling.job import Demand
from decentral.store import RunStore, Status
from decentral.study.catalogue import study_from
from decentral.study.study import Study

FREE = ["task=quadratics", "cluster=free", "cluster.num_parameters=11", "cluster.compute.mean_s=0.002"]
DELAYED = [*FREE, "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1", "cluster.stragglers.delay_s=0.003"]
ROWS: list[dict[str, Any]] = [
    {"method": "WAGMA-SGD", "base": ["algo=wagma", "algo.tau=2"]},
    {"method": "All-reduce", "base": ["algo=allreduce"]},
    {"method": "AD-PSGD", "topology": "ring", "base": ["algo=adpsgd", "topology=ring"]},
]


def study(**more: Any) -> Study:
    values = {
        "kind": "sleeping",
        "base": DELAYED,
        "rows": ROWS,
        "columns": {"num_workers": [2]},
        "baseline": "WAGMA-SGD",
    }
    return study_from("mine", {**values, "seeds": [1], "steps": 4, "warm_up": 2, **more})


def cells_of(folder: Path, **more: Any) -> list[Any]:
    return study(**more).cells([f"results_dir={folder}"])


def test_rows_with_as_many_workers_share_a_job_and_have_the_machine_to_themselves(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, columns={"num_workers": [2, 4]})
    jobs = {job.id: job for cell in cells for job in cell.jobs()}
    assert len(cells) == 6 and [cell.labels["num_workers"] for cell in cells] == [2, 4, 2, 4, 2, 4]
    assert [job.demand for job in jobs.values()] == [Demand(2, "cpu", alone=True), Demand(4, "cpu", alone=True)]
    assert [[each.labels["method"] for each in job.column] for job in jobs.values()] == [
        [row["method"] for row in ROWS]
    ] * 2


def test_real_workers_sleep_and_the_clock_is_asked_about_the_same_gradients(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
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
    assert list(line["measured_s"]) == list(line["clock_s"]) == [row["method"] for row in ROWS]


def test_the_numbers_are_ratios_of_the_same_seed(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, seeds=[1, 2])
    (job,) = cells[0].jobs()
    line = {
        "measured_s": {"WAGMA-SGD": 0.2, "All-reduce": 0.5, "AD-PSGD": 0.1},
        "clock_s": {"WAGMA-SGD": 0.1, "All-reduce": 0.4, "AD-PSGD": 0.1},
    }
    with RunStore.open(job.directory, job.id, "") as store:
        lines = [{"seed": seed, **line} for seed in job.seeds]
        (job.directory / job.lines).write_text("".join(f"{json.dumps(one)}\n" for one in lines))
        store.set_status(Status.done, wall_s=12.0)
    found = {(value.metric, value.seed): value.value for value in cells[1].values()}
    numbers = {"speed-up of WAGMA-SGD": 2.5, "speed-up of WAGMA-SGD by the clock": 4, THROUGHPUT: 2, STEP: 0.5}
    numbers |= {BY_CLOCK: 0.4, ERROR: -20}
    assert found == {(name, seed): pytest.approx(value) for name, value in numbers.items() for seed in (1, 2)}
    assert cells[1].values()[0].metric == "speed-up of WAGMA-SGD"
    assert sum(value.wall_s for cell in cells for value in cell.values()) == pytest.approx(12)
    assert cells[1].meanings().keys() == numbers.keys()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"baseline": "WAGMA"}, "baseline=WAGMA is the method of no row. Did you mean 'WAGMA-SGD'?"),
        ({"rows": [ROWS[0], ROWS[0]]}, "rows: two have the same method"),
        ({"columns": {"num_workers": [1]}}, "needs several workers"),
        ({"steps": 0}, "steps=0 makes no sense"),
        ({"warm_up": 0}, "warm_up=0 makes no sense"),
        ({"base": ["task=quadratics"]}, "cluster=none has no simulated time"),
        ({"base": ["task=quadratics", "cluster=free"]}, "cluster.num_parameters is not given"),
        ({"base": [*FREE, "device=cuda"]}, "device=cuda cannot be used"),
    ],
)
def test_what_cannot_be_timed_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        cells_of(tmp_path, **changes)
