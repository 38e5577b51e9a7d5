"""Plain torch classes and data sets of one's own: model=mymodule:MyNet, data=mymodule:make_data."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest
import torch

from decentral.cli.run import main
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.registry import component
from decentral.store import RunStore

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
    with pytest.raises(SystemExit) as exit:
        main([*arguments, *QUICK])
    err = capsys.readouterr().err
    assert exit.value.code == 2 and len(err.strip().splitlines()) == 1, err
    return err


@pytest.mark.parametrize("processes", [1, 2])
def test_a_model_that_ends_its_process_is_a_failure(
    module: str, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    settings = (f"model={module}:Ends", f"data={module}:tensors", *QUICK, f"processes={processes}", "run_dir=run")
    before = os._exit
    with pytest.raises(SystemExit) as exit:
        main(list(settings))
    said = capsys.readouterr().err
    assert exit.value.code == 1 and said.count("\n") == 1, said
    assert ("called os._exit(0)" if processes == 1 else "ended with status 0") in said
    assert (RunStore.peek(Path("run")) or {})["status"] == "failed"
    assert os._exit is before


def test_the_signature_is_the_schema(module: str) -> None:
    cls = component("models", f"{module}:Net")
    assert cls is not None
    settings = {f.name: f.type for f in dataclasses.fields(cls)}
    assert settings["width"] is int and settings["drop"] is float and settings["wide"] == list[int]
    assert settings["bias"] == bool | None
    assert settings.keys() == {"name", "width", "drop", "act", "wide", "file", "bias"}, "less what the data decide"
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


def test_examples_are_read_the_same_way_whoever_reads_them(module: str) -> None:
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
        (("model={}:Net", "model.widht=3"), "has no setting 'widht'. Did you mean 'width'?"),
        (("model={}:Wrong", "data={}:noisy"), "model.classes has no default: give it a value"),
        (("model={}:Wrong", "model.classes=3", "data={}:noisy"), "has to give a number for each of the 5 classes"),
        (("model=cnn", "data={}:noisy"), "model=cnn is for images, but this data= has labelled examples"),
        (("data={}:one",), "has to return two data sets, (train, test), not a Noisy."),
        (("data={}:breaks",), ".py, line 75: OSError: no such disk."),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], module: str, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal_of(capsys, *(argument.format(module) for argument in arguments))
