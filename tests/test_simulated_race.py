"""kind=simulated_straggler: average consensus with a slow worker, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.measurements.straggler import END, MASS_ERROR, P_ERROR, TURNS
from decentral.store import Status
from decentral.study.catalogue import study_from
from decentral.study.study import Cell


def cells(folder: Path, *overrides: str, cluster: str = "free", **settings: Any) -> list[Cell]:
    values = {
        "kind": "simulated_straggler",
        "base": ["task=mean_estimation", "algo=dpsgd", "num_workers=4", f"cluster={cluster}"],
        "rows": [{"topology": "chain", "base": ["topology=chain"]}],
        "slowdowns": [1, 8],
        "seeds": [1],
        "pause_s": 0.5,
        "duration_s": 40,
        "dimension": 7,
    }
    return study_from("mine", {**values, **settings}).cells([f"results_dir={folder}", "progress=false", *overrides])


def test_turns_follow_by_hand_and_sums_are_kept(tmp_path: Path) -> None:
    found = cells(tmp_path)
    (job,) = {job.id: job for cell in found for job in cell.jobs()}.values()
    assert job.carry_out() is Status.done
    values = {
        (v.labels["method"], v.labels["slowdown"], v.labels["who"], v.metric): v.value
        for c in found
        for v in c.values()
    }
    push, rounds = "asynchronous push-sum", "synchronous averaging"
    for slowdown, turns in ((1, 80), (8, 10)):
        assert values[rounds, slowdown, "fast workers", TURNS] == turns
        assert values[push, slowdown, "straggler", TURNS] == turns
        assert values[push, slowdown, "fast workers", TURNS] == 80
        assert values[push, slowdown, "", P_ERROR] < 1e-13
        assert values[push, slowdown, "", MASS_ERROR] < 1e-13 and values[rounds, slowdown, "", MASS_ERROR] < 1e-13
    assert values[push, 8, "fast workers", END] < values[rounds, 8, "fast workers", END]
    assert {tuple(point.at) for cell in found for curve in cell.curves() for point in curve.points} == {
        ("simulated_s",)
    }


def test_it_needs_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster=none has no simulated time"):
        cells(tmp_path, cluster="none")
