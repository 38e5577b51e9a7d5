"""kind=over_links: a run that is trained once has on other links the time that it would take there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decentral.config.composition import compose_all
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Value
from decentral.runtime.launch import launch
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.kinds.over_links import BANDWIDTH, LATENCY, LinkCell
from decentral.study.measure import Measure

BASE = [
    *("task=images", "data=digits", "model=mlp", "model.hidden=[8]", "num_workers=4", "batch_size=8", "steps=8"),
    *("optim=sgd", "algo=allreduce", "partition=iid", "evaluation.every_epochs=0.02", "processes=1"),
    *("cluster=even", "cluster.num_parameters=1000000"),
]
MEASURE = {"worker": "mean", "to_reach": 12, "axis": "step"}
ROW = {"method": "mine", "base": ["compress=topk"], "lr": 0.3}


def study(rows: list[dict[str, Any]], **settings: Any) -> Any:
    values = {"kind": "over_links", "base": BASE, "rows": rows, "seeds": [1], "measure": MEASURE}
    return study_from("mine", values | {"gbps": [0.1, 10], "latency_ms": [0.05, 5]} | settings)


def run(found: Any, folder: Path) -> list[tuple[LinkCell, list[Value]]]:
    cells = found.cells([f"results_dir={folder}", "progress=false"])
    for job in {job.id: job for cell in cells for job in cell.jobs()}.values():
        assert (launch(job.config).status if isinstance(job, TrainingRun) else job.carry_out()) is Status.done
    return [(cell, cell.values()) for cell in cells]


@pytest.mark.parametrize("compress", ["topk", "bf16", "powersgd", "threshold", "artopk"])
def test_the_time_on_other_links_is_that_of_a_run_on_them(compress: str, tmp_path: Path) -> None:
    ((cell, values),) = run(study([ROW | {"base": [f"compress={compress}"]}]), tmp_path)
    steps, *times = values
    assert (
        math.isfinite(steps.value) and len(times) == 4 and (steps.labels[BANDWIDTH], steps.labels[LATENCY]) == ("", "")
    )
    place = {BANDWIDTH: 0.1, LATENCY: 5}
    links = ["cluster.links.bandwidth_gbps=0.1", "cluster.links.latency_s=0.005"]
    (config,) = compose_all(
        [[*BASE, f"compress={compress}", f"results_dir={tmp_path}", "progress=false", *links]], None
    )
    there = launch(replace(config, lr=0.3, seed=1)).directory
    expected = Measure(worker="mean", to_reach=12, axis="simulated_s").of(there)
    (found,) = [value for value in times if place.items() <= value.labels.items()]
    assert found.metric == expected.label and found.value == pytest.approx(
        expected.value, rel=1e-6
    )  # stored times are rounded
    assert not cell.meanings()[found.metric].larger_is_better


def test_what_overlaps_hides_at_most_its_share_of_the_gradient(tmp_path: Path) -> None:
    rows = [ROW | {"base": ["compress=bf16"], "method": f"{o}", "overlap": o} for o in (0, 0.5, 1)]
    found = run(study(rows), tmp_path)
    steps = found[0][1][0].value
    whole, half, hidden = ([value.value / steps for value in values[1:]] for _, values in found)
    for alone, some, most in zip(whole, half, hidden, strict=True):
        exchange = alone - 0.16
        assert some == pytest.approx(0.16 + max(0.0, exchange - 0.08))
        assert most == pytest.approx(0.16 + max(0.0, exchange - 0.16))


def test_a_target_that_is_never_got_to_is_never_got_to_anywhere(tmp_path: Path) -> None:
    ((_, values),) = run(study([ROW], measure=MEASURE | {"to_reach": 101}), tmp_path)
    assert len(values) == 5 and all(math.isnan(value.value) and value.status == "not reached" for value in values)


@pytest.mark.parametrize(
    ("base", "settings", "said"),
    [
        ([], {"gbps": []}, "gbps=.. and latency_ms=.* make no map"),
        ([], {"latency_ms": [0]}, "latency_ms=0 makes no sense"),
        ([], {"measure": MEASURE | {"axis": "epoch"}}, "steps to a target"),
        ([], {"columns": {"alpha": [1]}}, "columns=.'alpha'. cannot be used"),
        (["algo=dpsgd", "topology=ring", "compress=none"], {}, "algo has to be allreduce"),
        (["cluster=paper_c1"], {}, "all links have to be alike"),
        (["cluster.links.collective=auto"], {}, "must not depend on the links"),
        (["compress=flexible"], {}, "must not depend on the links"),
        (["cluster=two_delayed"], {}, "gradients that all take the same time"),
    ],
)
def test_what_does_not_follow_from_one_run_is_refused(
    base: list[str], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        study([ROW | {"base": ["compress=topk", *base]}], **settings).cells([f"results_dir={tmp_path}"])


def test_an_overlap_is_a_share() -> None:
    with pytest.raises(ConfigError, match="overlap=2 makes no sense"):
        study([ROW | {"overlap": 2}])
