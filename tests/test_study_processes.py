"""What is timed between processes: exchanges, and steps of workers that sleep."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.measurements.exchanges import CPU_MS, WALL_MS, ExchangeTimes
from decentral.measurements.gradient_times import cluster_of
from decentral.measurements.sleeping import BY_CLOCK, ERROR, STEP, THROUGHPUT, SleepingSteps
from decentral.report.figures.scaling import Scaling
from decentral.report.results import read
from decentral.scheduling.job import Demand
from decentral.store import RunStore, Status
from decentral.store.lines import LineFile
from decentral.study import catalogue
from decentral.study.catalogue import study_from
from decentral.study.study import Study
from handmade import write

# -- exchanges ------------------------------------------------------------------------------------------------------

ROWS: list[dict[str, Any]] = [
    {"method": "All-reduce", "topology": "complete", "base": ["topology=complete"], "verb": "mean"},
    {"method": "Ring", "topology": "ring", "base": ["topology=ring"]},
    {"method": "One-peer", "topology": "one_peer_exponential", "base": ["topology=one_peer_exponential"]},
]


def study(**more: Any) -> Study:
    values = {
        **{"kind": "exchanges", "base": ["task=quadratics", "algo=dpsgd", "network.transport=torch"], "rows": ROWS},
        **{
            "baseline": "All-reduce",
            "columns": {"num_workers": [2]},
            "megabytes": [0.004, 0.001],
            "rounds": 2,
            "warm_up": 1,
        },
    }
    return catalogue.study_from("mine", values | more)


def cells_of(folder: Path, **more: Any):
    return study(**more).cells([f"results_dir={folder}"])


def finished(job: ExchangeTimes, wall: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    """Leave such times in the job's directory, for all sizes."""
    with RunStore.open(job.directory, job.id, "") as store:
        lines = [{"megabytes": size, "wall_s": wall, "cpu_s": cpu} for size in job.megabytes]
        (job.directory / job.lines).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        store.set_status(Status.done, wall_s=12.0)


def test_rows_with_as_many_workers_share_a_job_and_have_the_machine_to_themselves(tmp_path: Path) -> None:
    cells = cells_of(
        tmp_path, columns={"num_workers": [2, 3]}, rows=[*ROWS[:2], {**ROWS[2], "only": {"num_workers": [3]}}]
    )
    assert len(cells) == 2 * (2 + 2 + 1)
    jobs = {job.id: job for cell in cells for job in cell.jobs()}
    assert [job.demand for job in jobs.values()] == [Demand(2, "cpu", alone=True), Demand(3, "cpu", alone=True)]
    assert [[each.labels["method"] for each in job.column] for job in jobs.values()] == [
        ["All-reduce", "Ring"],
        ["All-reduce", "Ring", "One-peer"],
    ]


def test_every_exchange_is_timed_in_every_round_and_a_second_attempt_goes_on(tmp_path: Path) -> None:
    cell = cells_of(tmp_path)[0]
    (job,) = cell.jobs()
    assert isinstance(job, ExchangeTimes) and cell.values() == []
    job.directory.mkdir(parents=True)
    known = {
        "megabytes": 0.004,
        **{clock: {row["method"]: [1.0, 1.0] for row in ROWS} for clock in ("wall_s", "cpu_s")},
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


def test_a_ratio_is_that_of_the_same_round_and_cpu_time_is_shared_out(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, megabytes=[1])
    (job,) = cells[0].jobs()
    wall = {"All-reduce": [0.2, 0.4], "Ring": [0.1, 0.6], "One-peer": [0.2, 0.2]}
    cpu = {"All-reduce": [0.4, 0.4], "Ring": [0.2, 0.8], "One-peer": [0.1, 0.3]}
    finished(job, wall, cpu)
    assert job.finished() is Status.done
    found: dict[str, list[float]] = {}
    for value in cells[1].values():
        assert value.labels == {"method": "Ring", "topology": "ring", "megabytes": 1, "num_workers": 2}
        assert value.seed == len(found.setdefault(value.metric, []))
        found[value.metric].append(value.value)
    assert {metric: pytest.approx(values) for metric, values in found.items()} == {
        **{WALL_MS: [100, 600], "wall time / All-reduce's": [0.5, 1.5]},
        **{CPU_MS: [100, 400], "CPU time / All-reduce's": [0.5, 2.0]},
    }
    assert next(iter(found)) == WALL_MS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"baseline": "Al-reduce"}, "baseline=Al-reduce is the method of no row. Did you mean 'All-reduce'?"),
        ({"rows": [ROWS[0], ROWS[0]]}, "rows: two have the same method"),
        ({"columns": {"num_workers": [1]}}, "needs several workers"),
        ({"megabytes": [0]}, "above 0"),
        ({"rounds": 0}, "rounds=0 makes no sense: it has to be at least 1"),
        ({"rows": [{**ROWS[0], "verb": "median"}]}, "verb='median' does not fit"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        study(**changes).cells([])


def test_a_confidence_band_is_that_of_student(tmp_path: Path) -> None:
    rows = [
        {"method": "Ring", "n": n, "metric": "ms", "value": value, "seed": seed, "chosen": True}
        for n, values in ((2, (1, 2, 3, 4, 5)), (4, (2, 2, 2, 2, 2)))
        for seed, value in enumerate(values)
    ]
    report = {"repeats": "round"}
    results = read(write(tmp_path / "a" / "b" / "small", rows, report, labels=["method", "n"]))
    (line,) = Scaling(x="n", lines=["method"], spread="confidence").data(results)
    half = 2.1318 * 1.5811 / 5**0.5  # the 95 % quantile for 4 degrees of freedom
    assert line.low is not None and line.high is not None and line.y == [3, 2]
    assert line.low == pytest.approx([3 - half, 2], rel=1e-4) and line.high == pytest.approx([3 + half, 2], rel=1e-4)
    assert results.spec.repeats == "round"


# -- sleeping -------------------------------------------------------------------------------------------------------

FREE = ["task=quadratics", "cluster=free", "cluster.num_parameters=11", "cluster.compute.mean_s=0.002"]
DELAYED = [*FREE, "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1", "cluster.stragglers.delay_s=0.003"]
SLEEPING_ROWS: list[dict[str, Any]] = [
    {"method": "WAGMA-SGD", "base": ["algo=wagma", "algo.tau=2"]},
    {"method": "All-reduce", "base": ["algo=allreduce"]},
    {"method": "AD-PSGD", "topology": "ring", "base": ["algo=adpsgd", "topology=ring"]},
]


def sleeping_study(**more: Any) -> Study:
    values = {
        "kind": "sleeping",
        "base": DELAYED,
        "rows": SLEEPING_ROWS,
        "columns": {"num_workers": [2]},
        "baseline": "WAGMA-SGD",
    }
    return study_from("mine", {**values, "seeds": [1], "steps": 4, "warm_up": 2, **more})


def sleeping_cells_of(folder: Path, **more: Any) -> list[Any]:
    return sleeping_study(**more).cells([f"results_dir={folder}"])


def test_sleeping_rows_share_a_job_and_have_the_machine_to_themselves(tmp_path: Path) -> None:
    cells = sleeping_cells_of(tmp_path, columns={"num_workers": [2, 4]})
    jobs = {job.id: job for cell in cells for job in cell.jobs()}
    assert len(cells) == 6 and [cell.labels["num_workers"] for cell in cells] == [2, 4, 2, 4, 2, 4]
    assert [job.demand for job in jobs.values()] == [Demand(2, "cpu", alone=True), Demand(4, "cpu", alone=True)]
    assert [[each.labels["method"] for each in job.column] for job in jobs.values()] == [
        [row["method"] for row in SLEEPING_ROWS]
    ] * 2


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


def test_the_numbers_are_ratios_of_the_same_seed(tmp_path: Path) -> None:
    cells = sleeping_cells_of(tmp_path, seeds=[1, 2])
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
        ({"rows": [SLEEPING_ROWS[0], SLEEPING_ROWS[0]]}, "rows: two have the same method"),
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
        sleeping_cells_of(tmp_path, **changes)
