"""The studies on CIFAR-10 at scale=laptop and scale=paper: each composes, and its first run takes two steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decentral.data import cifar10_copies
from decentral.data.cifar10 import Cifar10
from decentral.data.description import ImageData
from decentral.measurements.training_run import TrainingRun
from decentral.runtime.launch import launch
from decentral.store import Status, read_metrics
from decentral.study import catalogue
from decentral.study.kinds.comparison import Comparison

COUNTS = {"train": 1280, "test": 20}


STUDIES = [name for name in catalogue.names() if "laptop" in catalogue.scales(name)]
IMAGES = [name for name in STUDIES if "data=cifar10" in catalogue.load(name, "laptop").base]
RUNS = [(name, "laptop") for name in IMAGES]
RUNS += [(name, "paper") for name in IMAGES if not name.startswith(("bluefog_", "wagma_", "flex_"))]
"""(Of two papers scale=paper is on ImageNet; the studies of flex that train have none.)"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    draws, file = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "few.npz"
    arrays = {f"x_{split}": draws.integers(256, size=(n, 32, 32, 3), dtype=np.uint8) for split, n in COUNTS.items()}
    np.savez(file, **arrays, **{f"y_{split}": np.arange(n) % 10 for split, n in COUNTS.items()})
    return file


def test_every_paper_has_some():
    assert {name.partition("_")[0] for name in STUDIES} == {
        *("relaysum", "thesis", "bluefog", "wagma", "flex", "natural", "benchmark")
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), [pytest.param(*one, id=" ".join(one)) for one in RUNS])
def test_a_run_starts_and_takes_two_steps(name, scale, path, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10_copies, "COUNTS", COUNTS)
    info = ImageData(num_train=COUNTS["train"], num_test=COUNTS["test"], num_classes=10, shape=(3, 32, 32))
    monkeypatch.setattr(Cifar10, "INFO", info)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    few = [f"data.path={path}", f"results_dir={tmp_path}", "batch_size=2", "steps=2", "processes=1", "progress=false"]
    study = catalogue.load(name, scale)
    assert isinstance(study, Comparison)
    if scale == "paper" and "num_workers" not in study.columns:  # VGG-11
        few.append("num_workers=4")
    job = next(job for cell in study.cells(few) for job in cell.jobs())
    assert isinstance(job, TrainingRun)
    outcome = launch(job.config)
    assert outcome.status is Status.done
    last = [row for row in read_metrics(outcome.directory) if row["step"] == 2]
    assert {row["metric"] for row in last} >= {"accuracy", "loss"}
