"""What a module keeps beside its trained parameters: in training, in the averaged model, in files and checkpoints."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.data import TensorDataset

import decentral
from conftest import Result
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.store import RunStore
from decentral.store.models import FILE, load_models
from worlds import carry_out

N = 24
SHORT = {
    **{"algo": "allreduce", "num_workers": 1, "batch_size": N, "steps": 5, "lr": 0.1, "precision": "fp64"},
    **{"optim.momentum": 0, "optim.weight_decay": 0, "schedule": "constant", "partition": "iid", "seed": 3},
    **{"progress": False, "device": "cpu"},
}


def examples(seed: int = 0, number: int = N) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(number, 6, generator=generator).double(), torch.arange(number) % 3)


TRAIN, TEST = examples(), examples(1, 12)


def train(model: Any, path: Any, **settings: Any) -> decentral.script.loading.Trained:
    return decentral.train(model, TRAIN, TEST, results_dir=path, **{**SHORT, **settings})


def loss(module: nn.Module) -> float:
    return nn.functional.cross_entropy(module(TEST.tensors[0]), TEST.tensors[1]).item()


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make().double()


def plain(make: Callable[[], nn.Module], steps: int = 5) -> nn.Module:
    """Gradient descent on all examples, as one would write it."""
    module = made(make)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(TRAIN.tensors[0]), TRAIN.tensors[1]).backward()
        optimizer.step()
    return module.eval()


class Net(nn.Module):
    """A linear layer behind what a subclass does first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.prepare()

    def prepare(self) -> None: ...

    def before(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.before(x))))


class InPlace(Net):
    def prepare(self) -> None:
        self.register_buffer("mu", torch.zeros(6))

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.mu.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return x - self.mu


class Assigned(InPlace):
    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.mu = self.mu * 0.5 + x.mean(0) * 0.5
        return x - self.mu


class Grows(Net):
    """A buffer that becomes longer with each step."""

    def prepare(self) -> None:
        self.register_buffer("means", torch.zeros(1, 6))

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.means = torch.cat([self.means, x.mean(0, keepdim=True)])
        return x - self.means.mean(0)


class FromNone(Net):
    def prepare(self) -> None:
        self.register_buffer("mu", None)

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.mu = x.mean(0) if self.mu is None else self.mu * 0.5 + x.mean(0)
        return x if self.mu is None else x - self.mu


class Kinds(Net):
    """Buffers of many types, one without dimensions, one that is not stored, one in two modules."""

    def prepare(self) -> None:
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(6, dtype=torch.bool))
        self.register_buffer("turn", torch.ones(2, dtype=torch.complex128))
        self.register_buffer("scale", torch.linspace(0, 1, 6), persistent=False)
        self.first.register_buffer("calls", self.calls)

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.seen |= (x > 1).any(0)
            self.turn *= 0.6 + 0.8j
        return x * (self.scale + self.seen + 0.1 * self.first.calls.to(x) + self.turn.imag.sum())


class Tied(Net):
    def prepare(self) -> None:
        self.middle, self.inner = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6))
        self.middle.weight = self.inner[0].weight = self.first.weight

    def before(self, x: Tensor) -> Tensor:
        return self.inner(self.middle(x))


class Frozen(Net):
    """Batch norm that keeps its statistics, and a layer that keeps its parameters."""

    def prepare(self) -> None:
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.fill_(0.3)
        self.norm.running_var.fill_(4.0)
        self.first.requires_grad_(False)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        return self

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Teacher(Net):
    """A moving average of parameters, in parameters."""

    def prepare(self) -> None:
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            for mean, own in zip(self.teacher.parameters(), self.first.parameters(), strict=True):
                mean.data.mul_(0.9).add_(own.data, alpha=0.1)
        return x + self.teacher(x)


class Counts(Net):
    """Numbers, and a list, that are no buffers."""

    def prepare(self) -> None:
        self.tau, self.past = 1.0, []

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.tau *= 0.9
            self.past.append(float(x.mean()))
        return x * self.tau + sum(self.past)

    def get_extra_state(self) -> Any:
        return {"tau": self.tau, "past": tuple(self.past), "last": torch.tensor(self.past)}

    def set_extra_state(self, state: Any) -> None:
        assert torch.equal(state["last"], torch.tensor(state["past"]))
        self.tau, self.past = state["tau"], list(state["past"])


class Sparse(Net):
    def prepare(self) -> None:
        self.words = nn.Embedding(10, 6, sparse=True)

    def before(self, x: Tensor) -> Tensor:
        return self.words((x.abs() * 3).long().clamp(max=9)).mean(1)


class Scaled(Sparse):
    """Embeddings whose norms are limited in place, also in tests."""

    def prepare(self) -> None:
        self.words = nn.Embedding(10, 6, max_norm=1.0)


class Normalized(Net):
    """A weight that a forward pass replaces."""

    def before(self, x: Tensor) -> Tensor:
        self.last.weight.data = nn.functional.normalize(self.last.weight.data)
        return x


class Hooked(Net):
    """A hook that is a closure of the module, which reads what it leaves."""

    def prepare(self) -> None:
        self.outputs: list[Tensor] = []
        self.first.register_forward_hook(lambda _, inputs, output: self.outputs.append(output))

    def forward(self, x: Tensor) -> Tensor:
        self.outputs.clear()
        return super().forward(x) + self.outputs.pop()[:, :3]


class Lists(Net):
    def prepare(self) -> None:
        self.many = nn.ParameterList([nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(0, 6))])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(2.0))})

    def before(self, x: Tensor) -> Tensor:
        return x * self.many[0] * self.named["scale"] + self.many[1].sum()


def applied(function: Callable[..., object], *arguments: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = Net()
        function(net.first, *arguments)
        return net

    return make


MODULES: dict[str, Callable[[], nn.Module]] = {
    **{each.__name__: each for each in (InPlace, Assigned, Grows, FromNone, Kinds, Tied, Frozen, Teacher, Counts)},
    **{each.__name__: each for each in (Sparse, Scaled, Normalized, Hooked, Lists)},
    "pruned": applied(prune.l1_unstructured, "weight", 0.5),
    "weight_norm": applied(nn.utils.weight_norm),
    "weight_norm_parametrized": applied(parametrizations.weight_norm),
    "spectral_norm": applied(nn.utils.spectral_norm),
    "spectral_norm_parametrized": applied(parametrizations.spectral_norm),
    "orthogonal": applied(parametrizations.orthogonal),
    "batch_norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
    "instance_norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 3)
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what torch has deprecated
@pytest.mark.parametrize("name", MODULES)
def test_one_worker_is_plain_pytorch_and_loads_again(tmp_path, name):
    make = MODULES[name]
    expected, result = plain(make), train(made(make), tmp_path)
    theirs, mine = expected.state_dict(), result.models[0].state_dict()
    assert list(theirs) == list(mine)
    for key, value in theirs.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(mine[key], value, rtol=1e-12, atol=1e-12)
    measured = result.metrics.query("metric == 'loss' and worker == 0 and step == 5").value.item()
    assert measured == pytest.approx(loss(result.models[0]), rel=1e-12)
    if name != "Kinds":  # whose file lacks what is not persistent
        assert measured == pytest.approx(loss(expected), rel=1e-12)


def shared() -> nn.Module:
    net = Net()
    net.last = nn.Linear(6, 3)
    net.first.weight.data[:3] = 0
    net.last.weight.data = net.first.weight.data[:3]
    return net


class Unstorable(Net):
    def get_extra_state(self) -> Any:
        return {"rule": nn.Identity()}

    def set_extra_state(self, state: Any) -> None: ...


class Generates(Net):
    def prepare(self) -> None:
        self.generator = (i for i in range(3))


class Adjacent(Net):
    def prepare(self) -> None:
        self.register_buffer("adjacency", torch.eye(6).to_sparse())


class Phases(Net):
    def prepare(self) -> None:
        self.phase = nn.Parameter(torch.ones(6, dtype=torch.complex64))


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


class Unused(Net):
    def prepare(self) -> None:
        self.never = nn.LazyLinear(3)


class LateParameter(Net):
    def before(self, x: Tensor) -> Tensor:
        if self.training and not hasattr(self, "late"):
            self.late = nn.Linear(6, 6)
        return self.late(x) if hasattr(self, "late") else x


class LateBuffer(Net):
    def before(self, x: Tensor) -> Tensor:
        if self.training and not hasattr(self, "mu"):
            self.register_buffer("mu", x.mean(0))
        return x


class Unfreezes(Net):
    def before(self, x: Tensor) -> Tensor:
        self.last.weight.requires_grad_(not self.training)
        return x


class Graph(Net):
    def prepare(self) -> None:
        self.register_buffer("mu", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.training:
            self.mu = 0.9 * self.mu + 0.1 * hidden.mean(0)
        return self.last(hidden - self.mu)


class NoGraph(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "compiled": (lambda: torch.compile(Net()), r"it is a OptimizedModule, .* give the module .* before torch\.compile"),
    "scripted": (
        lambda: torch.jit.script(Net()),
        r"it is a RecursiveScriptModule, .* before torch\.jit",
    ),
    "parallel": (lambda: nn.DataParallel(Net()), r"it is a DataParallel, .*\(\.module\)"),
    "complex": (Phases, "its parameter phase is complex64, but rows hold real numbers: use dense real parameters"),
    "shared": (shared, "its first.weight and last.weight are two tensors in the same memory: let them be one"),
    "frozen": (lambda: Net().requires_grad_(False), "has no parameters to train: all of them have requires_grad=False"),
    "unstorable": (Unstorable, "get_extra_state of Unstorable cannot be stored .*: let it return tensors"),
    "uncopied": (Generates, "cannot be copied, once for each worker: TypeError: cannot pickle 'generator' object"),
    "sparse": (Adjacent, "its adjacency is sparse_coo, which .* register it with persistent=False"),
    "late_parameter": (LateParameter, r"The model changes late\.bias while it is trained: make parameters .* __init__"),
    "late_buffer": (
        LateBuffer,
        "The model changes mu while it is trained: make .* in __init__ .None will do for a buffer",
    ),
    "unfreezes": (Unfreezes, r"The model changes last\.weight while it is trained: .* what requires_grad"),
    "graph": (Graph, "cannot be trained .*second time.*: keep no graph of an earlier step in a buffer or an attribute"),
    "no_graph": (NoGraph, "cannot be trained .*: RuntimeError: element 0 of tensors does not require grad"),
    "unused": (Unused, "never.weight is not initialized by a forward pass: use it, or leave it out"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what torch has deprecated
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_sentence(tmp_path, name):
    make, said = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^(model=given:? )?{said}") as found:
        train(make(), tmp_path)
    assert "\n" not in str(found.value)


class Own(Net):
    """Buffers that differ between workers: of every kind there is."""

    def prepare(self) -> None:
        self.register_buffer("mu", torch.zeros(6))
        self.register_buffer("turn", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("latest", torch.zeros(1))
        self.register_buffer("ragged", torch.zeros(0))
        self.register_buffer("scale", torch.tensor(1.0))
        self.norm, self.kept = nn.BatchNorm1d(6, momentum=0.3), nn.BatchNorm1d(6)
        self.kept.eval()
        self.instance = nn.InstanceNorm1d(2, track_running_stats=True)
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.tau = 1.0

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            self.mu = self.mu * 0.5 + x.mean(0)
            self.turn += torch.complex(x[0, 0], x[0, 1])
            self.calls += int((x > 0).sum())
            self.tau = float(x.mean())
            self.scale *= 0.9
            self.ragged = torch.cat([self.ragged, x[x[:, 0] > 0, 0]])
        self.latest = x[:1, 0]
        x = self.instance(self.kept(self.norm(x)).view(-1, 2, 3)).flatten(1)
        return x - self.mu + self.tau


def pair() -> tuple[TensorDataset, TensorDataset]:
    return examples(0, 96), examples(1, 20)


OWN = ("model=test_model_state:Own", "data=test_model_state:pair", "num_workers=3", "batch_size=4", "topology=ring",
       "algo=dpsgd", "partition=iid", "steps=6", "precision=fp64", "seed=2", "task.statistics_images=64")  # fmt: skip


@pytest.fixture
def start(tmp_path: Path, worlds: Callable[[int], Any]) -> Callable[..., Result]:
    """Carry out a run of a model of one's own, as `conftest.start` does."""

    def _start(*overrides: str, processes: int = 1, directory: str = "run", interrupt_at: int = -1) -> Result:
        config = compose([*overrides, "progress=false", "device=cpu", f"run_dir={tmp_path / directory}"])
        if processes == 1:
            return Result(carry_out(World(0, 1, torch.device("cpu")), config, -1, interrupt_at), tmp_path / directory)
        (status,) = set(worlds(processes).call(carry_out, config, -1, interrupt_at))
        return Result(status, tmp_path / directory)

    return _start


def stored(result: Any) -> dict[str, dict[str, Any]]:
    return load_models(result.directory).models


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for model, tensors in one.items():
        for name, value in tensors.items():
            torch.testing.assert_close(other[model][name], value, rtol=1e-12, atol=1e-12, msg=f"{model} {name}")


def test_the_averaged_model_has_means_statistics_of_its_own_and_what_worker_0_has(start):
    result = start(*OWN)
    models = stored(result)
    averaged, workers = models["averaged"], [models[f"worker{i}"] for i in range(3)]
    for name in ("mu", "turn", "latest"):
        values = torch.stack([own[name] for own in workers])
        torch.testing.assert_close(averaged[name], values.mean(0), rtol=1e-12, atol=1e-12)
        assert not torch.equal(values[0], values[1]), "a test that cannot fail"
    for name in ("calls", "ragged", "first.parametrizations.weight.0._u", "kept.running_mean"):
        assert torch.equal(averaged[name], workers[0][name])
    assert workers[0]["calls"] != workers[1]["calls"] and len(workers[0]["ragged"]) > 0
    assert torch.equal(workers[1]["kept.running_mean"], torch.zeros(6).double())
    for name in ("norm.running_mean", "instance.running_mean"):
        assert averaged[name].abs().min() > 0
        assert not torch.allclose(averaged[name], torch.stack([own[name] for own in workers]).mean(0))
    assert int(averaged["norm.num_batches_tracked"]) == 1 and int(workers[0]["norm.num_batches_tracked"]) == 6


def test_any_number_of_processes_has_the_same_states(start):
    one, two = start(*OWN, directory="one"), start(*OWN, processes=2, directory="two")
    assert_same(stored(one), stored(two))
    assert [row["value"] for row in one.rows] == pytest.approx([row["value"] for row in two.rows], rel=1e-9)


@pytest.mark.parametrize("processes", [1, 2])
def test_states_are_part_of_checkpoints_and_evaluations_leave_them_alone(start, processes):
    whole = start(*OWN, "evaluation.every_epochs=0.2")
    interrupted = [*OWN, "evaluation.every_epochs=0.2", "checkpoint_every_s=0"]
    assert start(*interrupted, directory="cut", interrupt_at=3).status == "interrupted"
    assert_same(stored(whole), stored(start(*interrupted, directory="cut", processes=processes)))
    rare = start(*OWN, "evaluation.every_epochs=1000", "evaluation.initial=false", directory="rare")
    assert_same(stored(whole), stored(rare))


def test_a_run_begins_with_the_state_of_another(start):
    first = start(*OWN)
    second = start(*OWN, f"init={first.directory}", "steps=1", "lr=0", directory="second")
    averaged, begun = stored(first)["averaged"], stored(second)["worker1"]
    torch.testing.assert_close(
        begun["mu"] - 0.5 * averaged["mu"], stored(start(*OWN, "steps=1", directory="x"))["worker1"]["mu"]
    )
    assert len(begun["ragged"]) >= len(averaged["ragged"])


def test_the_file_of_models_follows_the_umask_and_what_cannot_be_opened_is_not_damaged(start, monkeypatch):
    before = os.umask(0o027)
    try:
        path = start(*OWN).directory / FILE
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged \(its content is not what was written\): delete"):
        load_models(path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=f"{FILE} cannot be read: Is a directory\\.$"):
        load_models(path.parent)


def test_lazy_layers_train_and_load(tmp_path):
    net = Lazy()
    result = train(net, tmp_path, num_workers=2, batch_size=12)
    assert result.averaged is not None and result.averaged[0].weight.shape == (5, 6)
    assert nn.parameter.is_lazy(net[0].weight), "the user's module stays as it was"
    again = decentral.load(result.directory, model=Lazy())
    assert torch.equal(again.averaged[0].weight, result.averaged[0].weight)


class Warms(Net):
    def prepare(self) -> None:
        self.tau = 1.0

    def before(self, x: Tensor) -> Tensor:
        self.tau *= 0.9 if self.training else 1.0
        return x * self.tau


def test_a_run_says_what_its_file_of_models_leaves_out_and_whose_buffers_the_average_has(tmp_path, capsys):
    decentral.train(made(Warms), TRAIN, TEST, results_dir=tmp_path, **{**SHORT, "progress": True})
    said = " ".join(capsys.readouterr().out.split())
    assert f"{FILE} leaves out what training has changed of tau: get_extra_state would keep it" in said
    (note,) = RunStore.peek(train(made(Kinds), tmp_path).directory)["notes"]
    assert note == "averaged model: scale, turn averaged over the workers; calls, first.calls, seen taken from worker 0"
