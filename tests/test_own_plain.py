"""Plain torch classes and data sets of one's own: model=mymodule:MyNet, data=mymodule:make_data."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import exit_status
from decentral.cli.run import main
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.registry import component, components, signature
from decentral.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")

MODULE = '''"""A module of one's own."""

import enum
import random

import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset


class Act(enum.Enum):
    relu = "relu"
    tanh = "tanh"


class Net(nn.Module):
    """Two layers."""

    def __init__(self, in_features, num_classes: int, width: int = 8, drop=0.0, act: Act = Act.relu, wide=(1, 2),
                 norm=nn.Identity, *args, file: str = "", bias: bool | None = None, **kwargs):
        super().__init__()
        assert wide == (1, 2) and act in Act
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, num_classes))

    def forward(self, x):
        return self.layers(x.flatten(1))


class Backwards(nn.Sequential):
    def forward(self, x):
        return super().forward(-x)


class Wrong(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.layer = nn.Linear(6, classes)

    def forward(self, x):
        return self.layer(x)


class Noisy(Dataset):
    classes = ["a", "b", "c", "d", "never seen"]

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.eye(4, 6)[i % 4] + 0.1 * torch.randn(6) + random.random(), i % 4


def noisy(size: int = 80):
    return Noisy(size), Noisy(20)


def tensors(size: int = 80):
    y = torch.arange(size) % 4
    data = TensorDataset(torch.eye(4, 6)[y] + torch.randn(size, 6), y)
    return Subset(data, range(0, size - 20)), Subset(data, range(size - 20, size))


def one():
    return Noisy(3)


def words():
    return [("a word", 1)], [("a word", 1)]


def breaks():
    raise OSError("no such disk")


class Ends(Net):
    def forward(self, x):
        import os

        if torch.is_grad_enabled():
            os._exit(0)
        return super().forward(x)


def table(path: str = "", more: list[str] = ()):
    with open(path) as file:
        values = torch.tensor([list(map(float, line.split(","))) for line in file])
    values = nn.functional.pad(values, (0, 4))
    data = TensorDataset(values[:, 1:], values[:, 0].long())
    return data, data


def unnamed():
    return table("table.csv")


class Coarse(TensorDataset):
    """A data set whose items have other labels than its attribute."""

    def __init__(self, x, targets):
        super().__init__(x, targets)
        self.targets = targets

    def __getitem__(self, i):
        return self.tensors[0][i], self.targets[i] // 2


def coarse():
    data = Coarse(torch.eye(8, 6), torch.arange(8) % 4)
    return data, data
'''
QUICK = ("num_workers=4", "batch_size=4", "topology=ring", "algo=dpsgd", "partition=iid", "steps=4", "device=cpu",
         "progress=false", "precision=fp64")  # fmt: skip


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module in the current folder."""
    name = f"mine_{abs(hash(request.node.name)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    exit = exit_status(main, *arguments, *QUICK)
    err = capsys.readouterr().err
    assert exit == 2 and len(err.strip().splitlines()) == 1, err
    return err


@pytest.mark.parametrize("processes", [1, 2])
def test_a_model_that_ends_its_process_is_a_failure(
    module: str, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    settings = (f"model={module}:Ends", f"data={module}:tensors", *QUICK, f"processes={processes}", "run_dir=run")
    before = os._exit
    exit = exit_status(main, *settings)
    said = capsys.readouterr().err
    assert exit == 1 and said.count("\n") == 1, said
    assert ("called os._exit(0)" if processes == 1 else "ended with status 0") in said
    assert (RunStore.peek(Path("run")) or {})["status"] == "failed"
    assert os._exit is before


def test_the_signature_is_the_schema(module: str) -> None:
    cls = component("models", f"{module}:Net")
    assert cls is not None
    settings = {f.name: f.type for f in dataclasses.fields(cls)}
    assert settings["width"] is int and settings["drop"] is float and settings["wide"] == list[int]
    assert settings["bias"] == bool | None
    own = {"name", "width", "drop", "act", "wide", "file", "bias", "kwargs"}
    assert settings.keys() == own | components("models.adapters").keys(), "less what the data decide"
    assert cls.__doc__ == "Two layers."


@pytest.mark.parametrize("way", ["table data.path=table.csv", "table data.path=table.csv data.more=[other]", "unnamed"])
def test_a_file_that_data_are_read_from_counts_by_its_content(module: str, way: str) -> None:
    def look() -> tuple[str, float]:
        config = compose([f"model={module}:Net", *f"data={module}:{way}".split(), *QUICK, "num_workers=2"])
        inputs, _ = next(config.data.load("cpu", 0).test_batches(100))
        return run_id(config), inputs.sum().item()

    file, other = Path("table.csv"), Path("other")
    file.write_text("0,1,2\n1,3,4\n" * 4)
    other.write_text("a")
    first, (times, others) = look(), (file.stat(), other.stat())
    os.utime(file)
    assert look() == first
    if "other" in way:
        other.write_text("b")
        os.utime(other, ns=(others.st_atime_ns, others.st_mtime_ns))
        assert look()[0] != first[0] and look()[1] == first[1]
    if way != "unnamed":  # it is read once in a process
        file.write_text(file.read_text().replace("4", "5"))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert look()[0] != first[0] and look()[1] != first[1]


def test_a_folder_that_data_are_read_from_counts_by_its_content(module: str) -> None:
    def look(folder: str = "tables") -> str:
        return run_id(compose([f"model={module}:Net", "model.file=" + folder, f"data={module}:noisy", *QUICK]))

    for name in ("a/b/table.csv", "runs/abc/run.lock", "runs/abc/metrics.jsonl"):
        path = Path("tables", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    table, first, here = Path("tables/a/b/table.csv"), look(), look(".")
    os.utime(table)
    Path("tables/runs/abc/metrics.jsonl").write_text("2")
    assert look() == look("tables/") == first
    times = table.stat()
    table.write_text("2")
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert look() != first and look(".") == here
    table.write_text("1")
    assert look() == first
    Path("tables/a/another").write_text("1")
    assert look() != first


def test_examples_do_not_depend_on_their_reader(module: str) -> None:
    data = compose([f"model={module}:Net", f"data={module}:noisy", *QUICK]).data.load("cpu", 3)
    order = lambda step: torch.tensor([[1, 2], [3, 4]]) + step  # noqa: E731
    together = list(data.train_batches(order, range(2), 0, 3))
    state = torch.get_rng_state()
    alone = list(data.train_batches(lambda step: order(step)[1:], range(1, 2), 1, 3))
    assert torch.equal(torch.get_rng_state(), state)
    for (both, _), (one, labels) in zip(together[1:], alone, strict=True):
        assert torch.equal(both[1:], one) and labels.shape == (1, 2)
    same = [x for x, _ in data.train_batches(lambda step: torch.tensor([[1], [1]]), range(2), 0, 2)]
    data.seed = 4
    same += [x for x, _ in data.train_batches(lambda step: torch.tensor([[1], [1]]), range(2), 0, 2)]
    assert len(torch.cat(same).flatten(1).unique(dim=0)) == 8, "each worker, step and seed has noise of its own"
    first, again = (torch.cat([x for x, _ in data.test_batches(size)]) for size in (8, 5))
    assert torch.equal(first, again) and data.num_classes == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model={}:Nett",), "has no class or function Nett. Did you mean 'Net'?"),
        (("model=nonesuch:Net",), "there is no module nonesuch in this folder"),
        (("model={}:Net", "model.widht=3"), "has no setting 'widht'. Did you mean 'model.width'?"),
        (("model={}:Wrong", "data={}:noisy"), "model.classes is missing: give "),
        (("model={}:Wrong", "model.classes=3", "data={}:noisy"), "one number for each of the 5 classes"),
        (("model=cnn", "data={}:noisy"), "model=cnn needs images, but this data= has labeled examples"),
        (("data={}:one",), "returns a Noisy: return two data sets, (train, test); or one, and data.test_share=0.2"),
        (("data={}:breaks",), ".py, line 75: OSError: no such disk."),
    ],
)
def test_models_and_data_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], module: str, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal_of(capsys, *(argument.format(module) for argument in arguments))


NAMES = '''"""Functions and a class that are named in the place of ours."""

import math

import networkx
import numpy as np


def inverse(t, power: float = 1.0):
    return (t + 1) ** -power


def cosine(t, steps_per_epoch, total_steps, warmup_epochs: float = 0.0):
    assert warmup_epochs in (0, 3)
    return (1 + math.cos(math.pi * t / total_steps)) / 2


def negative(epoch):
    return -epoch


def sorts(labels, num_workers, seed, turned: int = 0):
    return np.array_split(np.roll(np.argsort(labels, kind="stable"), turned), num_workers)


class Inverse:
    def __init__(self, power: float = 1.0):
        self.power = power

    def __call__(self, t):
        return (t + 1) ** -self.power


def no_number(t):
    return np.ones(2)


def four():
    return networkx.cycle_graph(4)


class Circle:
    def __init__(self, missing: int = 0):
        self.missing = missing

    def __call__(self, num_workers):
        return networkx.cycle_graph(num_workers - self.missing)


made = Circle()


def named(num_workers):
    return networkx.read_edgelist([f"w{i} w{(i + 1) % num_workers}" for i in range(num_workers)][::-1])


class Asks:
    def __call__(self, degree):
        return networkx.cycle_graph(degree)


class Deals:
    def __init__(self, seed, turned: int = 0):
        self.turned = turned + 0 * seed

    def __call__(self, labels, num_workers):
        return sorts(labels, num_workers, 0, self.turned)


def fails(outputs, targets, num_classes):
    return outputs.sum(1) * num_classes + undefined


class Loss:
    def __init__(self, num_classes):
        self.num_classes = num_classes

    def __call__(self, outputs, targets):
        assert outputs.shape[1] == self.num_classes == 10
        return networkx.nonsense


def drawn(labels, num_workers):
    return np.array_split(np.random.permutation(len(labels)), num_workers)


def twice(labels, num_workers):
    return [np.zeros(3, int)] * num_workers


def few(labels):
    return [np.arange(len(labels))]


def circle(num_workers):
    return networkx.cycle_graph(num_workers)


def arrows(num_workers: int, weighted: bool = False):
    found = [np.roll(np.eye(num_workers), 2**s, axis=0) for s in range(2)]
    return [(one + np.eye(num_workers)) / 2 if weighted else one.astype(int) for one in found]


def small(num_workers):
    return np.eye(num_workers - 1)


def falls(num_workers):
    return np.eye(num_workers) / 2


def asks(num_workers, k: int):
    return np.ones((num_workers, num_workers), bool)


def differs(num_workers):
    share = np.random.default_rng().random()  # never twice the same
    return share * np.eye(num_workers) + (1 - share) / num_workers


def of_kind(num_workers, kind: str):
    ones = np.ones((num_workers, num_workers))
    return {"words": ones.astype(str), "negative": -ones.astype(int), "nothing": None}[kind]


def named_anyhow(num_workers):
    return networkx.relabel_nodes(networkx.cycle_graph(num_workers), {1: "one"})


def deals_anew(labels, num_workers):
    return np.array_split(np.random.default_rng().permutation(len(labels)), num_workers)


def deals(labels, num_workers):
    return dict(enumerate(np.array_split(np.arange(len(labels)), num_workers)))


def noisy(t):
    return np.random.random()


class Lines:
    def __init__(self, directory, run_id, config, ending: str = "txt"):
        assert config["logger"]["ending"] == ending and len(run_id) == 12
        self.file = (directory / f"lines.{ending}").open("a")

    def log(self, step, values):
        print(step, sorted(values)[0], file=self.file)

    def close(self, status):
        print(status, file=self.file)
        self.file.close()


class Placed:
    place = "a server"

    def log(self, step, values):
        pass


class Silent:
    pass
'''
SMALL = ("task=quadratics", "num_workers=4", "algo=dpsgd", "steps=12", "progress=false", "device=cpu", "trace=true",
         "task.initial_distance=1", "processes=1")  # fmt: skip


@pytest.fixture
def names(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The name of a module with those functions in the current folder."""
    name = f"names_{abs(hash(request.node.name)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(NAMES)
    return name


def iterates(*settings: str) -> np.ndarray:
    directory = f"run {abs(hash(settings))}"
    assert exit_status(main, *SMALL, *settings, f"run_dir={directory}") == 0
    return np.load(Path(directory) / "trace.npz")["iterates"]


def test_functions_of_users_equal_built_in_components(names: str) -> None:
    """In one process; and a topology of several rounds in two."""
    expected: dict[str, np.ndarray] = {}
    for named, ours, processes in (
        ("schedule={}:Inverse schedule.power=1.0 topology=ring", "schedule=inverse topology=ring", 1),
        (
            "schedule={}:inverse schedule.power=0.5 schedule.warmup_epochs=4 topology=ring",
            "schedule=inverse_sqrt schedule.warmup_steps=1 schedule.warmup_epochs=4 topology=ring",
            1,
        ),
        ("schedule={}:cosine schedule.warmup_epochs=3 topology=ring", "schedule=cosine topology=ring", 1),
        *((f"topology={{}}:{name}", "topology=ring", 1) for name in ("four", "made")),
        ("topology={}:named_anyhow", "topology=ring", 1),
        ("topology={}:circle", "topology=ring", 1),
        ("topology={}:arrows", "topology=one_peer_exponential", 2),
        ("topology={}:arrows topology.weighted=true", "topology=one_peer_exponential", 1),
    ):
        if ours not in expected:
            expected[ours] = iterates(*ours.split())
        found = iterates(*named.format(names).split(), f"processes={processes}")
        np.testing.assert_allclose(found, expected[ours], rtol=0, atol=1e-12, err_msg=named)


def test_nodes_with_names_are_workers_in_natural_order(names: str) -> None:
    found = iterates(f"topology={names}:named", "num_workers=12")
    np.testing.assert_allclose(found, iterates("topology=ring", "num_workers=12"), rtol=0, atol=1e-12)
    (file,) = Path().glob("run*/names.json")
    assert json.loads(file.read_text()) == {"worker": [f"w{i}" for i in range(12)]}


def test_a_function_deals_out_the_data_and_a_class_logs(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = (f"partition={names}:sorts", f"logger={names}:Lines", "logger.ending=log", "data=digits", "model=mlp")
    assert exit_status(main, *QUICK, *chosen, "run_dir=run", "partition.turned=5") == 0
    assert f"Logged:   logger={names}:Lines\n" in capsys.readouterr().out
    iterates(f"logger={names}:Placed")
    assert "Logged:   a server\n" in capsys.readouterr().out
    assert (
        Path("run/lines.log").read_text()
        == "0 bytes_sent\n1 bytes_sent\n2 bytes_sent\n3 bytes_sent\n4 bytes_sent\ndone\n"
    )
    table = Path("run/partition.csv").read_text().splitlines()
    assert len(table) == 5 and table[1].endswith(",5,360") and table[1].count(",0") == 6, "a fourth of sorted digits"
    labels, both = np.arange(40) % 10, [component("partition", f"{names}:{name}") for name in ("sorts", "Deals")]
    np.testing.assert_equal(*(cls(turned=3).indices(labels, 4, 0) for cls in both))
    one = component("partition", f"{names}:drawn")
    assert one is not None
    dealt = [one().indices(labels, 4, seed) for seed in (0, 0, 1)]
    assert (dealt[0][0] == dealt[1][0]).all() and (dealt[0][0] != dealt[2][0]).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("schedule={}:negative", "in step 1: return the factor on lr, a finite number >= 0."),
        ("partition={}:twice", "returns 12 indices, not each of 0 ... 1437 once: assign every sample exactly once."),
        (
            "partition={}:few",
            "returns 1 parts with 1438 samples at least: return ",
        ),
        ("topology={}:small", "returns an array [3, 3] for num_workers=4: return a graph or W [4, 4]"),
        ("topology={}:falls", "are neither row-stochastic (pull) nor column-stochastic (push)"),
        ("topology={}:Circle topology.missing=1", "returns an array [3, 3] for num_workers=4: return a graph"),
        ("topology={}:Asks", "missing 1 required positional argument: 'degree'"),
        ("schedule={}:no_number", "in step 0: return the factor on lr, a finite number >= 0."),
        ("task.loss={}:fails", "name 'undefined' is not defined"),
        ("task.loss={}:Loss", "has no attribute 'nonsense'"),
        ("topology={}:asks", "topology.k is missing: give a whole number."),
        ("topology={}:arrows topology.weighted=true topology.weights=pull", "conflicts with topology=names"),
        ("topology={}:arrows topology.weight=true", "has no setting 'weight'. Did you mean"),
        ("topology={}:differs", "is not reproducible: draw from numpy.random"),
        ("topology={}:of_kind topology.kind=words", "returns matrices of <U32: return graphs (bools, or whole"),
        ("topology={}:of_kind topology.kind=negative", "returns a graph with negative entries"),
        ("topology={}:of_kind topology.kind=nothing", "returns a NoneType for num_workers=4"),
        ("partition={}:deals_anew", "returns different parts when called again: draw from numpy.random"),
        ("partition={}:deals", "returns a dict without an array of indices for each worker"),
        ("schedule={}:noisy", "when called again: make it a deterministic function of its arguments"),
        ("logger={}:Silent", "Silent has no method log(step, values): define it."),
    ],
)
def test_an_invalid_function_is_refused(
    capsys: pytest.CaptureFixture[str], names: str, arguments: str, words: str
) -> None:
    exit = exit_status(main, "data=digits", "model=mlp", "lr=0.01", *QUICK, *arguments.format(names).split())
    err = capsys.readouterr().err
    assert exit != 0 and words in err and "Traceback" not in err, err


def test_help_has_a_topology_that_needs_a_setting(capsys: pytest.CaptureFixture[str], names: str) -> None:
    exit_status(main, "--help", f"topology={names}:asks")
    assert "topology.k=???" in capsys.readouterr().out


# -- models of timm, data of the library datasets ----------------------------------------------------------------------

LIBRARY = '''"""A stand-in for the library datasets: what of it is used."""

import numpy as np
from PIL import Image


class ClassLabel:
    names = ["even", "odd"]


class Dataset:
    def __init__(self, columns):
        self._columns, self.column_names = columns, list(columns)
        self.features = {name: ClassLabel() if name in ("label", "fine") else None for name in columns}

    def __len__(self):
        return len(self._columns[self.column_names[0]])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self._columns[key]
        assert isinstance(key, int)
        return {name: values[key] for name, values in self._columns.items()}


class DatasetDict(dict):
    pass


def load_dataset(path: str, name: str | None = None, data_dir: str | None = None, split=None, cache_dir=None,
                 streaming: bool = False, **config_kwargs):
    assert path == "some/set" and name in (None, "tiny") and split is None and not streaming
    def part(n, seed):
        random, labels = np.random.default_rng(seed), [i % 2 for i in range(n)]
        shape = (12, 9, 3) if name is None else (12, 12)
        images = [Image.fromarray((random.integers(0, 100, shape) + 100 * i).astype(np.uint8)) for i in labels]
        texts = [["two four six", "one three nine"][i] for i in labels]
        return Dataset({"image": images, "vector": [[float(i), 1.0] for i in labels], "title": texts, "more": texts,
                        "label": labels, "fine": labels, "word": [["c10", "c2"][i] for i in labels]} | config_kwargs)
    return DatasetDict(train=part(80, 0), validation=part(20, 1))
'''
FOUND = ("num_workers=4", "batch_size=4", "topology=ring", "algo=dpsgd", "partition=iid", "steps=20", "device=cpu",
         "progress=false", "data=datasets:load_dataset", "data.path=some/set", "data.test=validation", "lr=0.1",
         "processes=1", "run_dir=run", "evaluation.every_epochs=100")  # fmt: skip


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in in the place of the library, for the time being."""
    (tmp_path / "datasets.py").write_text(LIBRARY)
    real = sys.modules.pop("datasets", None)
    for cached in (signature.function, signature.named):
        cached.cache_clear()
    yield
    sys.modules.pop("datasets", None)
    if real is not None:
        sys.modules["datasets"] = real
    for cached in (signature.function, signature.named):
        cached.cache_clear()


@pytest.mark.parametrize(
    "settings",
    [
        "model=cnn data.image_size=8",
        "model={}:Net data.image=vector",
        "model=mlp data.config=tiny data.label=word",
        "task=text model=fasttext data.text=[title] data.tokens=words data.test=none data.test_share=0.25",
        "task=text model=fasttext data.text=[title,more] data.tokens=words data.longest=4",
    ],
)
def test_columns_of_a_data_set_of_the_library_are_learned(module: str, library: None, settings: str) -> None:
    assert exit_status(main, *FOUND, *settings.format(module).split()) == 0
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if (row["metric"], row["worker"]) == ("accuracy", "averaged")]
    assert found[-1]["value"] == 1
    named = ["c2", "c10"] if "label=word" in settings else ["even", "odd"]
    assert json.loads(Path("run/names.json").read_text())["class"] == named


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            "data.test=test",
            "has the splits train, validation, not test: select splits with data.train= and data.test=; or",
        ),
        (
            "data.image=picture",
            "has no column picture in train, but image, vector, title, more, label, fine, word: select columns with",
        ),
        (
            "data.text=[title]",
            "task=images needs images with labels, but data=datasets:load_dataset has texts",
        ),
        ("data.test_share=0.2", "has the split validation: leave out data.test_share=0.2"),
        ("data.color=red", "has no setting 'color'"),
    ],
)
def test_missing_columns_of_a_library_data_set_are_named(
    capsys: pytest.CaptureFixture[str], library: None, settings: str, says: str
) -> None:
    exit = exit_status(main, *FOUND, "model=cnn", "data.image_size=8", *settings.split())
    assert exit == 2 and says in capsys.readouterr().err


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the library is installed")
def test_a_library_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pip install '.[datasets]'" in refusal_of(capsys, "data=datasets:load_dataset")


def test_a_data_set_of_the_real_library(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for split, n in (("train", 40), ("test", 10)):
        lines = [json.dumps({"text": ["an even one", "odd"][i % 2], "label": i % 2}) for i in range(n)]
        Path(f"{split}.jsonl").write_text("\n".join(lines))
    words = ["task=text", "model=fasttext", "data=datasets:load_dataset", f"data.path={tmp_path}", "data.text=[text]",
             "data.tokens=words", "num_workers=2", "batch_size=8"]  # fmt: skip
    assert compose(words).data.inspect().num_train == 40


def test_a_model_of_timm_is_made_for_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    timm = pytest.importorskip("timm")
    words = ["data=digits", "model=timm:create_model", "num_workers=2", "partition=iid", "algo=dpsgd", "topology=ring"]
    config = compose([*words, "model.model_name=resnet10t", "model.kwargs={drop_rate:0.25}"])
    torch.manual_seed(3)
    ours = config.model.build(config.data.inspect())
    torch.manual_seed(3)
    theirs = timm.create_model("resnet10t", num_classes=10, in_chans=1, drop_rate=0.25)
    assert ours.drop_rate == 0.25
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert run_id(config) != run_id(compose([*words, "model.model_name=resnet10t"]))
    said = refusal_of(capsys, *words, "model.model_name=resnet11t", "processes=1")
    assert "model=timm:create_model cannot be built: " in said and "Unknown model" in said
    said = refusal_of(capsys, *words, "model.model_name=resnet10t", "model.drop_rate=0.1")
    assert "has no setting 'drop_rate': write arguments of **kwargs as model.kwargs={drop_rate:...}." in said
