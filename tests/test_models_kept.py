"""models.safetensors: what is kept of a run, loading it, and starting from it."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import decentral
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.gradients.passes.worker_models import same
from decentral.network.world import World
from decentral.script.loading import load, runs
from decentral.store import RunStore
from decentral.store.models import FILE, load_models, stored_facts
from decentral.training import checkpoint as keeping
from decentral.training.assemble import assemble

MLP = ("data=digits", "model=mlp", "num_workers=4", "batch_size=8", "steps=6", "algo=dpsgd", "topology=ring", "seed=3")
NORMED = ("data=digits", "model=resnet18", "num_workers=2", "batch_size=4", "steps=2", "algo=dpsgd", "topology=ring",
          "task.statistics_images=64")  # fmt: skip


def accuracy(module: torch.nn.Module, config) -> float:
    """On the whole test set, as a stranger would compute it."""
    data = config.data.load("cpu", config.seed)
    correct = total = 0
    with torch.no_grad():
        for images, labels in data.test_batches(config.evaluation.batch_size):
            correct += int((module(images).argmax(1) == labels).sum())
            total += len(labels)
    return correct / total


def test_loaded_models_have_the_accuracy_that_the_run_recorded_last(start):
    result, config = start(*MLP), compose(MLP)
    found = load(result.directory)
    assert [accuracy(model, config) for model in found.models] == [
        result.last("accuracy", i) for i in range(config.num_workers)
    ]
    assert accuracy(found.averaged, config) == result.last("accuracy", "averaged")
    assert not any(model.training for model in (*found.models, found.averaged))
    assert found.settings["algo"] == "dpsgd" and found.settings["lr"] == 0.1 and found.status == "done"
    assert len(found.metrics) == len(result.rows)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_task_without_modules_keeps_none(start, accumulate):
    result = start("task=quadratics", "num_workers=2", "steps=2", "algo=allreduce", f"accumulate={accumulate}")
    assert not (result.directory / FILE).exists()


def test_the_best_are_those_of_the_evaluation_that_was_best_for_the_worst_worker(start):
    settings = (*MLP, "steps=26", "lr=0.3", "evaluation.every_epochs=0.2")
    result = start(*settings, "save=best")
    by_step = {row["step"]: row["value"] for row in result.rows
               if (row["metric"], row["worker"]) == ("accuracy", "worst") and row["step"] > 0}  # fmt: skip
    best = max(by_step, key=lambda step: (by_step[step], -step))
    assert int(stored_facts(result.directory)["step"]) == best < 20, "a run that goes on has to know of it"
    crashed = start(*settings, "save=best", "checkpoint_every_s=0", directory="crashed", interrupt_at=20)
    assert crashed.status == "interrupted"
    resumed = start(*settings, "save=best", "checkpoint_every_s=0", directory="crashed")
    assert int(stored_facts(resumed.directory)["step"]) == best


def test_where_all_would_take_too_much_the_worst_and_the_average_are_kept(start, monkeypatch):
    monkeypatch.setattr(keeping, "LIMIT_BYTES", 1000)
    result = start(*MLP)
    worst = min(range(4), key=lambda i: result.last("accuracy", i))
    kept = load_models(result.directory)
    assert stored_facts(result.directory)["worst"] == str(worst) and set(kept) == {"averaged", f"worker{worst}"}
    (model,) = load(result.directory).models
    assert accuracy(model, compose(MLP)) == result.last("accuracy", "worst")


STRANGE: dict[str, tuple[str | None, Any]] = {
    "no number of a worker": ("workerX.x", {}),
    "a negative number": ("worker-1.x", {}),
    "another name": ("x", {}),
    "no averaged model": (None, {}),
    "tied to nothing": ("worker0.x", {"tied": '{"averaged.y": "z"}'}),
    "no dict of ties": ("worker0.x", {"tied": "[3]"}),
    "no pairs of numbers": ("worker0.x", {"complex": '["averaged.x"]'}),
    "deep": ("worker0.x", {"extra": "[" * 100_000}),
    "no dict of states": ("worker0.x", {"extra": "[1]"}),
    "state of no known type": ("worker0.x", {"extra": '{"averaged.y": ["eval", ["1"]]}'}),
}
"""The name of a tensor beside the averaged model's (None: instead of it), and more of the header."""


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-4],
    "empty": lambda content: b"",
    "noise": lambda content: b"\x93" * 500,
}


@pytest.mark.parametrize("what", [*STRANGE, *DAMAGED])
def test_an_invalid_model_file_is_refused(what, tmp_path):
    name, header = STRANGE.get(what, ("worker0.x", {}))
    tensors = {"averaged.x" if name else "worker0.x": torch.zeros(3), name or "worker1.x": torch.zeros(3)}
    save_file(tensors, tmp_path / FILE, metadata={"run_id": "abc", **header})
    if what in DAMAGED:
        (tmp_path / FILE).write_bytes(DAMAGED[what]((tmp_path / FILE).read_bytes()))
    with pytest.raises(ConfigError, match=rf"{FILE} is damaged \(.*\): delete the run's directory and repeat the run"):
        load_models(tmp_path)


def test_a_model_file_of_another_run_is_refused(start):
    mine, other = start(*MLP), start(*MLP, "lr=0.01", directory="other")
    content = bytearray((mine.directory / FILE).read_bytes())
    content[-1] ^= 1
    (mine.directory / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged \(its content does not match its checksum\)"):
        load(mine.directory)
    (mine.directory / FILE).write_bytes((other.directory / FILE).read_bytes())
    with pytest.raises(ConfigError, match=f"belongs to run {run_id(compose([*MLP, 'lr=0.01']))}, not to run"):
        load(mine.directory)
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (mine.directory / FILE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ConfigError, match="belongs to no run of decentral"):
        load(mine.directory)


def test_a_run_starts_from_the_averaged_model_of_another(start, monkeypatch):
    first = start(*MLP)
    init = f"init={first.directory}"
    second = start(*MLP, init, "trace=true", directory="second")
    averaged = load_models(first.directory)["averaged"]
    names = [name for name, _ in load(first.directory).averaged.named_parameters()]
    x0 = torch.cat([averaged[name].reshape(-1) for name in names])
    assert all((row == x0.numpy()).all() for row in second.iterates[0])
    facts, ids = stored_facts(first.directory), {run_id(compose(MLP)), run_id(compose([*MLP, init]))}
    monkeypatch.setattr("decentral.config.identity.stored_facts", lambda _: facts | {"step": "1"})
    assert len(ids | {run_id(compose([*MLP, init]))}) == 3


def test_init_that_cannot_be_used_is_refused(start, tmp_path):
    with pytest.raises(ConfigError, match=r"init=nothing has no readable models\.safetensors in"):
        compose([*MLP, "init=nothing"])
    first = start(*MLP)
    with pytest.raises(
        ConfigError, match=r"is a run of a model other than model=cnn: its .* is .*, and this model's is"
    ):
        start(*MLP, "model=cnn", f"init={first.directory}", directory="second")
    assert not (tmp_path / "second").exists(), "a run that was refused claims no folder"
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "log.txt").write_text("a launcher's")
    with pytest.raises(ConfigError, match="is a run of a model other than"):
        start(*MLP, "model=cnn", f"init={first.directory}", directory="second")
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["log.txt"]
    with pytest.raises(ConfigError, match="init= needs a task that trains networks"):
        start("task=quadratics", "num_workers=3", "steps=3", f"init={first.directory}", directory="third")


def test_all_runs_are_rows_of_one_table(start, tmp_path):
    settings = (MLP, (*MLP, "lr=0.2", "save=none"))
    first, second = (start(*words, directory=f"runs/{run_id(compose(words))}") for words in settings)
    table = runs(tmp_path).set_index("directory")
    assert set(table.loc[:, "status"]) == {"done"} and set(table.loc[:, "algo"]) == {"dpsgd"}
    assert table.loc[str(second.directory), "lr"] == 0.2 and table.loc[str(second.directory), "step"] == 6
    assert table.loc[str(first.directory), "test accuracy (worst)"] == first.last("accuracy", "worst")
    (tmp_path / "nothing").mkdir()
    assert len(runs(tmp_path / "nothing")) == 0
    (second.directory / "metrics.jsonl").write_text("damaged\n")
    table = runs(tmp_path).set_index("directory")
    assert table.loc[str(second.directory), "status"] == "unreadable" and table.loc[str(first.directory), "step"] == 6


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


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make().double()


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


class Own(Net):
    """State that differs between workers: buffers of every kind there is, and a number."""

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

    def get_extra_state(self) -> float:
        return self.tau

    def set_extra_state(self, state: float) -> None:
        self.tau = state


def pair() -> tuple[TensorDataset, TensorDataset]:
    return examples(0, 96), examples(1, 20)


OWN = ("model=test_models_kept:Own", "data=test_models_kept:pair", "num_workers=3", "batch_size=4", "topology=ring",
       "algo=dpsgd", "partition=iid", "steps=6", "precision=fp64", "seed=2", "task.statistics_images=64",
       "evaluation.every_epochs=1000", "evaluation.initial=false")  # fmt: skip


def stored(result: Any) -> dict[str, dict[str, Any]]:
    return load_models(result.directory)


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for model, tensors in one.items():
        for name, value in tensors.items():
            torch.testing.assert_close(other[model][name], value, rtol=1e-12, atol=1e-12, msg=f"{model} {name}")


def test_the_averaged_model_has_means_and_own_statistics(recorded):
    models = stored(recorded(*OWN))
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


def test_states_are_part_of_checkpoints_and_evaluations_leave_them_alone(recorded, start):
    """The run with few evaluations is not interrupted."""
    interrupted = [*OWN, "evaluation.every_epochs=0.2", "checkpoint_every_s=0"]
    assert start(*interrupted, directory="cut", interrupt_at=3).status == "interrupted"
    assert_same(stored(recorded(*OWN)), stored(start(*interrupted, directory="cut", processes=2)))


def test_states_rest_with_their_workers_and_are_taken_over_with_models():
    """Worker 1 of a complete graph is away in steps 2 to 4; `before` is what is there when step 5 begins to compute."""
    words = [*OWN, "topology=complete", "availability=fixed", "availability.absences=[[1,2,5]]"]
    run = assemble(prepare(compose([*words, "device=cpu"])), World(0, 1, torch.device("cpu")))
    seen, gradient = [], run.problem.gradient

    def noted(*arguments: Any) -> Any:
        seen.append(copy.deepcopy(run.problem.model_states()))
        return gradient(*arguments)

    run.problem.gradient = noted
    with torch.no_grad():
        for _ in range(6):
            run.stepper.step()
    assert same(seen[2][1], seen[4][1]) and not same(seen[2][0], seen[4][0])
    zero, one, two = (each["tensors"] for each in seen[5])
    for name in ("mu", "turn", "scale", "norm.running_mean"):
        torch.testing.assert_close(one[name], (zero[name] + two[name]) / 2)
    for name in ("calls", "ragged", "first.parametrizations.weight.0._u"):
        assert torch.equal(one[name], zero[name])
    assert seen[5][1]["extra"] == seen[5][0]["extra"] != seen[5][2]["extra"]
    assert run.stepper.attendance.join_bytes > 2 * run.stepper.models[0].nbytes
    now = [each["tensors"] for each in run.problem.model_states()]
    run.problem.average_states(run.net)
    run.problem.average_states(run.net, [1, 2])
    found = run.problem.average._state["tensors"]
    torch.testing.assert_close(found["mu"], (now[1]["mu"] + now[2]["mu"]) / 2)
    assert torch.equal(found["calls"], now[1]["calls"])


@pytest.mark.parametrize("on_return", [pytest.param("average", marks=pytest.mark.slow), "neighbor"])
def test_states_that_are_taken_over_are_the_same_in_several_processes(start, on_return):
    words = [
        *OWN,
        "evaluation.initial=true",
        "availability=independent",
        "availability.probability=0.5",
        f"availability.on_return={on_return}",
    ]
    one, two = start(*words, directory="one"), start(*words, processes=2, directory="two")
    assert_same(stored(one), stored(two))
    assert [row["value"] for row in one.rows] == pytest.approx([row["value"] for row in two.rows], rel=1e-9)
    assert {"present averaged", "returned averaged"} <= {row["worker"] for row in one.rows}


def test_a_run_begins_with_the_state_of_another(recorded, start):
    first = recorded(*OWN)
    second = start(*OWN, f"init={first.directory}", "steps=1", "lr=0", directory="second")
    averaged, begun = stored(first)["averaged"], stored(second)["worker1"]
    torch.testing.assert_close(
        begun["mu"] - 0.5 * averaged["mu"], stored(start(*OWN, "steps=1", directory="x"))["worker1"]["mu"]
    )
    assert len(begun["ragged"]) >= len(averaged["ragged"])


def test_a_run_says_whose_buffers_the_averaged_model_has(tmp_path):
    (note,) = RunStore.peek(train(made(Kinds), tmp_path).directory)["notes"]
    assert note == "averaged model: turn averaged over the workers; calls, first.calls, seen taken from worker 0"
