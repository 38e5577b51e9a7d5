"""The studies of the WAGMA paper: they compose at every scale, and each of its numbers is compared exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from decentral.published import key as published_key
from decentral.report.published import items, numbers
from decentral.study import catalogue
from decentral.study.kinds.comparison import TunedCell
from decentral.study.measured import MeasuredCell
from decentral.study.study import Cell

NAMES = [name for name in catalogue.names() if name.startswith("wagma_")]
PUBLISHED = {item: {one.key for one in numbers("wagma", item)} for item in items("wagma")}
NEEDS_FILES = {"data=imagenet", "data=parallel", "data=multi30k"}
COMPARED = [
    (name, report["published"]["item"])
    for name, report in ((name, catalogue.load(name, "paper").report) for name in NAMES)
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


@pytest.mark.parametrize("name", NAMES)
def test_every_scale_composes(name: str, pictures: Path, tmp_path: Path) -> None:
    for scale in catalogue.scales(name):
        if "env=habitat" in catalogue.load(name, scale).base:  # which refuses where it is not installed
            continue
        assert cells(name, scale, pictures, tmp_path), scale
