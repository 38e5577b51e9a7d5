"""Every study composes at every scale; at scale=smoke it plans, runs, reports, and has nothing left to do."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decentral.cli import study as command
from decentral.data import cifar10
from decentral.data.cifar10 import Cifar10
from decentral.data.description import ImageData
from decentral.measurements.training_run import TrainingRun
from decentral.published import key as published_key
from decentral.report.published import items, numbers
from decentral.runtime.launch import launch
from decentral.store import Status, read_metrics
from decentral.study import catalogue
from decentral.study.kinds.comparison import Comparison, TunedCell
from decentral.study.measured import MeasuredCell
from decentral.study.study import Cell

# -- smoke ----------------------------------------------------------------------------------------------------------

NAMES = [name for name in catalogue.names() if "smoke" in catalogue.scales(name)]


QUICK = {"relaysum_fig2"}
STUDIES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES]


def start(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    return exit.value.code


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("results")


def test_every_study_has_the_scale_smoke():
    assert catalogue.names() == NAMES


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_reports_and_is_then_done(name: str, results: Path, capsys: pytest.CaptureFixture):
    arguments = [name, "scale=smoke", f"results_dir={results}", "progress=false", "launcher.slots=1"]
    assert start(*arguments) == 0, capsys.readouterr().out
    study = catalogue.load(name, "smoke")
    directory = results / study.paper / name / "smoke"
    facts = json.loads((directory / "study.json").read_text())
    assert facts["study"] == name and facts["failed"] == 0 and facts["jobs"] > 0
    with open(directory / "values.csv") as file:
        assert list(csv.DictReader(file)), "the study found nothing"
    for figure in study.report.get("figures", []):
        assert (directory / f"{figure.get('name', 'figure')}.png").stat().st_size > 5000
        assert (directory / f"{figure.get('name', 'figure')}.svg").exists()
    if "table" in study.report:
        assert all((directory / f"table.{suffix}").exists() for suffix in ("csv", "md", "tex"))
    assert (results / "README.md").exists() and (results / study.paper / "README.md").exists()
    capsys.readouterr()
    assert start(*arguments) == 0
    assert "nothing was computed" in capsys.readouterr().out


# -- scales ---------------------------------------------------------------------------------------------------------

COUNTS = {"train": 1280, "test": 20}


SCALES_STUDIES = [name for name in catalogue.names() if "laptop" in catalogue.scales(name)]
IMAGES = [name for name in SCALES_STUDIES if "data=cifar10" in catalogue.load(name, "laptop").base]
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
    assert {name.partition("_")[0] for name in SCALES_STUDIES} == {
        *("relaysum", "thesis", "bluefog", "wagma", "flex", "natural", "benchmark")
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), [pytest.param(*one, id=" ".join(one)) for one in RUNS])
def test_a_run_starts_and_takes_two_steps(name, scale, path, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "COUNTS", COUNTS)
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


# -- wagma ----------------------------------------------------------------------------------------------------------

WAGMA_NAMES = [name for name in catalogue.names() if name.startswith("wagma_")]
PUBLISHED = {item: {one.key for one in numbers("wagma", item)} for item in items("wagma")}
NEEDS_FILES = {"data=imagenet", "data=parallel", "data=multi30k"}
COMPARED = [
    (name, report["published"]["item"])
    for name, report in ((name, catalogue.load(name, "paper").report) for name in WAGMA_NAMES)
    if "published" in report
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 32), ("val", 1)):  # one for each of 64 workers
        for kind in ("cat", "dog"):
            (folder / part / kind).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8)).save(folder / part / kind / f"{number}.jpg")
    for split in ("train", "newstest2014", "test_2016_flickr"):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text(16 * "A .\n")
    return folder


def cells(name: str, scale: str, pictures: Path, folder: Path) -> list[Cell]:
    study = catalogue.load(name, scale)
    data = [f"data.path={pictures}", "batch_size=1"] if NEEDS_FILES & set(study.base) else []
    return study.cells([*data, f"results_dir={folder}"])


def test_the_paper_has_42_numbers_all_of_which_are_compared_by_a_study() -> None:
    assert sum(map(len, PUBLISHED.values())) == 42
    assert set(PUBLISHED) == {item for _, item in COMPARED}
    assert max(Counter(item for _, item in COMPARED).values()) == 1


@pytest.mark.parametrize(("name", "item"), COMPARED)
def test_every_number_of_an_item_belongs_to_a_cell(name: str, item: str, pictures: Path, tmp_path: Path) -> None:
    keys = set()
    for cell in cells(name, "paper", pictures, tmp_path):
        if isinstance(cell, TunedCell):
            keys.add(cell.published)
        elif isinstance(cell, MeasuredCell):
            keys.add(published_key(cell.line, cell.setting, **cell.labels))
    assert PUBLISHED[item] <= keys


@pytest.mark.parametrize("name", WAGMA_NAMES)
def test_every_scale_composes(name: str, pictures: Path, tmp_path: Path) -> None:
    for scale in catalogue.scales(name):
        if "env=habitat" in catalogue.load(name, scale).base:  # which refuses where it is not installed
            continue
        assert cells(name, scale, pictures, tmp_path), scale
