"""Natural partitions by a column, a folder or a function: which items go to which worker, and what is reported."""

from __future__ import annotations

import csv
import inspect
import json
import re
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset, random_split

import decentral
from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.partition.partition import Natural
from decentral.registry import signature
from decentral.script.loading import Trained

CPU = torch.device("cpu")
WRITERS = [f"f{number:04d}_{number % 7}" for number in range(12)]
RUN = ("algo=dpsgd", "topology=ring", "batch_size=4", "processes=1", "device=cpu", "partition=natural")


def recipe(values: Any, n: int, seed: int, min_examples: int = 1, groups_per_worker: int | None = None) -> list[Any]:
    """The indices of the workers by the code in the docstring of `Natural`."""
    code = re.findall(r"^ {8}(\w.*)$", inspect.getdoc(Natural) and str(Natural.__doc__), re.M)
    names = {"np": np, "zlib": zlib, "values": values, "n": n, "seed": seed, "k": groups_per_worker}
    names["min_examples"] = min_examples
    for line in sorted(code, key=lambda line: line.split(" = ")[0] not in ("f", "h", "generator")):
        exec(line, names)
    return list(names["indices"])


def of_writers(n: int, seed: int, writers: list[str]) -> list[tuple[int, str]]:
    """Class and writer of n items."""
    random = np.random.default_rng(seed)
    return [(int(random.integers(4)), str(random.choice(writers))) for _ in range(n)]


def pixels(number: int, label: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 60, (12, 12)).astype(np.uint8) + 40 * label


@pytest.fixture
def femnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, str]]]:
    """Items of writers as Parquet and JSON files, images in folders, and texts in CSV files, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    splits = {"train": of_writers(300, 0, WRITERS), "test": of_writers(80, 1, [*WRITERS[4:], "new"])}
    for folder in ("femnist", "vectors", "texts"):
        (tmp_path / folder).mkdir()
    for split, items in splits.items():
        with open(f"texts/{split}.csv", "w", newline="") as texts, open(f"vectors/{split}.json", "w") as vectors:
            csv.writer(texts).writerow(("text", "writer_id", "label"))
            for number, (label, writer) in enumerate(items):
                csv.writer(texts).writerow((f"a {'bcde'[label]}, of some", writer, label))
                image = [[[float(label), 1.0], [1.0 * (number % 3), 0.0]]]
                vectors.write(json.dumps({"image": image, "writer_id": writer, "label": label}) + "\n")
                file = Path("images", split, writer, "abcd"[label], f"{number}.png")
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels(number, label)).save(file)
    return splits


def parquet(splits: dict[str, list[tuple[int, str]]]) -> None:
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), "writer_id": datasets.Value("string"), "hsf_id": datasets.Value("int64")}
    features["character"] = datasets.ClassLabel(names=list("abcd"))
    whole = datasets.DatasetDict()
    for split, items in splits.items():
        rows = [
            {"image": Image.fromarray(pixels(i, label)), "writer_id": writer, "hsf_id": i % 3, "character": label}
            for i, (label, writer) in enumerate(items)
        ]
        made = datasets.Dataset.from_list(rows, features=datasets.Features(features))
        made.to_parquet(f"femnist/{split}.parquet")
        whole[split] = made
    whole.save_to_disk("saved")


def problem_of(*settings: str) -> Any:
    config = configure(*RUN, *settings)
    config.data.prepare()
    return config.task.open(config, range(config.num_workers), CPU)


def test_groups_go_to_the_workers_as_the_docstring_says():
    random = np.random.default_rng(5)
    for values in (random.choice([2, 10, 33, 4, 100, 7], 200), random.choice(WRITERS, 200), np.arange(60)):
        names = sorted({str(value) for value in values})
        labels = np.array([names.index(str(value)) for value in values])
        for seed in (0, 1, 2**40, -3):
            for n, least, each in ((1, 1, None), (3, 1, None), (3, 1, 2), (2, 2, None), (6, 1, 1)):
                if least > 1 and len(names) == 60:
                    continue
                partition = Natural(column="writer", min_examples=least, groups_per_worker=each)
                found = partition.indices(labels, n, seed)
                expected = recipe(values, n, seed, least, each)
                assert len(found) == n and all(map(np.array_equal, found, expected))
    sizes = np.repeat(np.arange(5), [10, 2, 7, 3, 4])  # without a column, the classes are the groups
    drawn = Natural(groups_per_worker=1, min_examples=3).indices(sizes, 4, 0)
    assert sorted({int(label) for part in drawn for label in sizes[part]}) == [0, 2, 3, 4]
    assert [part.tolist() for part in Natural(min_examples=1).indices(sizes, 5, 7)] == [
        np.flatnonzero(sizes == label).tolist() for label in (0, 2, 4, 3, 1)
    ]


def test_files_of_every_kind_are_split_by_writer(femnist: dict[str, list[tuple[int, str]]]):
    parquet(femnist)
    column = ("partition.column=writer_id", "evaluation.split=local", "num_workers=5", "seed=3")
    library = ("data=datasets:load_dataset", "model=mlp")
    saved = ("data=datasets:load_from_disk", "data.dataset_path=saved", "model=mlp")
    texts = ("task=text", "data.tokens=words", "model=fasttext")
    with pytest.raises(ConfigError, match=r"has no setting 'path'\. Did you mean 'data\.dataset_path'"):
        configure(*RUN, *saved, "data.path=saved")
    sources = {
        "parquet": (*library, "data.path=femnist", "data.label=character", *column),
        "saved": (*saved, "data.label=character", *column),
        "json": (*library, "data.path=vectors", *column),
        "csv": (*texts, "data=textfolder", "data.path=texts", *column),
        "csv of the library": (*texts, "data=datasets:load_dataset", "data.path=./texts", "data.text=[text]", *column),
        "images": ("data=imagefolder", "data.path=images", "model=mlp", "data.folders=[writer_id,class]",
                   "data.image_size=8", "data.num_processes=1", *column),
    }  # fmt: skip
    ids = set()
    for source, settings in sources.items():
        problem = problem_of(*settings)
        items = femnist if source != "images" else in_folders(femnist)
        writers = [writer for _, writer in items["train"]]
        expected = recipe(writers, 5, 3)
        assert all(map(np.array_equal, problem.indices, expected)), source
        for own, tested in zip(problem.indices, problem.local_tests, strict=True):
            held = {writers[i] for i in own}
            theirs = [i for i, (_, writer) in enumerate(items["test"]) if writer in held]
            assert len(tested) and (not theirs or sorted(tested.tolist()) == theirs), source
        problem.save_tables(Path())
        rows = list(csv.DictReader(Path("partition.csv").read_text().splitlines()))
        groups = [sorted({writers[i] for i in own}) for own in expected]
        assert [row["groups"].split(";") for row in rows] == groups
        assert [int(row["total"]) for row in rows] == list(map(len, expected))
        assert problem.names()["group"] == sorted(WRITERS)
        ids.add(run_id(configure(*RUN, *settings)))
    ids.add(run_id(configure(*RUN, *settings, "partition.min_examples=2")))
    assert len(ids) == 1 + len(sources)


def in_folders(splits: dict[str, list[tuple[int, str]]]) -> dict[str, list[tuple[int, str]]]:
    """The items in the order of the images of a folder: by class, then by writer, then by name."""
    found = {}
    for split, items in splits.items():
        numbered = [(label, writer, f"{number}.png") for number, (label, writer) in enumerate(items)]
        found[split] = [(label, writer) for label, writer, _ in sorted(numbered)]
    return found


def test_a_share_held_out_for_testing_has_the_groups(femnist: dict[str, list[tuple[int, str]]]):
    pytest.importorskip("datasets")
    held_out = ("data=datasets:load_dataset", "data.path=json", "data.data_files=vectors/train.json")
    column = ("data.test_share=0.3", "partition.column=writer_id", "evaluation.split=local", "num_workers=6")
    problem = problem_of(*held_out, *column, "model=mlp")
    writers = np.array([writer for _, writer in femnist["train"]])
    train, test = problem.data.divide(writers.tolist(), None)
    for own, tested in zip(problem.indices, problem.local_tests, strict=True):
        assert {train[i] for i in own} == {test[i] for i in tested.tolist()}
    assert sorted(np.concatenate(problem.local_tests).tolist()) == list(range(len(test)))


FUNCTIONS = '''"""Functions of an example."""


def writer_of_row(row):
    return row["writer_id"][-1]


def writer_of_path(path):
    return path.split("/")[0]


def initial(source):
    return source[0].upper()


def nothing(row):
    return None
'''


def test_a_function_names_the_group(femnist: dict[str, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch):
    Path("groups_of.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(".")
    text = ("task=text", "data=textfolder", "data.path=texts", "data.tokens=words", "model=fasttext", "num_workers=3")
    problem = problem_of(*text, "partition.column=groups_of:writer_of_row")
    expected = recipe([writer[-1] for _, writer in femnist["train"]], 3, 0)
    assert all(map(np.array_equal, problem.indices, expected))
    images = ("data=imagefolder", "data.path=images", "data.folders=[writer,class]", "model=mlp", "num_workers=3")
    one = problem_of(*images, "partition.column=groups_of:writer_of_path", "data.num_processes=1")
    other = problem_of(*images, "partition.column=writer", "data.num_processes=1")
    assert all(map(np.array_equal, one.indices, other.indices))
    language = problem_of("task=language", "data.longest=16", "partition.column=groups_of:initial", "num_workers=3")
    sources = language.config.data.inspect().names
    assert set(language.groups.names) == {source[0].upper() for source in sources}
    with pytest.raises(ConfigError, match=r"partition.column=groups_of:nothing has no value for example 0: give"):
        problem_of(*text, "partition.column=groups_of:nothing")


class Written(Dataset):
    def __init__(self, items: list[tuple[int, str]]) -> None:
        self.items, self.writer_id = items, [writer for _, writer in items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.eye(4)[self.items[i][0]], self.items[i][0]


def table(run: Trained) -> list[str]:
    return [row["groups"] for row in csv.DictReader((run.directory / "partition.csv").read_text().splitlines())]


def test_data_from_python_are_split_by_an_attribute_a_function_or_values(tmp_path: Path):
    items, tests, net = of_writers(120, 0, WRITERS), of_writers(40, 1, WRITERS), torch.nn.Linear(4, 4)

    def run(train: Any, test: Any, column: Any, **more: Any) -> Trained:
        return decentral.train(
            net, train, test, partition={"name": "natural", "column": column},
            **{"algo": "dpsgd", "topology": "ring", "num_workers": 4, "steps": 2, "batch_size": 4, "device": "cpu",
               "progress": False, "results_dir": str(tmp_path), "evaluation": {"split": "local"}} | more,
        )  # fmt: skip

    writers = [writer for _, writer in items]
    expected = [";".join(sorted({writers[i] for i in part})) for part in recipe(writers, 4, 0)]
    assert table(run(Written(items), Written(tests), "writer_id")) == expected
    for values in (writers, np.array(writers)):
        assert table(run(Written(items), Written(tests), values)) == expected
    train, test = random_split(Written(items), [100, 20], torch.Generator().manual_seed(0))
    assert set(";".join(table(run(train, test, "writer_id"))).split(";")) == {writers[i] for i in train.indices}
    pairs = TensorDataset(torch.eye(4).repeat(20, 1), torch.arange(80) % 4)
    labels = run(pairs, pairs, lambda pair: pair[1])
    assert sorted(table(labels)) == ["0", "1", "2", "3"]
    assert run(pairs, pairs, lambda pair: pair[1]).directory != labels.directory
    named = [run(Written(items), Written(tests), values, name="by values") for values in (writers, writers)]
    assert named[1].reused
    with pytest.raises(ConfigError, match=r"name=by values has a run with partition.column="):
        run(Written(items), Written(tests), writers[::-1], name="by values")
    with pytest.raises(ConfigError, match=r"partition.column has 7 groups for 120 training examples"):
        run(Written(items), Written(tests), writers[:7])
    with pytest.raises(ConfigError, match=r"partition.column=writer is not an attribute of the training data"):
        run(Written(items), Written(tests), "writer")


def test_what_cannot_be_split_is_refused(femnist: Any):
    text = ("task=text", "data=textfolder", "data.path=texts", "data.tokens=words", "model=fasttext", "num_workers=5")
    for settings, words in (
        ("partition.column=writer", "is not in the training data of data=textfolder. Did you mean 'writer_id'?"),
        ("num_workers=13", "num_workers=13 exceeds the 12 groups of partition.column=writer_id, and"),
        ("partition.groups_per_worker=4", "num_workers=5 times partition.groups_per_worker=4 exceeds the 12 groups of"),
        ("partition.groups_per_worker=4", "needs 4 per worker: use num_workers <= 3, or another partition"),
        ("partition.min_examples=999", "with partition.min_examples=999 or more examples"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            configure(*RUN, *text, "partition.column=writer_id", settings)


def test_data_without_columns_and_folders_without_a_class_are_refused(femnist: Any):
    with pytest.raises(ConfigError, match="needs examples with columns, which data=digits lacks"):
        configure(*RUN, "data=digits", "model=mlp", "partition.column=writer_id", "num_workers=2")
    for folders in ("[writer]", "[class,class]", "[class,a,a]"):
        with pytest.raises(ConfigError, match=r"must name each level once, and one of them class"):
            configure(*RUN, "data=imagefolder", "data.path=images", f"data.folders={folders}", "num_workers=2")
    with pytest.raises(ConfigError, match=r"images belong in train|belong in .*<a>/<b>/<c>/<class>/"):
        configure(*RUN, "data=imagefolder", "data.path=images", "data.folders=[a,b,c,class]", "num_workers=2")


LIBRARY = '''"""Stand-in for the library datasets: any set has the columns and splits of the page."""

import json
from pathlib import Path

import numpy as np
from PIL import Image


class Rows:
    def __init__(self, columns, n, gray):
        self.column_names, self._n, self._gray = columns, n, gray

    def __len__(self):
        return self._n

    def __getitem__(self, key):
        if not isinstance(key, str):
            return {name: self[name][key] for name in self.column_names}
        if key in ("image", "img"):
            shapes = [(8, 8) if i in self._gray else (8, 8, 3) for i in range(self._n)]
            return [Image.fromarray(np.full(shape, i, np.uint8)) for i, shape in enumerate(shapes)]
        if key in ("text", "sentence", "x"):
            return [f"text {i % 7}" for i in range(self._n)]
        values = {"Smiling": [False, True], "y": [" ", "a", "1"], "writer_id": [f"w{i}" for i in range(9)]}
        choices = values.get(key, range(8) if "id" in key or "coarse" in key else range(3))
        return [choices[i % len(choices)] for i in range(self._n)]


def load_dataset(path, name: str | None = None, **more):
    columns, splits = json.loads(Path("page.json").read_text())[path]
    return {split: Rows(columns, 90, [3, 5] if "tiny" in path else []) for split in splits}
'''


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_commands_of_the_page_of_data_sets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    page = (Path(__file__).parents[1] / "docs" / "datasets.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    known, commands = {}, [re.findall("`(data=ratings:ratings [^`]*)`", page)[0].split()]
    for _, columns, splits, settings, _ in (row for row in rows if len(row) == 5 and "data.path=" in row[3]):
        words = ["data=datasets:load_dataset", *settings.split("`")[1].split()]
        path = next(word for word in words if word.startswith("data.path=")).partition("=")[2]
        known[path] = re.findall(r"`(\w+)`", columns), re.findall(r"`(\w+)`", splits)
        commands.append([word.replace("data.image_size=84", "data.image_size=8") for word in words])
    assert len(known) == 8 and len(commands) == 9
    shutil.copy(Path(__file__).parents[1] / "examples" / "own_model" / "ratings.py", "ratings.py")
    lines = [f"{i % 9},{i},{(i % 10 + 1) / 2},0" for i in range(180)]
    Path("ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines]))
    Path("datasets.py").write_text(LIBRARY)
    Path("page.json").write_text(json.dumps(known))
    real = sys.modules.pop("datasets", None)
    for cached in (signature.function, signature.named):
        cached.cache_clear()
    try:
        for words in commands:
            shape = ["num_workers=4", "batch_size=2", "steps=2", "processes=1", "device=cpu", "progress=false"]
            shape += [] if any("model=" in word for word in words) or "task=text" in words else ["model=mlp"]
            shape += ["data.tokens=words"] if "task=text" in words else []
            assert exit_status(main, *words, *shape) == 0, (words, capsys.readouterr().err)
    finally:
        sys.modules.pop("datasets", None)
        for cached in (signature.function, signature.named):
            cached.cache_clear()
        if real is not None:
            sys.modules["datasets"] = real
