"""`decentral.train`: one's own module and data sets, as objects."""

from __future__ import annotations

import os
import random
import signal
import traceback
import warnings
from collections.abc import Callable
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
from decentral.cli.single import carry_out
from decentral.config.composition import compose
from decentral.config.files import dump, load
from decentral.config.identity import run_directory
from decentral.config.overrides import literal
from decentral.errors import ConfigError
from decentral.script.given import GivenData, GivenModel
from decentral.store import read_metrics

SHORT = {"algo": "dpsgd", "topology": "ring", "num_workers": 4, "batch_size": 8, "steps": 8, "alpha": 0.1, "seed": 5,
         "progress": False, "device": "cpu"}  # fmt: skip


def words(settings: dict) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


@pytest.fixture(scope="module")
def digits() -> tuple[TensorDataset, TensorDataset]:
    """Normalised as data=digits is."""
    loaded = compose(["data=digits"]).data.load("cpu", 0)
    order = torch.arange(len(loaded.train_labels))[None]
    images, labels = next(loaded.train_batches(lambda step: order, range(1), 0, 1))
    test = next(loaded.test_batches(10_000))
    return TensorDataset(images[0], labels[0]), TensorDataset(*test)


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
    *("müller", "run=1", "Copy (1)", "a,b", "${seed}", "${oc.env:HOME}", "\\${x}", "a\\", "it's", 'say "x"', "'\\\""),
    *(
        "[1]",
        "{a: 1}",
        "~x",
        "#c",
        "a:b",
        " lead",
        "trail ",
        "1e3",
        "007",
        "null",
        "True",
        "nan",
        "@x",
        "*",
        "a\tb",
        "日本",
    ),
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
    results = [decentral.train("mlp", *digits, results_dir=Path(name), **SHORT) for _ in range(2)]
    assert {result.directory for result in results} == {Path(name, "runs", results[0].directory.name)}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    begun = decentral.train("mlp", *digits, results_dir=name, init=results[0].directory, **{**SHORT, "seed": 6})
    assert begun.settings["init"] == str(results[0].directory)
    assert len(decentral.runs(name)) == 2
    assert decentral.load(begun.directory.name, name, model=begun.models[0]).status == "done"


def test_the_folder_of_ones_own_components_has_any_name_and_a_part_its_name_in_a_dictionary(tmp_path, digits):
    folder = tmp_path / 'it\'s ${x}, "y"'
    (folder / "algo").mkdir(parents=True)
    (folder / "algo" / "fast.yaml").write_text("defaults:\n  - schema/choco@_here_\ngamma: 0.3\n")
    settings = {**SHORT, "algo": {"name": "fast", "gamma": 0.4}}
    result = decentral.train("mlp", *digits, config_dir=folder, results_dir=tmp_path / "r", **settings)
    assert (result.settings["algo"], result.settings["algo.gamma"]) == ("choco", 0.4)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"results_dir": ""}, "results_dir= is empty"),
        ({"results_dir": "x" * 300}, "cannot be used .File name too long.: choose another"),
        ({"run_dir": "x" * 300}, "cannot be used .File name too long.: choose another"),
        ({"config_dir": "x" * 300}, "is not a folder"),
        ({"init": "x" * 300}, "init=x*"),
        ({"run_dir": ""}, "run_dir= is empty"),
        ({"config_dir": ""}, "is not a folder"),
        *(({"results_dir": f"a{bad}b"}, "use a text in one line of UTF-8") for bad in "\n\r\0\udc80"),
        ({"run_dir": "???"}, "use a text in one line of UTF-8, other than"),
        ({"algo": "dpsgd,choco"}, "algo=.*dpsgd,choco.* does not exist"),
    ],
)
def test_texts_that_cannot_be_settings_are_refused(tmp_path, monkeypatch, settings, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=expected):
        decentral.train("mlp", "digits", **{**SHORT, **settings})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [lambda data: data, Pairs], ids=["tensors", "pairs"])
def test_it_is_what_decentral_run_does_digit_for_digit(tmp_path, digits, wrap):
    command = [
        *words(SHORT),
        "evaluation.every_epochs=0.2",
        "data=digits",
        "model=cnn",
        "processes=1",
        f"run_dir={tmp_path / 'run'}",
    ]
    config = compose(command)
    assert carry_out(config) == 0

    def cnn() -> nn.Module:
        return config.model.build(config.data.inspect())

    result = decentral.train(cnn, *map(wrap, digits), results_dir=tmp_path, evaluation={"every_epochs": 0.2}, **SHORT)
    assert metrics(result.metrics.to_dict("records")) == metrics(read_metrics(tmp_path / "run"))


def net(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))


def test_a_module_is_where_all_workers_start_and_stays_as_it_was(tmp_path, digits):
    torch.manual_seed(1)
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = decentral.train(module, *digits, "trace=true", results_dir=tmp_path, **SHORT)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training and len(result.models) == 4
    first = result.metrics[result.metrics.step == 0]
    assert first[first.metric == "consensus_distance"]["value"].item() == 0


def test_the_same_call_computes_nothing_again_and_another_model_is_another_run(tmp_path, digits):
    torch.manual_seed(1)
    module = net()
    first = decentral.train(module, *digits, results_dir=tmp_path, **SHORT)
    written = (first.directory / "metrics.jsonl").stat().st_mtime_ns
    again = decentral.train(module, *digits, results_dir=tmp_path, **SHORT)
    assert again.directory == first.directory and (first.directory / "metrics.jsonl").stat().st_mtime_ns == written
    with torch.no_grad():
        module[1].bias[0] += 1
    assert decentral.train(module, *digits, results_dir=tmp_path, **SHORT).directory != first.directory
    assert len(decentral.runs(tmp_path)) == 2


def test_it_can_be_loaded_with_its_module(tmp_path, digits):
    result = decentral.train(net(), *digits, results_dir=tmp_path, **SHORT)
    loaded = decentral.load(result.directory, model=net)
    for mine, theirs in zip((*result.models, result.averaged), (*loaded.models, loaded.averaged), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine.parameters(), theirs.parameters(), strict=True))
    with pytest.raises(ConfigError, match=r"was trained with a model or data from Python: give the module"):
        decentral.load(result.directory)
    with pytest.raises(ConfigError, match="is not what the run was trained with"):
        decentral.load(result.directory, model=nn.Linear(3, 3))


class Edited(nn.Sequential):
    """A module whose forward, attribute, helper or hook is edited after training."""

    slope = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.slope * x)


def lazy() -> nn.Module:
    return Edited(nn.Flatten(), nn.LazyLinear(10))


def rewritten(self: Edited, x: torch.Tensor) -> torch.Tensor:
    return super(Edited, self).forward(self.slope * x + 1)


@pytest.mark.parametrize("given", ["module", "function"])
def test_other_code_or_attributes_than_those_of_the_run_are_warned_of(tmp_path, digits, monkeypatch, given):
    module = lazy()
    result = decentral.train(module if given == "module" else lazy, *digits, results_dir=tmp_path, **SHORT)
    for same in (module, lazy(), lazy):
        decentral.load(result.directory, model=same)  # warnings are errors
    steeper, hooked = lazy(), lazy()
    steeper.slope = 2.0
    hooked.register_forward_hook(lambda mod, args, out: 2 * out)
    for other in (steeper, hooked):
        with pytest.warns(UserWarning, match="trained with, in the attributes of Edited: its outputs may not be those"):
            decentral.load(result.directory, model=other)
    monkeypatch.setattr(Edited, "forward", rewritten)
    with pytest.warns(UserWarning, match=r"in the code of Edited"):
        decentral.load(result.directory, model=lazy)
    provenance = result.directory / "provenance.json"
    provenance.write_text(provenance.read_text().replace('"code"', '"of_an_older_version"'))
    decentral.load(result.directory, model=lazy)


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


def test_an_item_that_cannot_be_read_is_named_with_the_line_that_reads_it(tmp_path):
    data = Examples(48, lambda number: (torch.zeros(6), 1 // (40 - number) * 0))
    with pytest.raises(ConfigError, match=r"example 40 of 48 cannot be read \(.*test_train.py, line \d+\): ZeroDiv"):
        decentral.train(nn.Linear(6, 3), data, data, results_dir=tmp_path, **SHORT)


def with_nan(data: TensorDataset, value: float) -> TensorDataset:
    images = data.tensors[0].clone()
    images[3, 0, 0, 0] = value
    return TensorDataset(images, data.tensors[1])


@pytest.mark.parametrize("way", ["training", "test", "infinite", "items"])
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
    assert "data=given: no training example has the label 8, 9, which test examples have\n" in said.out
    assert "model=given has 12 outputs, but the labels are 0 to 9\n" in said.out
    assert "warning: epochs=3 does not count beside steps=8: leave one of them out.\n" in said.err
    from_1 = [labels_of(data, lambda labels: labels + 1) for data in digits]
    with pytest.raises(ConfigError, match=r"gives .2, 10.: labels count from 0, and the smallest here is 1"):
        decentral.train(net(), *from_1, results_dir=tmp_path, **SHORT)
    decentral.train(lambda: net(11), *from_1, results_dir=tmp_path, **SHORT)
    assert "data=given: the smallest label is 1, but labels count from 0: subtract 1\n" in capsys.readouterr().out


def on_meta(part: str) -> nn.Module:
    module = net()
    module.register_buffer("b", torch.zeros(3, device="meta" if part == "b" else "cpu"))
    return module.to("meta") if part == "1.weight" else module


@pytest.mark.parametrize("part", ["1.weight", "b"])
def test_modules_without_numbers_are_refused(tmp_path, digits, part):
    with pytest.raises(ConfigError, match=rf"its {part} is on the device meta, without numbers: make the module on"):
        decentral.train(lambda: on_meta(part), *digits, results_dir=tmp_path, **SHORT)


def test_within_another_device_training_is_on_its_own(tmp_path, digits):
    module = net()
    with torch.device("meta"):
        result = decentral.train(module, *digits, results_dir=tmp_path, **SHORT)
        assert torch.zeros(1).is_meta
    assert not torch.zeros(1).is_meta and not result.averaged[1].weight.is_meta


def test_what_loads_a_run_is_called_without_arguments_and_has_to_be_what_can_be(tmp_path, digits):
    result = decentral.train(lambda num_classes: net(num_classes), *digits, results_dir=tmp_path, **SHORT)
    with pytest.raises(ConfigError, match=r"model=make is called without arguments here, but: missing .*num_classes"):
        decentral.load(result.directory, model=make)


def make(num_classes: int) -> nn.Module:
    return net(num_classes)


def test_a_run_that_has_begun_and_whose_process_is_gone_is_interrupted(tmp_path):
    result = decentral.train("mlp", "digits", results_dir=tmp_path, **SHORT)
    status = result.directory / "status.json"
    status.write_text(status.read_text().replace('"done"', '"running"'))
    (result.directory / "metrics.jsonl").write_text("")
    found = decentral.load(result.directory)
    assert found.status == "interrupted"
    with pytest.raises(ConfigError, match="has no metrics yet: it is interrupted"):
        found.plot()


def test_what_is_no_id_and_no_directory_is_refused():
    with pytest.raises(ConfigError, match=r"run=None is no run: give its id, as decentral.runs\(\) has them"):
        decentral.load(None)


def test_what_is_ours_goes_by_name(tmp_path):
    result = decentral.train("mlp", "digits", results_dir=tmp_path, **SHORT)
    assert result.settings["model"] == "mlp" and result.settings["data"] == "digits"
    axes = result.plot(x="bytes_sent")
    assert axes.get_ylabel() == "test accuracy (%)" and len(axes.lines) == 3
    worst = result.metrics.query("worker == 'worst' and metric == 'accuracy'").value
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * worst)
    with pytest.raises(ConfigError, match=r"metric=speed is not among the metrics of .*: accuracy, loss"):
        result.plot("speed")


def test_a_result_is_named_and_found_from_every_folder(tmp_path, digits, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = decentral.train(net(), *digits, results_dir="runs", **(SHORT | {"progress": True}))
    assert f"Result: {result.directory}; result.plot() draws it" in capsys.readouterr().out
    monkeypatch.chdir("/")
    assert len(result.plot().lines) == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("mlp", "digits", TensorDataset(torch.zeros(3, 1))), {}, "has test data of its own"),
        (("mlp", TensorDataset(torch.zeros(3, 1))), {}, "test_data= is missing"),
        ((3, "digits"), {}, "model= is a int: give a torch.nn.Module"),
        (("mlp", "digits"), {"alfa": 0.1}, "Did you mean 'alpha'"),
        (("mlp", [1, 2], [3]), {}, "an example has to be a pair"),
        ((nn.Linear(3, 3), "digits"), {}, "cannot take images of 1 x 8 x 8"),
        (("mlp", "digits"), {"processes": 2}, "processes=2 is not for decentral.train, which works in this process"),
        (
            ("mlp", PAIRS, PAIRS),
            {"data": "digits"},
            "data=digits is train_data of decentral.train: give 'digits' there",
        ),
        (("mlp", "digits", None, "processes=4"), {}, "processes=4 is not for decentral.train"),
        (("mlp", "digits"), {"launcher": "slurm"}, "launcher=slurm is not for decentral.train, which works in this"),
        (("mlp", "digits", None, "results_dir=x"), {}, "results_dir=x is the argument results_dir of decentral.train"),
        (("mlp", "digits", None, "model=cnn"), {}, "model=cnn is the first argument of decentral.train"),
        (("mlp", *2 * [Subset(PAIRS, [0, 3])]), {}, "a Subset has example 3 of a data set that has 3"),
        (("mlp", *2 * [Examples(3, lambda number: None)]), {}, "a pair .*, but example 0 is a NoneType"),
        (
            ("mlp", *2 * [Examples(3, lambda number: next(iter([])))]),
            {},
            r"example 0 of 3 cannot be read \(.*, line \d+\): StopIter",
        ),
        (("mlp", *2 * [Examples(3, lambda number: (torch.zeros(3), torch.zeros(number + 1)))]), {}, "whole numbers"),
        (("mlp", *2 * [Examples(-1, PAIRS.__getitem__)]), {}, "the training data have no length: ValueError"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, arguments, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        decentral.train(*arguments, results_dir=tmp_path, **SHORT, **settings)


def train_net(tmp_path, digits, **settings):
    torch.manual_seed(1)
    return decentral.train(net(), *digits, results_dir=tmp_path, **(SHORT | settings))


def test_rerun_computes_a_finished_run_again(tmp_path, digits):
    first = train_net(tmp_path, digits)
    assert train_net(tmp_path, digits).metrics.equals(first.metrics), "nothing is computed again"
    again = train_net(tmp_path, digits, rerun=True)
    assert again.directory == first.directory and not again.metrics.wall_s.equals(first.metrics.wall_s)
    assert metrics(again.metrics.to_dict("records")) == metrics(first.metrics.to_dict("records"))


def test_a_run_that_diverges_is_warned_of_and_leaves_its_metrics(tmp_path, digits):
    with pytest.warns(UserWarning, match="the run diverged, so that it has metrics but no models"):
        result = train_net(tmp_path, digits, lr=1e30)
    assert result.status == "diverged" and result.averaged is None and len(result.metrics)


def test_torch_has_as_many_threads_as_before(tmp_path, digits):
    torch.set_num_threads(1)
    train_net(tmp_path, digits)
    assert torch.get_num_threads() == 1


def test_components_of_ones_own_are_found_in_their_folder(tmp_path, digits):
    (tmp_path / "mine" / "algorithms").mkdir(parents=True)
    (tmp_path / "mine" / "algorithms" / "lazy.py").write_text(
        """from dataclasses import dataclass
from decentral.algorithms.dpsgd import DPSGD

@dataclass
class Lazy(DPSGD):
    \"\"\"D-PSGD by another name.\"\"\"

    name: str = "lazy"
"""
    )
    mine = tmp_path / "mine"
    result = train_net(tmp_path, digits, algo="lazy", config_dir=mine)
    found = decentral.load(result.directory, model=net, config_dir=mine)
    assert found.settings["algo"] == "lazy" and len(found.models) == 4


def test_a_run_without_networks_has_metrics_only(tmp_path):
    assert carry_out(compose(["task=quadratics", "num_workers=3", "steps=4", f"run_dir={tmp_path / 'run'}"])) == 0
    found = decentral.load(tmp_path / "run")
    assert found.models == [] and found.averaged is None and len(found.metrics)
    assert repr(found) == f"Trained(directory={found.directory!r}, status='done')"


def shifted(data: TensorDataset) -> TensorDataset:
    images, labels = data.tensors
    return TensorDataset(images, (labels + 1) % 10)


class Halved(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(0.5 * self.scale * x)


def test_other_test_labels_another_forward_and_another_attribute_are_other_runs(tmp_path, digits):
    train, test = digits
    digests = {GivenData.of(train, test).content, GivenData.of(train, shifted(test)).content}
    assert len(digests) == 2

    def content(cls: type, scale: float) -> str:
        torch.manual_seed(0)
        return GivenModel.of(cls(scale)).content

    assert content(Scaled, 1.0) == content(Scaled, 1.0)
    assert len({content(Scaled, 1.0), content(Scaled, 2.0), content(Halved, 1.0)}) == 3


def test_a_function_that_takes_the_number_of_classes_makes_what_is_returned_too(tmp_path, digits):
    def make(num_classes: int) -> nn.Module:
        return net(num_classes)

    result = decentral.train(make, *digits, results_dir=tmp_path, **SHORT)
    assert len(result.models) == 4 and result.averaged is not None


def test_a_partial_is_what_it_has_fixed(tmp_path):
    wide, narrow = (GivenModel.of(partial(Scaled, scale=scale)).content for scale in (1.0, 2.0))
    assert wide != narrow and wide == GivenModel.of(partial(Scaled, scale=1.0)).content


class Activated(Scaled):
    def __init__(self, activation: object) -> None:
        super().__init__(1.0)
        self.activation = activation


def test_what_a_function_has_from_around_it_and_what_modules_hold_make_other_runs():
    def scaled(scale: float) -> Callable[[], nn.Module]:
        return lambda: Scaled(scale)

    def with_default(scale: float) -> Callable[..., nn.Module]:
        def make(*, by: float = scale) -> nn.Module:
            return Scaled(by)

        return make

    def module(make: Callable[[], nn.Module]) -> str:
        torch.manual_seed(0)
        return GivenModel.of(make()).content

    for alike in (scaled, with_default):
        one, same, other = (GivenModel.of(alike(scale)).content for scale in (1.0, 1.0, 2.0))
        assert one == same != other
    layers = [partial(nn.TransformerEncoderLayer, 8, heads, 16) for heads in (2, 4)]
    held = [torch.relu, torch.tanh, {"inner": torch.relu}, {"inner": torch.tanh}, torch.float16, torch.bfloat16]
    made = [*layers, *(partial(Activated, one) for one in held)]
    assert len({module(make) for make in made}) == len(made) == len([*layers, *held])
    assert module(made[0]) == module(made[0])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0.5, 1.5, 0.0, 1.0], r"labels have to be whole numbers \(integers\) from 0 upwards"),
        ([0, 1, 2.0, 1], r"example 2 has the label 2.0, .*: give int\(label\), or labels.long\(\) of a tensor"),
        ([0, 1, 2, 10**9], "a label is 1,000,000,000 in only 8 examples: labels count from 0, as 0, 1, 2"),
    ],
)
def test_labels_that_are_none_are_refused(labels, said):
    few = Examples(4, lambda number: (torch.zeros(3), labels[number]))
    with pytest.raises(ConfigError, match=said):
        GivenData.of(few, few)


# -- what is the caller's ----------------------------------------------------------------------------------------------


def toy(n: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(n)
    return TensorDataset(torch.randn(n, 6, generator=generator, dtype=torch.float32), torch.arange(n) % 3)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def seeding() -> nn.Sequential:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    torch.set_default_dtype(torch.float64)
    return small()


def global_state() -> list[Any]:
    """What a process shares with its caller."""
    torchs = torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    return [torchs, random.getstate(), np.random.get_state()[1].tolist(), os.environ.get("OMP_NUM_THREADS")]


@pytest.mark.parametrize("model", [small(), small, seeding], ids=["instance", "function", "seeds"])
@pytest.mark.parametrize("settings", [{}, {"lr": 1e30}, {"algo": "relaysgd"}], ids=["done", "diverged", "refused"])
def test_generators_types_and_threads_are_left_as_they_were(tmp_path, model, settings):
    torch.manual_seed(7)
    before = global_state()
    with suppress(ConfigError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = decentral.train(model, toy(), toy(24), results_dir=tmp_path, **(SHORT | settings))
        assert global_state() == before
        decentral.load(result.directory, model=model)
    assert global_state() == before


class Interrupting(nn.Linear):
    """Ctrl-C in the middle of a step, after torch was set to something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            torch.set_default_dtype(torch.float64)
            torch.manual_seed(0)
            raise KeyboardInterrupt
        return super().forward(x)


def test_they_are_so_after_an_interruption_too(tmp_path):
    model, before = nn.Sequential(Interrupting(6, 3)), global_state()
    with pytest.raises(KeyboardInterrupt):
        decentral.train(model, toy(), toy(24), results_dir=tmp_path, **SHORT)
    assert global_state() == before


def values(result) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.averaged.parameters()])


def both(tmp_path, model, *overrides: str, **settings: Any) -> list[torch.Tensor]:
    """What is learnt with `execution=loop` and with auto."""
    told = {"results_dir": tmp_path, **SHORT, "rerun": True, **settings}
    return [
        values(decentral.train(model, toy(), toy(24), *overrides, execution=way, **told)) for way in ("loop", "auto")
    ]


class Making(nn.Module):
    """Makes tensors of the default type in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * torch.linspace(0, 1, 6)) + torch.zeros(3)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("make", [small, Making])
def test_another_default_type_makes_no_difference(tmp_path, make, precision):
    torch.manual_seed(1)
    model = make()
    usual = both(tmp_path, model, precision=precision)[0]
    torch.set_default_dtype(torch.float64)
    try:
        found = both(tmp_path, model, precision=precision)
    finally:
        torch.set_default_dtype(torch.float32)
    assert usual.dtype == getattr(torch, precision.replace("fp", "float")) and torch.equal(found[0], usual)


def test_another_default_device_makes_no_difference(tmp_path):
    model, data = small(), (toy(), toy(24))
    torch.set_default_device("meta")
    try:
        result = decentral.train(model, *data, results_dir=tmp_path, **SHORT)
        assert torch.get_default_device().type == "meta" and result.averaged[0].weight.device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_a_module_in_float64_begins_with_its_very_numbers(tmp_path):
    model = small().double()
    found = decentral.train(model, toy(), toy(24), results_dir=tmp_path, precision="fp64", **(SHORT | {"lr": 0}))
    assert torch.allclose(values(found), torch.cat([p.flatten() for p in model.parameters()]), rtol=1e-15, atol=0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu")])
def test_the_mode_that_torch_is_in_makes_no_difference(tmp_path, context):
    model = small()
    usual = both(tmp_path, model)
    with context():
        assert torch.equal(both(tmp_path, model)[0], usual[0])


def test_parts_in_evaluation_mode_stay_so(tmp_path):
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    model[1].eval()
    found = decentral.train(model, toy(), toy(24), results_dir=tmp_path, **SHORT)
    assert all(torch.equal(one[1].running_mean, torch.zeros(3)) for one in found.models)
    assert model.training and not model[1].training


def test_hooks_of_parameters_are_those_of_every_worker(tmp_path):
    model = small()
    model[0].weight.register_hook(torch.zeros_like)
    before = model[0].weight.detach().clone()
    found = decentral.train(model, toy(), toy(24), results_dir=tmp_path, **SHORT)
    assert torch.allclose(found.averaged[0].weight, before, rtol=1e-6)


def test_what_computes_with_the_parameters_of_the_module_itself_is_refused(tmp_path):
    replaced, hooked, kept = small(), small(), small()
    held = {"replaced": replaced, "hooked": hooked}  # a copy does not know what is in there
    replaced.forward = lambda x: held["replaced"][3](held["replaced"][0](x))
    hooked.register_forward_hook(lambda module, inputs, output: output * held["hooked"][3].bias)
    kept[3].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    for model, sentence in (
        (replaced, "also in a copy of it"),
        (hooked, "also in a copy"),
        (kept, "use register_hook"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            decentral.train(model, toy(), toy(24), results_dir=tmp_path, **SHORT)
    bound = small()
    bound.forward = MethodType(lambda self, x: self[3](self[0](x)), bound)
    assert decentral.train(bound, toy(), toy(24), results_dir=tmp_path, **SHORT).status == "done"


class Writing(nn.Module):
    """Writes into what it is given, in a way of its own, from the call of this number on."""

    def __init__(self, way: Callable[[torch.Tensor], Any], first: int = 0) -> None:
        super().__init__()
        self.inner, self.way, self.first, self.calls = nn.Linear(6, 3), way, first, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.first:
            self.way(x)
        return self.inner(x)


WAYS = {
    "in place": lambda x: x.mul_(0.3),
    "a view": lambda x: x[:, 1].zero_(),
    "detached": lambda x: x.detach().sub_(1),
    "its data": lambda x: x.data.sub_(1),
    "as numpy": lambda x: np.negative(x.numpy(), out=x.numpy()),
    "out=": lambda x: torch.exp(x, out=x),
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


def test_one_that_begins_to_write_later_is_noticed(tmp_path):
    found = decentral.train(Writing(WAYS["in place"], 8), toy(), toy(24), results_dir=tmp_path, **SHORT)
    told = found.metrics.query("metric == 'loss' and split == 'test' and step == 8").set_index("worker")["value"]
    test = toy(24)
    for worker, model in enumerate(found.models):
        with torch.no_grad():
            expected = nn.functional.cross_entropy(model.inner(test.tensors[0] * 0.3), test.tensors[1])
        assert told[worker] == pytest.approx(float(expected), rel=1e-5)


class PressingCtrlC(nn.Linear):
    """Presses Ctrl-C in a forward pass of training, once."""

    pressed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled() and not PressingCtrlC.pressed:
            PressingCtrlC.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().forward(x.flatten(1))


def test_ctrl_c_is_a_keyboard_interrupt_and_the_same_call_resumes(tmp_path, digits):
    net = PressingCtrlC(64, 10)
    with pytest.raises(KeyboardInterrupt, match="the same call resumes it"):
        decentral.train(net, *digits, results_dir=tmp_path, **(SHORT | {"steps": 400}))
    (run,) = decentral.runs(tmp_path).to_dict("records")
    assert run["status"] == "interrupted"
