"""Users' modules and data sets against plain PyTorch: every entry of `tests/user_table.py`, in every way."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import decentral
from conftest import Result
from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.passes.worker_models import seed_draws
from decentral.network.world import World
from decentral.partition.partition import IID
from decentral.store.models import load_models
from decentral.tasks.problems.batches import BatchOrder
from user_table import CLASSES, DATA, MODULES, DataEntry, Entry, toy
from worlds import carry_out

LR, STEPS, BATCH = 0.1, 6, 4
SETTINGS: dict[str, Any] = {
    "lr": LR, "steps": STEPS, "batch_size": BATCH, "partition": "iid", "schedule": "constant", "precision": "fp64",
    "optim": {"momentum": 0}, "progress": False, "device": "cpu", "trace": True, "seed": 3,
}  # fmt: skip


def each(entries: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("entry", entries.values(), ids=entries.keys())


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


@each(MODULES)
def test_one_worker_is_plain_pytorch_and_is_stored_and_evaluated_as_it_is(entry: Entry, tmp_path: Path) -> None:
    module, data = entry.make(), toy(entry.inputs)
    before = copy.deepcopy(_state(module))
    inputs = data[0].tensors[0].clone()
    if entry.refused:
        with pytest.raises(ConfigError, match=entry.refused):
            train(module, data, tmp_path, algo="allreduce", num_workers=1)
        return
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    result = train(module, data, tmp_path, algo="allreduce", num_workers=1)
    assert torch.equal(torch.random.get_rng_state(), state), "the global random state has changed"
    assert module.training and all(p.grad is None for p in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in _state(module).items())
    assert torch.equal(data[0].tensors[0], inputs), "the inputs have changed"

    batch = batches(data[0], 1)
    wanted = plain(_fresh(entry), lambda step: batch(0, step))
    same_state(result.models[0], wanted)
    assert told(result, 0) == pytest.approx(loss_of(wanted, data[1]), abs=1e-10)
    if not entry.stored:
        return
    again = decentral.load(result.directory, model=entry.make())
    same_state(again.models[0], wanted)
    torch.testing.assert_close(outputs(again.models[0], data[1]), outputs(wanted, data[1]), rtol=0, atol=1e-12)
    assert told(result, "averaged") == pytest.approx(loss_of(again.averaged, data[1]), abs=1e-10)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Its tensors that there are."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _fresh(entry: Entry) -> nn.Module:
    torch.manual_seed(1)
    return entry.make()


@each(TRAINED)
def test_all_executions_agree(entry: Entry, tmp_path: Path) -> None:
    found = {}
    for execution in ("loop", "auto", "batched"):
        try:
            result = train(
                _fresh(entry),
                toy(entry.inputs),
                tmp_path / execution,
                algo="dpsgd",
                topology="ring",
                num_workers=4,
                execution=execution,
            )
        except ConfigError as error:
            assert execution == "batched" and "execution=batched" in str(error)
            continue
        with np.load(result.directory / "trace.npz") as file:
            found[execution] = file["iterates"], np.array([told(result, worker) for worker in (*range(4), "averaged")])
    for iterates, losses in found.values():
        np.testing.assert_allclose(iterates, found["loop"][0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(losses, found["loop"][1], rtol=0, atol=1e-10)


DRAWING = ("dropout", "dropout_always", "dropout_later", "depth_of_python", "depth_of_numpy", "noisy_gradients")
CHANGING = ("remembers", "remembers_the_last", "anneals", "ema_assigned_anew")


@pytest.mark.parametrize("name", [*DRAWING, *CHANGING])
def test_draws_and_attributes_are_the_same_after_an_interruption(name: str, tmp_path: Path) -> None:
    def run(directory: str, interrupt_at: int) -> str:
        config = replace(composed(name), run_dir=str(tmp_path / directory))
        return str(carry_out(World(0, 1, torch.device("cpu")), config, -1, interrupt_at))

    assert run("straight", -1) == "done" and run("broken", 3) == "interrupted"
    torch.rand(1), np.random.rand(), random.random()
    assert run("broken", -1) == "done"
    straight, resumed = (Result("done", tmp_path / directory) for directory in ("straight", "broken"))
    np.testing.assert_array_equal(resumed.iterates, straight.iterates)
    assert resumed.rows == straight.rows


def composed(name: str) -> Config:
    """D-PSGD of four workers on a ring, as on the command line."""
    return compose(
        [
            *("algo=dpsgd", "topology=ring", "num_workers=4", "batch_size=4", "steps=6", "partition=iid"),
            *("precision=fp64", "trace=true", "progress=false", "device=cpu", f"model=user_table:make_{name}"),
            *(f"data=user_table:data_of_{TRAINED[name].inputs}",),
        ]
    )


@each({name: entry for name, entry in TRAINED.items() if entry.joint})
def test_all_reduce_is_plain_pytorch_on_the_joint_batch(entry: Entry, tmp_path: Path) -> None:
    data = toy(entry.inputs)
    result = train(_fresh(entry), data, tmp_path, algo="allreduce", num_workers=4)
    batch = batches(data[0], 4)

    def joint(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = zip(*(batch(worker, step) for worker in range(4)), strict=True)
        return torch.cat(inputs), torch.cat(targets)

    wanted = plain(_fresh(entry), joint)
    for model in (*result.models, result.averaged):
        same_state(model, wanted, atol=1e-11)
    assert told(result, "averaged") == pytest.approx(loss_of(wanted, data[1]), abs=1e-10)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in TRAINED.items() if entry.stored])
def test_two_processes_give_what_one_gives(name: str, worlds: Any, tmp_path: Path) -> None:
    config = composed(name)
    of_one, of_two = (replace(config, run_dir=str(tmp_path / str(processes))) for processes in (1, 2))
    carry_out(World(0, 1, torch.device("cpu")), of_one, -1, -1)
    assert worlds(2).call(carry_out, of_two, -1, -1) == ["done", "done"]
    one, two = (Result("done", tmp_path / str(processes)) for processes in (1, 2))
    np.testing.assert_allclose(two.iterates, one.iterates, rtol=0, atol=1e-12)
    for ours, theirs in zip(two.rows, one.rows, strict=True):
        assert ours.keys() == theirs.keys() and ours["value"] == pytest.approx(theirs["value"], abs=1e-9), (
            ours,
            theirs,
        )
    ours, theirs = (load_models(result.directory).models for result in (two, one))
    for model, tensors in theirs.items():
        for key, value in tensors.items():
            torch.testing.assert_close(ours[model][key], value, rtol=0, atol=1e-12)


ANY_LAYER = st.sampled_from(
    [
        "linear",
        "relu",
        "relu_in_place",
        "tanh",
        "gelu",
        "batch_norm",
        "layer_norm",
        "dropout",
        "identity",
        "hook",
        "twice",
    ]
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    layers=st.lists(ANY_LAYER, max_size=5), shape=st.sampled_from([(6,), (2, 6), (1, 2, 6)]), flat_first=st.booleans()
)
def test_any_sequence_is_plain_pytorch(
    layers: list[str], shape: tuple[int, ...], flat_first: bool, tmp_path: Path
) -> None:
    g = torch.Generator().manual_seed(0)
    sets = [TensorDataset(torch.randn(n, *shape, generator=g), torch.arange(n) % CLASSES) for n in (24, 6)]

    def make() -> nn.Module:
        torch.manual_seed(1)
        shared = nn.Linear(6, 6)
        size = int(np.prod(shape))
        known: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: nn.Linear(6, 6),
            "relu": nn.ReLU,
            "relu_in_place": lambda: nn.ReLU(inplace=True),
            "tanh": nn.Tanh,
            "gelu": nn.GELU,
            "batch_norm": lambda: nn.BatchNorm1d(6),
            "layer_norm": lambda: nn.LayerNorm(6),
            "dropout": lambda: nn.Dropout(0.3),
            "identity": nn.Identity,
            "hook": nn.Identity,
            "twice": lambda: shared,
        }
        first = [nn.Flatten(), nn.Linear(size, 6)] if flat_first else []
        chosen = [layer for layer in layers if layer != "batch_norm" or flat_first or len(shape) == 1]
        between = [known[layer]() for layer in chosen]
        for layer, module in zip(chosen, between, strict=True):
            if layer == "hook":
                module.register_forward_hook(lambda mod, args, out: out * 2)
        width = 6 if flat_first else size
        return nn.Sequential(*first, *between, nn.Flatten(), nn.Linear(width, CLASSES))

    result = train(make(), tuple(sets), tmp_path, algo="allreduce", num_workers=1, rerun=True)  # type: ignore[arg-type]
    batch = batches(sets[0], 1)
    same_state(result.models[0], plain(make(), lambda step: batch(0, step)))
    found = []
    for execution in ("loop", "auto"):
        several = train(
            make(),
            tuple(sets),
            tmp_path / execution,
            algo="dpsgd",
            topology="ring",
            num_workers=4,
            batch_size=3,
            execution=execution,
            rerun=True,
        )  # type: ignore[arg-type]
        with np.load(several.directory / "trace.npz") as file:
            found.append(file["iterates"])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12)
