"""Runs in a virtual cluster: what is the same without one, what is the same after a resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from decentral.report.summary import summary
from decentral.training.faults import VARIABLE, Injected
from table import ALGORITHMS, ASYNCHRONOUS, FREE, SEVERAL_GRADIENTS, a_third

TRAINING = ("optim=momentum", "lr=0.05", "steps=20", "evaluation.every_epochs=5", "checkpoint_every_s=0")
EVERY = ("evaluation.every_epochs=null",)
"""Where simulated time is to say when models are evaluated."""
SMALL = ("task=quadratics", "task.dimension=5", "task.noise=0.1", *TRAINING)
MEASURED = ("cluster=free", *[f"cluster.compute.{one}" for one in ("distribution=measured", "mean_s=null", "passes=7")])
UNEVEN = (
    *("cluster=machines", "cluster.compute.distribution=shifted_pareto", "cluster.compute.floor_s=0.1"),
    *("cluster.compute.index=1.1", "cluster.compute.scale_s=0.1", "cluster.compute.cap_s=3"),
    *("cluster.links.latency_s=0.01", "cluster.links.bandwidth_gbps=1e-4", "cluster.links.copy_gbps=1e-3"),
)


def asynchronous(name: str, folder: Path) -> list[str]:
    case = ASYNCHRONOUS[name]
    return [f"algo={name}", *SMALL, *case.net.overrides(folder), *case.overrides]


def rows(run, *besides: str) -> list[dict[str, object]]:
    assert run.status == "done"
    return [{key: value for key, value in row.items() if key not in besides} for row in run.rows]


def at_the_end(run) -> dict[tuple[str, ...], float]:
    """What is evaluated of each worker's model, and of their mean, after the last step."""
    last = [row for row in rows(run) if row["step"] == 20 and row["split"] != "train"]
    assert len(last) > 5
    return {(row["worker"], row["metric"]): row["value"] for row in last}


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name",), a_third((name,) for name in list(ALGORITHMS)[::4] if name not in ASYNCHRONOUS))
def test_equal_speeds_and_a_free_network_change_nothing(start, tmp_path, name):
    case = ALGORITHMS[name]
    task = SMALL if case.task == "quadratics" else (f"task={case.task}", "task.dimension=5", *TRAINING)
    overrides = [f"algo={name}", *task, *case.nets[0].overrides(tmp_path), *case.overrides, "trace=true"]
    plain, timed = start(*overrides, directory="plain"), start(*overrides, *FREE, directory="timed")
    assert np.array_equal(timed.iterates, plain.iterates)
    assert rows(timed, "simulated_s") == rows(plain)
    if name not in SEVERAL_GRADIENTS:
        assert all(row["simulated_s"] == row["step"] for row in timed.rows)
    for fact in ("bytes_sent", "messages_sent"):
        assert timed.facts[fact] == plain.facts[fact]
    assert timed.facts["simulated_shares"]["wait"] == timed.facts["simulated_shares"]["exchange"] == [0, 0, 0]


def test_async_push_sum_with_equal_speeds_takes_its_steps(start, tmp_path):
    case = ALGORITHMS["async_push_sum"]
    overrides = ["algo=async_push_sum", *SMALL, *case.nets[0].overrides(tmp_path), *case.overrides]
    plain, timed = start(*overrides, directory="plain"), start(*overrides, *FREE, directory="timed")
    assert at_the_end(timed) == pytest.approx(at_the_end(plain), rel=1e-11)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_methods_are_as_the_table_says(start, tmp_path, name):
    run = start(*asynchronous(name, tmp_path), *UNEVEN)
    found = at_the_end(run)
    assert (found["mean", "consensus_distance"] < 1e-12) == ASYNCHRONOUS[name].agrees
    compute = run.facts["simulated_shares"]["compute"]
    assert compute[1] < compute[2] and run.facts["simulated_s"] >= compute[2] - 1e-6
    assert found["averaged", "distance_to_optimum"] < 60  # at first 100


# -- resume ------------------------------------------------------------------------------------------------------------


BY_TIME = [*EVERY, "evaluation.every_simulated_s=3.3", "stop_after_simulated_s=9"]


@pytest.mark.parametrize(
    ("name", "further"),
    [
        *((name, []) for name in (*ASYNCHRONOUS, "dpsgd")),
        *(pytest.param(name, BY_TIME, marks=pytest.mark.slow) for name in ASYNCHRONOUS),
        ("dpsgd", BY_TIME),
    ],
)
def test_a_virtual_run_resumes_bit_for_bit(start, tmp_path, monkeypatch, name, further):
    if name in ASYNCHRONOUS:
        overrides = [*asynchronous(name, tmp_path), *UNEVEN, "checkpoint_every_s=0.000001", *further]
    else:
        overrides = ["algo=dpsgd", *SMALL, "topology=ring", "num_workers=6", *UNEVEN, *further]
    straight = start(*overrides, directory="straight")
    steps = (1, 5)
    assert steps[-1] < straight.facts["step"]
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in steps]))
    for _ in steps:
        with pytest.raises(Injected):
            start(*overrides, directory="broken")
    broken = start(*overrides, directory="broken")
    assert rows(broken) == rows(straight)
    for fact in ("bytes_sent", "messages_sent", "step", "simulated_s", "simulated_shares"):
        assert broken.facts[fact] == straight.facts[fact]


# -- simulated time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wagma", "adpsgd", "dpsgd"])
def test_evaluations_at_simulated_times_and_an_end_by_time(start, name):
    overrides = [f"algo={name}", *SMALL, "topology=ring", "num_workers=8", *FREE, "cluster.compute.mean_s=0.5"]
    run = start(*overrides, *EVERY, "evaluation.every_simulated_s=2", "stop_after_simulated_s=7")
    assert run.status == "done"
    assert run.facts["notes"] == ["stop_after_simulated_s=7 ended the run after 14 of 20 steps"]
    assert "Note:     stop_after_simulated_s=7 ended" in summary(run.directory)
    assert sorted({row["simulated_s"] for row in run.rows}) == [0, 2, 4, 6, 7]
    assert run.facts["step"] == 14 and run.facts["simulated_s"] == 7


@pytest.mark.parametrize(("name", "topology"), [("relaysgd", "dbt"), ("allreduce", "ring")])
def test_methods_in_rounds_have_the_same_simulated_time_between_processes(start, name, topology):
    overrides = (f"algo={name}", *SMALL, f"topology={topology}", "num_workers=4", *UNEVEN, *EVERY)
    overrides += ("evaluation.every_simulated_s=1", "stop_after_simulated_s=9", "cluster.num_parameters=7")
    alone = start(*overrides, directory="alone")
    assert alone.facts["step"] < 20
    assert start(*overrides, "processes=2", processes=2, directory="two", crash_at=2).status == "crashed"
    both = start(*overrides, "processes=2", processes=2, directory="two")
    places = [{(row["step"], row["simulated_s"]) for row in rows(run)} for run in (alone, both)]
    assert places[0] == places[1] and len(places[0]) > 3
    for fact in ("simulated_s", "simulated_shares", "step", "notes"):
        assert both.facts[fact] == alone.facts[fact]


def test_losses_count_when_gradients_are_over_not_when_they_are_computed(start):
    """Of 2 workers one takes 4 s for a gradient: computed with the first one of the other, it counts after 4 s."""
    slow = ("cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[1]", "cluster.stragglers.slowdown=4")
    task = ("task=images", "data=digits", "model=mlp", "batch_size=4", "optim=sgd", "lr=0.05", "steps=8", "alpha=100")
    overrides = (
        "algo=adpsgd",
        *task,
        "topology=chain",
        "num_workers=2",
        *FREE,
        *slow,
        "evaluation.every_simulated_s=1",
    )
    found = {}
    start(*overrides, "execution=batched", "checkpoint_every_s=0", directory="batched", interrupt_at=0)
    for execution in ("batched", "loop"):
        run = start(*overrides, f"execution={execution}", directory=execution)
        train = [row for row in rows(run) if (row["split"], row["metric"]) == ("train", "loss")]
        found[execution] = {row["simulated_s"]: row["value"] for row in train}
    assert found["batched"] == pytest.approx(found["loop"], rel=1e-4)
    assert len(found["loop"]) > 4


# -- times that are measured -------------------------------------------------------------------------------------------


def test_measured_times_are_kept_for_a_run_that_goes_on(start, monkeypatch) -> None:
    overrides = ("algo=allreduce", "num_workers=3", *SMALL, *MEASURED)
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": 8, "kind": "raise"}]))
    with pytest.raises(Injected):
        start(*overrides, directory="broken")
    broken = start(*overrides, directory="broken")
    seconds = np.loadtxt(broken.directory / "gradient_times.csv", skiprows=1)
    assert seconds.shape == (7,) and seconds.min() > 0
    config = configure(*overrides)
    times = config.cluster.gradient_times(3, config.seed).measured(seconds).seconds(0, 20)
    assert set(times.ravel()) <= set(seconds)
    assert broken.facts["simulated_s"] == pytest.approx(times.max(1).sum(), rel=1e-9)
