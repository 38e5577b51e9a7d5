"""`decentral.train`: one's own module and data sets, as objects."""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import decentral
from conftest import exit_status
from decentral.cli.single import carry_out
from decentral.config.composition import compose
from decentral.config.identity import named_id, run_directory
from decentral.config.overrides import literal
from decentral.config.parsing import dump, load
from decentral.errors import ConfigError
from decentral.script.given import GivenModel
from decentral.store import read_metrics

pytestmark = pytest.mark.usefixtures("undrawn")
SHORT = {"algo": "dpsgd", "topology": "ring", "num_workers": 4, "batch_size": 8, "steps": 8, "alpha": 0.1, "seed": 5,
         "progress": False, "device": "cpu"}  # fmt: skip


def words(settings: dict) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


@pytest.fixture(scope="module")
def all_digits() -> tuple[TensorDataset, TensorDataset]:
    """The examples of data=digits, normalized as there."""
    loaded = compose(["data=digits"]).data.load("cpu", 0)
    order = torch.arange(len(loaded.train_labels))[None]
    images, labels = next(loaded.train_batches(lambda step: order, range(1), 0, 1))
    test = next(loaded.test_batches(10_000))
    return TensorDataset(images[0], labels[0]), TensorDataset(*test)


@pytest.fixture(scope="module")
def digits(all_digits) -> tuple[TensorDataset, TensorDataset]:
    """Some of them."""
    return tuple(TensorDataset(*data[:200]) for data in all_digits)


class Examples(Dataset):
    """So many, each made by a function of its number."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


PAIRS = TensorDataset(torch.zeros(3, 1), torch.arange(3))


class Pairs(Dataset):
    """As any data set, and in no hurry."""

    def __init__(self, inner: TensorDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        image, label = self.inner[number]
        return image, int(label)


def metrics(rows: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]


NAMES = (
    "müller",
    "run=1",
    "Copy (1), a",
    "${oc.env:HOME}",
    "a\\",
    'it\'s "x"',
    "[1]",
    "{a: 1}",
    " lead",
    "1e3",
    "null",
    "a\tb",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_from_python_is_taken_as_it_is(name):
    config = compose([f"results_dir={literal(name)}", f"run_dir={literal(f'a/{name}')}"])
    assert (config.results_dir, config.run_dir) == (name, f"a/{name}")
    again = load(dump(config))
    assert (again.results_dir, again.run_dir, run_directory(again)) == (name, f"a/{name}", Path(f"a/{name}"))
    assert run_directory(replace(config, run_dir=None)).parts[0] == name


def test_folders_with_any_name_hold_runs_that_are_resumed_and_loaded(tmp_path, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = 'it\'s ${seed}, x=[1] "q" '
    results = [decentral.train("mlp", *digits, results_dir=Path(name), name=name, **SHORT) for _ in range(2)]
    assert {result.directory for result in results} == {Path(name, "runs", results[0].directory.name)}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    begun = decentral.train("mlp", *digits, results_dir=name, init=results[0].directory, **{**SHORT, "seed": 6})
    assert begun.settings["init"] == str(results[0].directory)
    assert len(decentral.runs(name)) == 2
    for one in (results[0], begun):
        assert decentral.load(one.directory.name, name).directory == one.directory


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"results_dir": ""}, "results_dir= is empty"),
        ({"results_dir": "x" * 300}, "cannot be used .File name too long.: choose another"),
        ({"run_dir": "x" * 300}, "cannot be used .File name too long.: choose another"),
        ({"config_dir": ""}, "is not a folder"),
        *(({"results_dir": f"a{bad}b"}, "use one line of UTF-8 text") for bad in "\n\udc80"),
        ({"run_dir": "???"}, "use one line of UTF-8 text other than"),
        ({"algo": "dpsgd,choco"}, "algo=.*dpsgd,choco.* does not exist"),
    ],
)
def test_texts_that_cannot_be_settings_are_refused(tmp_path, monkeypatch, settings, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=expected):
        decentral.train("mlp", "digits", **{**SHORT, **settings})
    assert not list(tmp_path.iterdir())


def test_it_is_what_decentral_run_does_digit_for_digit(tmp_path, all_digits):
    often, run = "evaluation.every_epochs=0.2", tmp_path / "run"
    config = compose([*words(SHORT), often, "data=digits", "model=cnn", "processes=1", f"run_dir={run}"])
    assert carry_out(config) == 0

    def cnn() -> nn.Module:
        return config.model.build(config.data.inspect())

    for data in (all_digits, map(Pairs, all_digits)):
        result = decentral.train(cnn, *data, often, results_dir=tmp_path, **SHORT)
        assert metrics(result.metrics.to_dict("records")) == metrics(read_metrics(run))


def net(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))


def test_a_run_without_a_name_is_new_and_seeds_share_a_cell(tmp_path, digits):
    torch.manual_seed(1)
    module = net()
    for seed in (0, 0, 1):
        made = decentral.train(module, *digits, results_dir=tmp_path / str(seed), **(SHORT | {"seed": seed}))
        assert not made.reused
    assert len(decentral.runs(tmp_path / "0")) == 2
    for path in (tmp_path / "0" / "runs").iterdir():
        path.rename(tmp_path / "1" / "runs" / path.name)
    with pytest.warns(UserWarning, match="1 repeated run left out: the newest of equal settings counts"):
        assert set(decentral.table(tmp_path / "1", rows="algo").runs) == {2}
    decentral.train(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), *digits, results_dir=tmp_path / "1", **SHORT)
    with pytest.raises(ConfigError, match=r"differ in model\.num_parameters \(.*650.*\): name it in rows="):
        decentral.table(tmp_path / "1", rows="algo")
    for name, seed in (("a", 0), ("b", 1), ("c", 1)):
        decentral.train(module, *digits, results_dir=tmp_path / "named", name=name, **(SHORT | {"seed": seed}))
        if name == "b":
            assert set(decentral.table(tmp_path / "named", rows="algo").runs) == {2}
    with pytest.raises(ConfigError, match=r"differ in name \(.*\): name it in rows="):
        decentral.table(tmp_path / "named", rows="algo")
    assert set(decentral.table(tmp_path / "named", rows="name").runs) == {1}


def test_a_name_finds_its_run_again_with_the_same_settings_and_objects_only(tmp_path, digits, capsys):
    torch.manual_seed(1)
    module, twin = net(), net()
    few, relabeled = TensorDataset(*digits[0][:150]), labels_of(digits[0], lambda labels: labels.flip(0))

    def call(model: Any = module, data: Any = digits[0], **told: Any) -> Any:
        return decentral.train(model, data, digits[1], name="mine", results_dir=tmp_path, **(SHORT | told))

    first = call()
    again = call(save="none")
    assert again.reused and again.directory == first.directory
    assert f"Run 'mine' is already finished: reused from {first.directory}; use rerun" in capsys.readouterr().out
    for told, differs in (
        ({"lr": 0.2}, "lr=0.1, not lr=0.2"),
        ({"algo": "choco"}, "algo=dpsgd, not algo=choco"),
        ({"evaluation": {"every_epochs": 2}}, "evaluation.every_epochs=4.0, not"),
        ({"model": twin}, r"initial_weights=\w+, not initial_weights="),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, "model.num_parameters=1210, not"),
        ({"model": "mlp"}, "model=given, not model=mlp"),
        ({"data": few}, "data.num_train=200, not data.num_train=150"),
        ({"data": relabeled}, "labels="),
    ):
        with pytest.raises(ConfigError, match=f"name=mine has a run with {differs}.*another name, or rerun=True"):
            call(**told)
    named = decentral.load("mine", tmp_path, model=net)
    assert named.directory == first.directory and torch.equal(named.averaged[1].weight, first.averaged[1].weight)
    replaced = call(lr=0.2, rerun=True)
    assert replaced.directory == first.directory and not replaced.reused and replaced.settings["lr"] == 0.2
    assert call(lr=0.2).reused and not (first.directory / "before").exists()
    decentral.train("mlp", "digits", results_dir=tmp_path, **SHORT)
    assert decentral.runs(tmp_path).name.dropna().tolist() == ["mine"]


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "a\nb", "a\0", 3])
def test_what_cannot_be_a_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"name=.* (cannot be a run's name: use|is a int: give)"):
        decentral.train(nn.Linear(3, 3), PAIRS, PAIRS, name=name, results_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"name=mine belongs to decentral\.train: leave it out"):
        compose(["name=mine"])


def train_twice(rank: int) -> None:
    """A script under torchrun."""

    def call(**told: Any) -> list[Any]:
        shape = SHORT | {"num_workers": 2, "steps": 3, "alpha": 100}
        found = decentral.train(lambda: nn.Linear(6, 3), toy(), toy(), **(shape | told))
        return [found.directory.name, found.reused]

    with pytest.raises(ConfigError, match="name= is missing: under torchrun"):
        call()
    assert [call(name="both"), call(name="both")] == [[named_id("both"), False], [named_id("both"), True]]


@pytest.mark.slow
def test_processes_of_torchrun_find_their_run_by_its_name(tmp_path, ranks):
    told = ranks.call(train_twice, 2, tmp_path)
    assert ranks.codes == [0, 0], told


def test_it_is_loaded_as_the_hint_says_with_its_module_or_what_makes_it(tmp_path, digits, capsys):
    for model in (net, lambda num_classes: net(num_classes), net(), "mlp"):
        result = decentral.train(model, *digits, results_dir=tmp_path, **(SHORT | {"progress": True}))
        (hint,) = re.findall(r"(decentral\.load\(.*\)) reads it again", capsys.readouterr().out)
        loaded = eval(hint, {"decentral": decentral, "net": model})
        for mine, theirs in zip((*result.models, result.averaged), (*loaded.models, loaded.averaged), strict=True):
            assert all(map(torch.equal, mine.parameters(), theirs.parameters()))
    result = decentral.train(net, *digits, results_dir=tmp_path, **SHORT)
    with pytest.raises(ConfigError, match=r"was trained with a model or data from Python: give the module"):
        decentral.load(result.directory)
    with pytest.raises(ConfigError, match="is not what the run was trained with"):
        decentral.load(result.directory, model=nn.Linear(3, 3))


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.inner = scale, net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.scale * x)


class OwnError(Exception):
    """As a user's code raises it."""


class Failing(Scaled):
    """Fails after so many passes."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1.0)
        self.error, self.passes = error, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes > 6:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize("error", [OwnError("no"), ZeroDivisionError("no"), RuntimeError("no")])
def test_an_exception_in_ones_own_code_comes_with_its_place_and_ones_own_frames_alone(tmp_path, digits, error):
    with pytest.raises((OwnError, ZeroDivisionError, ConfigError)) as found:
        decentral.train(Failing(error), *digits, results_dir=tmp_path, **SHORT)
    cause = found.value.__cause__ if isinstance(error, RuntimeError) else found.value
    assert type(cause) is type(error)
    frames = traceback.extract_tb(cause.__traceback__)
    assert frames[-1].name == "forward" and all(frame.filename == __file__ for frame in frames if frame.name != "call")
    told = " ".join([str(found.value), *found.value.__notes__])
    assert f"test_train.py, line {frames[-1].lineno}" in told and "in step" in told


def with_nan(data: TensorDataset, value: float) -> TensorDataset:
    images = data.tensors[0].clone()
    images[3, 0, 0, 0] = value
    return TensorDataset(images, data.tensors[1])


@pytest.mark.parametrize("way", ["test", "infinite", "items"])
def test_a_run_that_diverges_for_its_data_says_so(tmp_path, digits, way):
    odd = with_nan(digits[way == "test"], float("inf" if way == "infinite" else "nan"))
    odd = Examples(len(odd), odd.__getitem__) if way == "items" else odd
    data = (digits[0], odd) if way == "test" else (odd, digits[1])
    split = "test" if way == "test" else "training"
    with pytest.warns(UserWarning, match=rf"data=given \({split}\): example 3 holds NaN or infinite numbers$"):
        decentral.train(net(), *data, results_dir=tmp_path, **(SHORT | {"lr": 0.01, "epochs": 2, "steps": None}))


def labels_of(data: TensorDataset, label: Callable[[torch.Tensor], torch.Tensor]) -> TensorDataset:
    return TensorDataset(data.tensors[0], label(data.tensors[1]))


def test_what_is_odd_about_labels_outputs_and_lengths_is_said_in_a_line(tmp_path, digits, capsys):
    few = labels_of(digits[0], lambda labels: labels % 8)
    decentral.train(lambda: net(12), few, digits[1], "epochs=3", results_dir=tmp_path, **SHORT)
    said = capsys.readouterr()
    assert "data=given: labels 8, 9 occur in test examples, but not in training examples\n" in said.out
    assert "model=given has 12 outputs, but the labels are 0 to 9\n" in said.out
    assert "warning: epochs=3 is ignored, because steps=8 is given: leave one of them out.\n" in said.err
    from_1 = [labels_of(data, lambda labels: labels + 1) for data in digits]
    with pytest.raises(ConfigError, match=r"returns .2, 10.: labels start from 0, but the smallest here is 1"):
        decentral.train(net(), *from_1, results_dir=tmp_path, **SHORT)
    decentral.train(lambda: net(11), *from_1, results_dir=tmp_path, **SHORT)
    assert "data=given: the smallest label is 1: labels start from 0; subtract 1\n" in capsys.readouterr().out


def test_a_run_that_has_begun_and_whose_process_is_gone_is_interrupted(tmp_path):
    result = decentral.train("mlp", "digits", results_dir=tmp_path, **SHORT)
    status = result.directory / "status.json"
    status.write_text(status.read_text().replace('"done"', '"running"'))
    (result.directory / "metrics.jsonl").write_text("")
    found = decentral.load(result.directory)
    assert found.status == "interrupted"
    with pytest.raises(ConfigError, match="has no metrics yet: it is interrupted"):
        found.plot()


def test_what_is_ours_goes_by_name(tmp_path):
    result = decentral.train("mlp", "digits", results_dir=tmp_path, **SHORT)
    assert result.settings["model"] == "mlp" and result.settings["data"] == "digits"
    axes = result.plot(x="bytes_sent")
    assert axes.get_ylabel() == "test accuracy (%)" and len(axes.lines) == 3
    worst = result.metrics.query("worker == 'worst' and metric == 'accuracy'").value
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * worst)
    figure = result.plot()
    titles = [panel.get_title("left") for part in figure.subfigs for panel in part.axes]
    assert titles[0] == "test accuracy" and "consensus distance" in titles
    with pytest.raises(ConfigError, match=r"metric=speed is not among the metrics of .*: test accuracy, test loss"):
        result.plot("speed")
    with pytest.raises(ConfigError, match=r"x=epochs is not an axis of .*\. Did you mean 'epoch'\?"):
        result.plot(x="epochs")
    assert result.plot("train loss").get_ylabel() == "train loss (nats)"


def test_the_list_of_runs_of_a_folder_without_runs_is_empty_and_of_no_folder_refused(tmp_path):
    assert decentral.runs(tmp_path)["status"].tolist() == []
    (tmp_path / "file").touch()
    for name in ("missing", "file", 300 * "x"):
        with pytest.raises(ConfigError, match="is not a folder: give one with runs"):
            decentral.runs(tmp_path / name)


def test_the_list_of_runs_has_what_applies_to_each_and_their_throughput(tmp_path):
    from decentral.cli.run import main

    common = ["num_workers=2", "steps=4", "device=cpu", "processes=1", "progress=false", f"results_dir={tmp_path}"]
    for words in (
        ["algo=allreduce", "data=digits", "model=mlp", "batch_size_per_worker=[8,16]"],
        ["algo=dpsgd", "task=quadratics"],
        ["algo=relay_mean", "task=mean_estimation"],
    ):
        assert exit_status(main, *words, *common) == 0
    runs = decentral.runs(tmp_path).set_index("algo")
    there = {algo: set(row.dropna().index) for algo, row in runs.iterrows()}
    heads = {algo: {key.partition(".")[0] for key in keys} for algo, keys in there.items()}
    assert not heads["allreduce"] & {"topology", "communication", "env"} and "topology" in heads["dpsgd"]
    assert {"data", "partition", "alpha", "batch_size"} <= heads["allreduce"]
    assert not heads["dpsgd"] & {"data", "env", "partition", "model", "alpha", "batch_size", "precision"}
    assert "optim.momentum" in there["dpsgd"] and not heads["relay_mean"] & {"lr", "optim", "schedule"}
    speed = runs["steps/s"] * 24 / runs["examples/s"]
    assert speed["allreduce"] == pytest.approx(1) and speed.isna().sum() == 2 and (runs["steps/s"] > 0).all()


def test_a_result_is_named_and_found_from_every_folder(tmp_path, digits, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = decentral.train(net(), *digits, results_dir="runs", **(SHORT | {"progress": True}))
    assert f"Result: {result.directory}; result.plot() draws it" in capsys.readouterr().out
    monkeypatch.chdir("/")
    assert len(result.plot("accuracy").lines) == 3 and result.plot().subfigs


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("mlp", "digits", TensorDataset(torch.zeros(3, 1))), {}, "includes test data"),
        ((3, "digits"), {}, "model= is a int: give a torch.nn.Module"),
        (("mlp", "digits"), {"alfa": 0.1}, "Did you mean 'alpha'"),
        ((nn.Linear(3, 3), "digits"), {}, "cannot take images of 1 x 8 x 8"),
        (
            ("mlp", "digits"),
            {"processes": 2},
            "processes=2 cannot be used with decentral.train, which works in this process",
        ),
        (
            ("mlp", PAIRS, PAIRS),
            {"data": "digits"},
            "data=digits is train_data of decentral.train: give 'digits' there",
        ),
        (
            ("mlp", "digits"),
            {"launcher": "slurm"},
            "launcher=slurm cannot be used with decentral.train, which works in this",
        ),
        (("mlp", "digits", None, "model=cnn"), {}, "model=cnn is the first argument of decentral.train"),
        (("mlp", *2 * [Subset(PAIRS, [0, 3])]), {}, "a Subset refers to example 3 of a data set with 3"),
        (
            ("mlp", *2 * [Examples(3, lambda number: next(iter([])))]),
            {},
            r"example 0 of 3 cannot be read \(.*, line \d+\): StopIter",
        ),
        (("mlp", *2 * [Examples(-1, PAIRS.__getitem__)]), {}, "the training data have no length: ValueError"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, arguments, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        decentral.train(*arguments, results_dir=tmp_path, **SHORT, **settings)


def train_net(tmp_path, digits, **settings):
    torch.manual_seed(1)
    return decentral.train(net(), *digits, results_dir=tmp_path, **(SHORT | settings))


def test_a_run_that_diverges_is_warned_of_and_leaves_its_metrics(tmp_path, digits):
    with pytest.warns(UserWarning, match="the run diverged, so it has metrics but no models"):
        result = train_net(tmp_path, digits, lr=1e30)
    assert result.status == "diverged" and result.averaged is None and len(result.metrics)


# -- what is the caller's ----------------------------------------------------------------------------------------------


def toy(n: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(n)
    return TensorDataset(torch.randn(n, 6, generator=generator, dtype=torch.float32), torch.arange(n) % 3)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_without_test_data_a_share_of_the_examples_is_held_out_or_it_is_refused(tmp_path):
    shape = {
        "results_dir": tmp_path,
        "num_workers": 2,
        "algo": "dpsgd",
        "topology": "ring",
        "batch_size": 4,
        "steps": 2,
    }
    with pytest.raises(ConfigError, match=r"test_data= is missing: .*; or data.test_share=0.2 holds out"):
        decentral.train(small(), toy(), **shape)
    with pytest.raises(ConfigError, match=r"returns test data: leave out data.test_share=0.25"):
        decentral.train(small(), toy(), toy(6), data={"test_share": 0.25}, **shape)
    result = decentral.train(small(), toy(), data={"test_share": 0.25}, **shape)
    head, *rows = csv.reader((result.directory / "partition.csv").read_text().splitlines())
    classes = [i for i, name in enumerate(head) if name.startswith("class_")]
    assert sum(int(row[i]) for row in rows for i in classes) == 36
    whole = decentral.train(small(), toy(), toy(), **shape)
    assert whole.directory != result.directory


def seeding() -> nn.Sequential:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    return small()


def test_trainings_in_threads_take_turns(tmp_path, capsys):
    """Their numbers are those of one after the other; one inside another does not wait."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))

    def losses(seed: int, where: str) -> list[float]:
        return trained(seed, where).metrics.value.tolist()

    def trained(seed: int, where: str) -> Any:
        settings = SHORT | {"seed": seed, "steps": 15}
        return decentral.train(net, toy(), toy(), results_dir=tmp_path / where, **settings)

    alone = [losses(seed, "alone") for seed in range(2)]
    assert "waits" not in capsys.readouterr().err
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda seed: losses(seed, "threads"), range(2))) == alone
    assert "this thread waits for another one" in capsys.readouterr().err

    def inner(x: Any, t: int) -> Any:
        trained(3, "inner")
        return x

    assert decentral.iterates("dpsgd", "ring", inner, np.ones((4, 1)), 1).shape == (2, 4, 1)


def test_a_given_module_is_counted_like_the_built_in_one():
    data = compose(["data=digits"]).data.inspect()
    mlp = compose(["data=digits", "model=mlp"]).model
    layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    for made in (nn.Sequential(*layers), lambda: nn.Sequential(*layers), nn.Sequential(*layers).double()):
        state = torch.get_rng_state()
        assert GivenModel.of(made).multiplications(data) == mlp.multiplications(data)
        assert torch.equal(state, torch.get_rng_state())


def global_state() -> list[Any]:
    """What a process shares with its caller."""
    torchs = torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    return [torchs, random.getstate(), np.random.get_state()[1].tolist(), os.environ.get("OMP_NUM_THREADS")]


class Interrupting(nn.Linear):
    """Ctrl-C in the middle of a step, after torch was set to something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            torch.set_default_dtype(torch.float64)
            torch.manual_seed(0)
            raise KeyboardInterrupt
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (small(), {}),
        (seeding, {}),
        (seeding, {"lr": 1e30}),
        (seeding, {"algo": "relaysgd"}),
        (nn.Sequential(Interrupting(6, 3)), {}),
    ],
    ids=["instance", "seeds", "seeds and diverges", "seeds and is refused", "is interrupted"],
)
def test_generators_types_and_threads_are_left_as_they_were(tmp_path, model, settings):
    torch.manual_seed(7)
    before = global_state()
    with suppress(ConfigError, KeyboardInterrupt), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = decentral.train(model, toy(), toy(24), results_dir=tmp_path, **(SHORT | settings))
        assert global_state() == before
        decentral.load(result.directory, model=model)
    assert global_state() == before


def values(result) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.averaged.parameters()])


def both(tmp_path, model, ways: tuple[str, ...] = ("loop", "auto"), **settings: Any) -> list[torch.Tensor]:
    """What is learned with `execution=loop` and with auto."""
    told = {"results_dir": tmp_path, **SHORT, "rerun": True, **settings}
    return [values(decentral.train(model, toy(), toy(24), execution=way, **told)) for way in ways]


class Making(nn.Module):
    """Makes tensors of the default type in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * torch.linspace(0, 1, 6)) + torch.zeros(3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_another_default_type_makes_no_difference(tmp_path, precision):
    torch.manual_seed(1)
    model = Making()
    usual = both(tmp_path, model, precision=precision)[0]
    torch.set_default_dtype(torch.float64)
    try:
        found = both(tmp_path, model, precision=precision)
    finally:
        torch.set_default_dtype(torch.float32)
    assert usual.dtype == getattr(torch, precision.replace("fp", "float")) and torch.equal(found[0], usual)


def test_the_mode_that_torch_is_in_makes_no_difference(tmp_path):
    model = small()
    usual = both(tmp_path, model)[0]
    for context in (torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu")):
        with context():
            assert torch.equal(both(tmp_path, model, ways=("loop",))[0], usual)


def test_what_computes_with_the_parameters_of_the_module_itself_is_refused(tmp_path):
    replaced, hooked, kept = small(), small(), small()
    held = {"replaced": replaced, "hooked": hooked}  # a copy does not know what is in there
    replaced.forward = lambda x: held["replaced"][3](held["replaced"][0](x))
    hooked.register_forward_hook(lambda module, inputs, output: output * held["hooked"][3].bias)
    kept[3].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    for model, sentence in (
        (replaced, "even in a copy"),
        (hooked, "even in a copy"),
        (kept, "use register_hook"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            decentral.train(model, toy(), toy(24), results_dir=tmp_path, **SHORT)
    bound = small()
    bound.forward = MethodType(lambda self, x: self[3](self[0](x)), bound)
    assert decentral.train(bound, toy(), toy(24), results_dir=tmp_path, **SHORT).status == "done"


class Writing(nn.Module):
    """Writes into what it is given, in a way of its own."""

    def __init__(self, way: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.way = nn.Linear(6, 3), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.way(x)
        return self.inner(x)


WAYS = {
    "in place": lambda x: x.mul_(0.3),
    "its data": lambda x: x.data.sub_(1),
    "as numpy": lambda x: np.negative(x.numpy(), out=x.numpy()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_that_writes_into_its_input_changes_nothing_for_others(tmp_path, way):
    train, test = toy(), toy(24)
    copies = [tensor.clone() for data in (train, test) for tensor in data.tensors]
    found = decentral.train(Writing(WAYS[way]), train, test, results_dir=tmp_path, **SHORT)
    assert all(map(torch.equal, copies, (*train.tensors, *test.tensors)))
    told = found.metrics.query("metric == 'loss' and split == 'test' and step == 8").set_index("worker")["value"]
    for worker, model in (*enumerate(found.models), ("averaged", found.averaged)):
        with torch.no_grad():
            expected = nn.functional.cross_entropy(model(test.tensors[0].clone()), test.tensors[1])
        assert told[worker] == pytest.approx(float(expected), rel=1e-5)


_PRESSED: list[bool] = []


class PressingCtrlC(nn.Linear):
    """Presses Ctrl-C in a forward pass of training, once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled() and not _PRESSED:
            _PRESSED.append(True)
            signal.raise_signal(signal.SIGINT)
        return super().forward(x.flatten(1))


def test_ctrl_c_is_a_keyboard_interrupt_and_the_same_call_resumes_a_run_with_a_name(tmp_path, digits):
    torch.manual_seed(1)
    net = nn.Sequential(PressingCtrlC(64, 10), nn.Dropout(0.1))

    def call(**told: Any) -> Any:
        return decentral.train(net, *digits, results_dir=tmp_path, **(SHORT | {"steps": 12} | told))

    for told, says in (({}, "begins a new run: give it name="), ({"name": "mine"}, "the same call resumes it")):
        _PRESSED.clear()
        with pytest.raises(KeyboardInterrupt, match=says):
            call(**told)
    assert decentral.runs(tmp_path).status.tolist() == ["interrupted"] * 2
    resumed, whole = call(name="mine"), call()
    assert resumed.status == "done" and not resumed.reused
    for one, other in zip(resumed.models, whole.models, strict=True):
        assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert metrics(resumed.metrics.to_dict("records")) == metrics(whole.metrics.to_dict("records"))
