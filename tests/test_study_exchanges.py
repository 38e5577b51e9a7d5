"""Times of exchanges: all methods take turns in the same processes, and the study reports times and their ratios."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.measurements.exchanges import CPU_MS, WALL_MS, ExchangeTimes
from decentral.report.figures.scaling import Scaling
from decentral.report.results import read
from decentral.scheduling.job import Demand
from decentral.store import RunStore, Status
from decentral.store.lines import LineFile
from decentral.study import catalogue
from decentral.study.study import Study
from handmade import write

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
        ({"rounds": 0}, "rounds=0 has to be at least 1"),
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
