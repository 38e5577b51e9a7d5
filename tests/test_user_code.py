"""Users' modules and data sets against plain PyTorch: every entry of `tests/user_table.py`, in every way."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import decentral
from conftest import Result
from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.passes.worker_models import WorkerModels, seed_draws
from decentral.network.world import World
from decentral.partition.partition import IID
from decentral.registry import component
from decentral.script.given import GivenData
from decentral.store.models import load_models
from decentral.store.run_store import RunStore
from decentral.tasks.problems.batches import BatchOrder
from user_table import CLASSES, DATA, MODULES, DataEntry, Entry, Net, toy
from worlds import carry_out

LR, STEPS, BATCH = 0.1, 6, 4
SETTINGS: dict[str, Any] = {
    "lr": LR, "steps": STEPS, "batch_size": BATCH, "partition": "iid", "schedule": "constant", "precision": "fp64",
    "optim": {"momentum": 0}, "progress": False, "device": "cpu", "trace": True, "seed": 3,
    "evaluation": {"every_epochs": 100},
}  # fmt: skip


def each(entries: dict[str, Any], slow: int = 1, first: int = 0) -> Any:
    """Make a case of each entry; one of `slow` in a row is quick, from `first` on."""
    marks = [[] if number % slow == first else pytest.mark.slow for number in range(len(entries))]
    cases = zip(entries.items(), marks, strict=True)
    return pytest.mark.parametrize("entry", [pytest.param(entry, id=name, marks=mark) for (name, entry), mark in cases])


TRAINED = {name: entry for name, entry in MODULES.items() if not entry.refused}
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(1)


def train(module: Any, data: tuple[Dataset, Dataset], tmp_path: Path, **chosen: Any) -> decentral.Trained:
    return decentral.train(module, *data, results_dir=tmp_path, **{**SETTINGS, **chosen})


def _copied(example: Any) -> tuple[Tensor, int]:
    """Before the next one is read: they may be one memory."""
    return torch.as_tensor(example[0]).detach().clone(), int(example[1])


def batches(
    train_set: Dataset, num_workers: int, batch_size: int = BATCH
) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """(worker, step) -> the examples that this worker draws in this step, read by `__getitem__`."""
    labels = np.array([int(train_set[i][1]) for i in range(len(train_set))])  # type: ignore[arg-type]
    parts = IID().indices(labels, num_workers, SETTINGS["seed"])
    order = BatchOrder(parts, range(num_workers), batch_size, SETTINGS["seed"], reshuffle=True, drop_last=True)

    def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
        examples = [_copied(train_set[int(i)]) for i in order.row(worker, step)]
        return torch.stack([x for x, _ in examples]).double(), torch.tensor([y for _, y in examples])

    return batch


def plain(module: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], steps: int = STEPS) -> nn.Module:
    """The module after `steps` of torch's SGD; what a forward draws at random is addressed as in a run."""
    module = module.double().train()
    optimizer = torch.optim.SGD(module.parameters(), LR)
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        seed_draws(torch.device("cpu"), SETTINGS["seed"], 0, step)
        F.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    return module.eval()


def same_state(found: nn.Module, wanted: nn.Module, atol: float = 1e-12) -> None:
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(
                ours[name], value, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
            )
        else:
            assert ours[name] == value


def outputs(module: nn.Module, data: Dataset) -> Tensor:
    """In the order of the data set, without gradients; drawn as in an evaluation."""
    inputs = torch.stack([_copied(data[i])[0] for i in range(len(data))]).double()  # type: ignore[arg-type]
    seed_draws(torch.device("cpu"), SETTINGS["seed"], 0, purpose="evaluation")
    with torch.no_grad():
        return module(inputs)


def told(result: decentral.Trained, worker: int | str, metric: str = "loss") -> float:
    rows = result.metrics.query("metric == @metric and split == 'test'")
    return float(rows[rows.step == rows.step.max()].set_index("worker").value[worker])


def loss_of(module: nn.Module, data: Dataset) -> float:
    labels = torch.tensor([int(data[i][1]) for i in range(len(data))])  # type: ignore[arg-type]
    return float(F.cross_entropy(outputs(module, data), labels))


@each(MODULES, slow=6)
def test_training_is_plain_pytorch_and_is_stored_and_evaluated_as_it_is(entry: Entry, tmp_path: Path) -> None:
    """Alone or, where plain PyTorch can do the same, of four workers on their joint batch."""
    module, data, num_workers = entry.make(), toy(entry.inputs), 4 if entry.joint else 1
    if entry.refused:
        with pytest.raises(ConfigError, match=entry.refused) as said:
            train(module, data, tmp_path, algo="allreduce", num_workers=1)
        assert "\n" not in str(said.value)
        return
    before = copy.deepcopy(_state(module))
    inputs = data[0].tensors[0].clone()
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    result = train(module, data, tmp_path, algo="allreduce", num_workers=num_workers)
    assert torch.equal(torch.random.get_rng_state(), state), "the global random state has changed"
    assert module.training and all(p.grad is None for p in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in _state(module).items())
    assert torch.equal(data[0].tensors[0], inputs), "the inputs have changed"

    batch = batches(data[0], num_workers)

    def joint(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*(batch(worker, step) for worker in range(num_workers)), strict=True)
        return torch.cat(inputs), torch.cat(targets)

    wanted = plain(_fresh(entry), joint)
    loss = pytest.approx(loss_of(wanted, data[1]), abs=1e-10)
    for model in (*result.models, result.averaged) if entry.joint else result.models:
        same_state(model, wanted, atol=1e-11)
    assert told(result, "averaged" if entry.joint else 0) == loss
    if not entry.stored:
        return
    again = decentral.load(result.directory, model=entry.make())
    same_state(again.models[0], wanted, atol=1e-11)
    torch.testing.assert_close(outputs(again.models[0], data[1]), outputs(wanted, data[1]), rtol=0, atol=1e-11)
    assert told(result, "averaged") == pytest.approx(loss_of(again.averaged, data[1]), abs=1e-10)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Its tensors that there are."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _fresh(entry: Entry) -> nn.Module:
    torch.manual_seed(1)
    return entry.make()


@each(TRAINED, slow=12, first=2)
def test_executions_and_processes_agree(entry: Entry, worlds: Any, tmp_path: Path) -> None:
    """In the loop, as it is chosen (side by side where possible) and, where the module has state or draws, in two
    processes."""
    config, found, module = composed(entry), {}, _fresh(entry)
    plain_weights = entry.joint and len(module.state_dict()) == len(list(module.parameters()))
    for way in ("loop", "auto", "two"):
        chosen = replace(config, execution="loop" if way == "loop" else "auto", run_dir=str(tmp_path / way))
        if way != "two":
            carry_out(World(0, 1, torch.device("cpu")), chosen, -1, -1)
        elif entry.stored and not plain_weights:
            assert worlds(2).call(carry_out, chosen, -1, -1) == ["done", "done"]
        else:
            continue
        found[way] = Result("done", tmp_path / way), load_models(tmp_path / way)
    loop, models = found.pop("loop")
    for result, tensors in found.values():
        np.testing.assert_allclose(result.iterates, loop.iterates, rtol=0, atol=1e-12)
        for ours, theirs in zip(result.rows, loop.rows, strict=True):
            assert ours == theirs | {"value": pytest.approx(theirs["value"], abs=1e-9)}
        for model, values in models.items():
            for key, value in values.items():
                torch.testing.assert_close(tensors[model][key], value, rtol=0, atol=1e-12)


DRAWING = ("dropout", "dropout_always", "dropout_later", "depth_of_python", "depth_of_numpy")
CHANGING = ("ema_assigned_anew", "extra_state", "teacher")


@each({name: TRAINED[name] for name in (*DRAWING, *CHANGING)}, slow=3)
def test_draws_and_state_are_the_same_after_an_interruption(entry: Entry, tmp_path: Path) -> None:
    def run(directory: str, interrupt_at: int) -> str:
        config = replace(composed(entry), run_dir=str(tmp_path / directory))
        return str(carry_out(World(0, 1, torch.device("cpu")), config, -1, interrupt_at))

    assert run("straight", -1) == "done" and run("broken", 3) == "interrupted"
    torch.rand(1), np.random.rand(), random.random()
    assert run("broken", -1) == "done"
    straight, resumed = (Result("done", tmp_path / directory) for directory in ("straight", "broken"))
    np.testing.assert_array_equal(resumed.iterates, straight.iterates)
    assert resumed.rows == straight.rows


def composed(entry: Entry) -> Config:
    """A run of four workers on a ring, as on the command line."""
    name = next(name for name, other in TRAINED.items() if other is entry)
    model = component("models", f"user_table:make_{name}")
    assert model is not None
    return replace(on_a_ring(entry.inputs), model=model())


@cache
def on_a_ring(inputs: str) -> Config:
    fits = next(name for name, entry in TRAINED.items() if entry.inputs == inputs)
    return compose(
        [
            *("algo=dpsgd", "topology=ring", "num_workers=4", "batch_size=4", "steps=6", "partition=iid"),
            *("precision=fp64", "trace=true", "progress=false", "device=cpu", f"model=user_table:make_{fits}"),
            *(f"data=user_table:data_of_{inputs}", "evaluation.every_epochs=1"),
        ]
    )


@pytest.mark.slow
@each(DATA)
def test_data_are_what_getitem_returns(entry: DataEntry, tmp_path: Path) -> None:
    data = entry.make()
    if entry.refused:
        with pytest.raises(ConfigError, match=entry.refused):
            train(nn.Linear(6, CLASSES), data, tmp_path, algo="allreduce", num_workers=1)
        return
    result = train(_linear(), data, tmp_path, algo="allreduce", num_workers=1)
    batch = batches(data[0], 1)
    wanted = plain(_linear(), lambda step: batch(0, step))
    same_state(result.models[0], wanted)
    assert told(result, 0) == pytest.approx(loss_of(wanted, data[1]), abs=1e-10)


def _linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, CLASSES)


def test_workers_share_frozen_weights_until_one_is_written() -> None:
    net = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, CLASSES))
    models, initial = WorkerModels(net, 3, torch.device("cpu")), net[0].weight.clone()
    weights = [module.get_parameter("0.weight") for module in models.modules]
    address: Any = torch._C._data_address  # type: ignore[attr-defined]
    assert len({address(weight) for weight in weights}) == 1
    before = models.state()
    weights[1].data.mul_(2)
    models.for_tests(1)
    after = copy.deepcopy(models.state())
    assert [state["tensors"]["0.weight"] is None for state in after] == [True, False, True]
    assert torch.equal(weights[0], initial) and torch.equal(weights[1], 2 * initial)
    for states, factor in ((before, 1), (after, 2)):
        models.load_state(states)
        assert torch.equal(weights[1], factor * initial)


def test_a_frozen_part_in_half_precision_stays_as_it_is(tmp_path: Path) -> None:
    half = nn.Linear(6, 6).bfloat16().requires_grad_(False)
    net = Net(lambda m, x: m.l(m.h(x.bfloat16()).to(x.dtype)), l=nn.Linear(6, CLASSES), h=half)
    found = train(net, toy(), tmp_path, precision="fp32", num_workers=1, algo="allreduce").models[0]
    assert found.h.weight.dtype is torch.bfloat16 and torch.equal(found.h.weight, half.weight)


class Examples(Dataset):
    """So many, each made by a function of its number."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 4
PAIRS_OF_6 = TensorDataset(X, Y)


def labeled(label: Callable[[int], Any]) -> Examples:
    return Examples(40, lambda number: (X[number], label(number)))


def test_what_is_drawn_with_an_example_is_trained_on_with_it(tmp_path):
    """A label that is drawn with the example, as for telling how far it was turned."""
    given, drawn = list[tuple[torch.Tensor, int]](), list[tuple[torch.Tensor, torch.Tensor]]()

    def turned(number: int) -> tuple[torch.Tensor, int]:
        by = int(torch.randint(4, ()))
        given.append((X[number].roll(by), by))
        return given[-1]

    data = GivenData.of(Examples(40, turned), Examples(40, turned)).load("cpu", 0)
    given.clear()
    for inputs, labels in data.train_batches(lambda step: torch.arange(8).view(2, 4) + step, range(2), 0, 5):
        drawn += zip(inputs.flatten(0, 1), labels.flatten(), strict=True)
    assert all(torch.equal(x, was) and int(label) == by for (x, label), (was, by) in zip(drawn, given, strict=True))
    assert any(int(label) != data.train_labels[i % 8 + i // 8] for i, (_, label) in enumerate(drawn))


class Endless(IterableDataset):
    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        return iter(PAIRS_OF_6)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Endless(), "data are of type Endless: give a map-style data set, with len.. and .index."),
        (labeled(lambda number: 1.0), "example 0 has the label 1.0: .* whole number .* >= 0"),
        (
            labeled(lambda number: -1 if number == 17 else 0),
            "example 17 has the label -1: give one whole",
        ),
        (labeled(lambda number: "cat"), "example 0 has the label 'cat': give one whole number"),
        (labeled(lambda number: torch.eye(4)[number % 4]), r"a label of shape \[4\]: .*one-hot .* label\.argmax"),
        (TensorDataset(X, torch.eye(4)[Y]), r"a label of shape \[4\]: give one whole number"),
        (TensorDataset(X, torch.where(torch.arange(len(Y)) == 33, -100, Y)), "example 33 has the label -100"),
        (TensorDataset(X, Y, Y), "example 0 is a tuple of 3: return pairs .tensor, label."),
        (Examples(40, lambda number: {"x": X[number]}), "example 0 is a dict: return pairs"),
        (Examples(40, lambda number: (X[number] + 1j, 0)), "example 0 is a strided tensor of complex64 and a label"),
        (Examples(40, lambda number: (X[number].to_sparse(), 0)), "a sparse_coo tensor of float32"),
        (Examples(40, lambda number: (np.array([None]), 0)), "an array of object"),
        (
            Examples(40, lambda number: (np.array([2**24 + number, 1]), 0)),
            "example 1 has integers above 16,777,216",
        ),
        (
            TensorDataset(2**25 * (torch.arange(40)[:, None] == 4), Y),
            "an example has integers above 16,777,216, which float32",
        ),
        (
            Examples(40, lambda number: (X[number, : 6 - number // 39], 0)),
            r"example 39 is \[5\], but example 0 is \[6\]",
        ),
        (labeled(lambda number: 10**30), "has the label 1000"),
        (
            Examples(41, lambda number: (X[number], 0)),
            "example 40 of 41 cannot be read .*: IndexError: index 40 is out of",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_data_that_cannot_be_are_refused(data, said):
    with pytest.raises(ConfigError, match=said):
        GivenData.of(data, PAIRS_OF_6)
    with pytest.raises(ConfigError, match=said):
        GivenData.of(PAIRS_OF_6, data)


# -- weights that forward changes, and those that it does not use ------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("dpsgd", {"num_workers": 2}),
        ("dpsgd", {"availability": "exactly", "availability.count": 2}),  # the gradients of some workers
        ("teleportation", {"algo.active": 2}),
        ("eager_sgd", {}),
        ("wagma", {}),
    ],
)
def test_what_forward_does_to_its_weights_stays(algo: str, settings: Any, tmp_path: Path) -> None:
    settings = {"num_workers": 4, **settings}
    module = MODULES["sets_its_weights"].make()
    result = train(module, toy(), tmp_path, algo=algo, lr=1e-6, **settings)
    means = [float(each.l.weight.detach().mean()) for each in result.models]
    assert means == pytest.approx([7.0] * len(means), abs=1e-3)


def test_parameters_without_a_gradient_are_named(tmp_path: Path) -> None:
    module = Net(lambda m, x: m.l(x), l=nn.Linear(6, CLASSES), spare=nn.Linear(2, 2))
    facts = RunStore.peek(train(module, toy(), tmp_path, algo="dpsgd", num_workers=2).directory) or {}
    assert [
        note
        for note in facts["notes"]
        if "no gradient in the first step" in note and note.endswith("spare.weight, spare.bias")
    ]
