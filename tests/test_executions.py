"""Every way to compute the gradients gives the same ones; what auto chooses; precisions; GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm
from torchvision.models.resnet import BasicBlock, Bottleneck

from configure import configure
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.gradients.execution import Auto, Batched, Loop, Workload
from decentral.gradients.passes import columns, layers, replayed
from decentral.gradients.passes.passes import OneByOne, SideBySide, agree
from decentral.gradients.passes.worker_models import WorkerModels, flat, seed_draws
from decentral.gradients.precision import Precision
from decentral.network.world import World
from decentral.registry import components
from decentral.training.accumulate import Accumulated
from decentral.training.assemble import Run, assemble
from table import ALGORITHMS

# -- Every way to compute the gradients gives the same ones; `auto` chooses by a rule; precisions ----------------------

EXECUTIONS = sorted(components("gradients"))
OTHERS = [name for name in EXECUTIONS if name != "loop"]
MODELS = {"mlp": ("model=mlp", "model.hidden=[8]"), "cnn": ("model=cnn",)}
SHORT = ("task=images", "batch_size=8", "steps=5", "evaluation.every_epochs=100", "trace=true", "alpha=1")
VGG11 = ("model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10")
CPU = torch.device("cpu")
HERE = Path(__file__).parent


def algorithm(name: str, tmp_path) -> list[str]:
    case = ALGORITHMS[name]
    return [f"algo={name}", *case.nets[0].overrides(tmp_path), *case.overrides]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("dpsgd", "cnn"),
        pytest.param("gradient_tracking", "mlp", marks=pytest.mark.slow),
        pytest.param("diloco", "cnn", marks=pytest.mark.slow),
    ],
)
def test_every_way_of_execution_gives_the_iterates_of_the_loop(start, tmp_path, name, model):
    settings = [*SHORT, *algorithm(name, tmp_path), *MODELS[model], "optim=nesterov", "precision=fp64"]
    loop = start(*settings, "execution=loop", directory="loop").iterates
    assert loop.dtype == np.float64 and np.abs(loop[-1] - loop[0]).max() > 1e-3
    for execution in OTHERS:
        other = start(*settings, f"execution={execution}", directory=execution).iterates
        np.testing.assert_allclose(other, loop, rtol=0, atol=1e-12 * np.abs(loop).max())


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_run_that_was_interrupted_takes_the_very_same_steps(start, execution):
    settings = [*SHORT, *MODELS["cnn"], "algo=dpsgd", "topology=ring", "num_workers=4", f"execution={execution}"]
    whole = start(*settings, directory="whole").iterates
    assert start(*settings, directory="broken", interrupt_at=3).status == "interrupted"
    assert np.array_equal(start(*settings, directory="broken").iterates, whole)


def work(*settings: str, workers: int | None = None) -> Workload:
    config = configure("task=images", "algo=dpsgd", "topology=ring", *settings)
    info = config.data.inspect()
    models = WorkerModels(config.model.build(info), workers or config.num_workers or 1, CPU)
    return Workload(models, info.batch_shape(config.batch_size), config.precision, cross_entropy)


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        (("model=mlp", "model.hidden=[64]", "num_workers=16"), Batched),
        (("model=mlp", "num_workers=16"), Batched),
        (("model=mlp", "num_workers=64", "batch_size=16"), Batched),
        (("model=mlp", "model.hidden=[256,256,256]", "num_workers=16"), Loop),
        (("model=mlp", "model.hidden=[512,512]", "num_workers=16", "batch_size=8"), Loop),
        (("model=cnn", "num_workers=16"), Batched),
        (("model=cnn", "num_workers=16", "data=synthetic", "data.image_size=28"), Loop),
        ((*VGG11, "num_workers=4"), Loop),
        ((*VGG11, "num_workers=4", "model.dropout=0"), Loop),
        (("model=cnn", "num_workers=1", "topology=complete"), Loop),
        (("model=resnet18", "num_workers=4", "data=synthetic", "data.image_size=32"), Loop),
    ],
)
def test_auto_batches_small_models_only(settings, choice):
    assert isinstance(Auto().choice(work(*settings)), choice)


class Doubled(nn.Linear):
    """A layer of another class, which looks like torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Viewing(nn.Module):
    """Wants images one after the other in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def changed(change: Callable[[nn.Sequential], object], make: Callable[[], nn.Sequential] = dense) -> nn.Sequential:
    module = make()
    change(module)
    return module


def tripled(module: nn.Module, inputs: object, outputs: torch.Tensor) -> torch.Tensor:
    return outputs * 3


def bag(**settings: object) -> nn.Sequential:
    return nn.Sequential(nn.EmbeddingBag(9, 4, **{"padding_idx": 0, "mode": "mean", **settings}), nn.Linear(4, 3))


UNSHARED: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module], str]] = {
    "images without channels": ((4, 4), lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "Flatten gets .* 4 x 4"),
    "four dimensions": ((2, 2, 2, 2), lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "Flatten gets"),
    "sequences": ((4, 6), lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten()), "Linear gets inputs of 4 x 6"),
    "rows of pixels": ((1, 4, 4), lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten()), "Linear gets"),
    "a layer on images": ((1, 6, 6), lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 3)), "Linear gets"),
    "pooling without channels": ((4, 4), lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), "gets inputs"),
    "images as outputs": ((1, 6, 6), lambda: nn.Sequential(nn.Conv2d(1, 4, 3)), "outputs are images"),
    "what does not fit": ((6,), lambda: nn.Sequential(nn.Linear(5, 3)), "Linear fails"),
    "a subclass": ((6,), lambda: nn.Sequential(Doubled(6, 3)), "Doubled"),
    "forward hook": ((6,), lambda: changed(lambda m: m.register_forward_hook(tripled)), "Sequential has hooks"),
    "pre-hook": ((6,), lambda: changed(lambda m: m[0].register_forward_pre_hook(lambda *_: None)), "Linear has hooks"),
    "backward hook": ((6,), lambda: changed(lambda m: m[1].register_full_backward_hook(lambda *_: None)), "ReLU has"),
    "backward pre-hook": (
        (6,),
        lambda: changed(lambda m: m[2].register_full_backward_pre_hook(lambda *_: None)),
        "has hooks",
    ),
    "hook of a parameter": ((6,), lambda: changed(lambda m: m[2].bias.register_hook(torch.zeros_like)), "has hooks"),
    "another forward": ((6,), lambda: changed(lambda m: setattr(m[1], "forward", torch.tanh)), "another forward"),
    "spectral norm": ((6,), lambda: changed(lambda m: nn.utils.spectral_norm(m[0])), "has hooks"),
    "weight norm": ((6,), lambda: changed(lambda m: weight_norm(m[0])), "not a plain sequence"),
    "tied parameters": (
        (6,),
        lambda: changed(
            lambda m: setattr(m[2], "weight", m[0].weight), lambda: nn.Sequential(*dense(), nn.Linear(3, 3))
        ),
        "share parameters",
    ),
    "more parameters": (
        (6,),
        lambda: changed(lambda m: m[0].register_parameter("more", nn.Parameter(torch.ones(2)))),
        "cannot share a call",
    ),
    "a buffer": (
        (6,),
        lambda: changed(lambda m: m[0].register_buffer("more", torch.ones(2))),
        "cannot share a call",
    ),
    "indices": ((1, 4, 4), lambda: nn.Sequential(nn.MaxPool2d(2, return_indices=True)), "cannot share a call"),
    "sums of embeddings": ((5,), lambda: bag(mode="sum"), "cannot share a call"),
    "embeddings of a largest norm": ((5,), lambda: bag(max_norm=1.0), "cannot share a call"),
    "gradients by frequency": ((5,), lambda: bag(scale_grad_by_freq=True), "cannot share a call"),
    "sparse gradients": ((5,), lambda: bag(sparse=True), "cannot share a call"),
}


def test_what_workers_cannot_share_is_computed_one_by_one():
    for shape, make, reason in UNSHARED.values():
        given = Workload(WorkerModels(make(), 4, CPU), (5, *shape), Precision.fp32, cross_entropy)
        assert isinstance(Auto().choice(given), Loop), reason
        with pytest.raises(ConfigError, match=f"since .*{reason}"):
            Batched().passes(given)


def test_hooks_for_all_modules_are_noticed():
    given = Workload(WorkerModels(dense(), 4, CPU), (5, 6), Precision.fp32, cross_entropy)
    with nn.modules.module.register_module_forward_hook(tripled):
        assert isinstance(Auto().choice(given), Loop)
    assert isinstance(Auto().choice(given), Batched)


def alike(module: nn.Module, inputs: Tensor, targets: Tensor, loss: Any = cross_entropy) -> None:
    """Compare losses and gradients of both executions on a batch [k, B, ...]."""
    k, found = len(inputs), []
    x = flat(module) + 0.1 * torch.randn(k, len(flat(module)), dtype=torch.float64)
    for execution in (Loop(), Batched()):
        work = Workload(WorkerModels(module, k, CPU), tuple(inputs.shape[1:]), Precision.fp64, loss)
        found.append(execution.passes(work)(x, inputs, targets, range(k), lambda j: None))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_both_executions_agree_on_any_arrangement_of_layers():
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False), nn.ReLU(inplace=True)),
        nn.Conv2d(6, 4, 3, padding="same", dilation=2, groups=2),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.Dropout(0.0),
        nn.AdaptiveAvgPool2d(2),
        nn.Identity(),
        nn.Flatten(),
        nn.Linear(16, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()
    alike(module, torch.randn(5, 6, 2, 12, 12, dtype=torch.float64), torch.randint(0, 3, (5, 6)))
    regression = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    inputs, targets = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, 3, dtype=torch.float64)
    alike(regression, inputs, targets, nn.functional.mse_loss)
    padding = torch.tensor([[[0, 0, 0], [1, 2, 0]]] * 2)
    alike(bag().double(), padding, torch.zeros(2, 2, dtype=torch.long))


def test_images_lie_in_memory_as_usual_for_modules_that_nothing_is_known_of():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), Viewing(), nn.Linear(64, 3))
    models = WorkerModels(module, 2, CPU)
    passes = Auto().passes(Workload(models, (5, 1, 6, 6), Precision.fp32, cross_entropy))
    batch = torch.randn(2, 5, 1, 6, 6), torch.zeros(2, 5, dtype=torch.long)
    assert passes(flat(module).repeat(2, 1), *batch, range(2), lambda j: None)[1].isfinite().all()


def mixed(layer: nn.Linear, x: torch.Tensor, own: Sequence[torch.Tensor], k: int) -> torch.Tensor:
    """A linear layer that gives each worker the weights of the one before."""
    return layers._linear(layer, x, [parameter.roll(1, 0) for parameter in own], k)


def failing(layer: nn.Linear, x: torch.Tensor, own: Sequence[torch.Tensor], k: int) -> torch.Tensor:
    raise RuntimeError("no such kernel")


FIRST = [*SHORT, *MODELS["mlp"], "algo=dpsgd", "topology=ring", "num_workers=4"]


@pytest.mark.parametrize(
    ("wrong", "told", "accumulate"), [(mixed, "compute something else", 2), (failing, "fail .*no such kernel", 1)]
)
def test_gradients_that_are_wrong_in_the_first_batch_are_computed_one_by_one(
    start, monkeypatch, capfd, wrong, told, accumulate
):
    settings = [*FIRST, f"accumulate={accumulate}"]
    loop = start(*settings, "execution=loop", directory="loop").iterates
    monkeypatch.setitem(layers.LAYERS, nn.Linear, wrong)
    found = start(*settings, directory="auto")
    assert np.array_equal(found.iterates, loop)
    (note,) = [line for line in capfd.readouterr().out.splitlines() if "execution=loop" in line]
    assert re.search(f"since its layers {told}", note)
    assert json.loads((found.directory / "provenance.json").read_text())["execution"] == "loop"
    assert note in json.loads((found.directory / "status.json").read_text())["notes"]
    with pytest.raises(ConfigError, match=f"execution=batched .* since its layers {told}"):
        start(*settings, "execution=batched", directory="batched")


class Numbered:
    """Draw d has loss d and gradient d^2 x, in memory that it uses again."""

    steps_per_epoch = 12.0

    def gradient(self, x: torch.Tensor, draws: np.ndarray, workers: Sequence[int] | None = None):
        if not hasattr(self, "losses"):
            self.losses, self.g = x.new_empty(len(x)), torch.empty_like(x)
        self.losses.copy_(torch.from_numpy(draws))
        return self.losses, torch.mul(x, self.losses[:, None] ** 2, out=self.g)


def test_an_accumulated_gradient_is_the_mean_of_its_draws_each_of_which_is_another():
    problem, x = Accumulated(Numbered(), 3), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert problem.steps_per_epoch == 4
    for _ in range(2):
        losses, g = problem.gradient(x, np.array([0, 2]))  # draws 0, 1, 2 of one worker, and 6, 7, 8 of the other
        torch.testing.assert_close(losses, torch.tensor([1.0, 7.0]))
        torch.testing.assert_close(g, x * torch.tensor([[5 / 3], [149 / 3]]))


def test_they_are_compared_after_an_interruption_too(start, monkeypatch):
    assert start(*FIRST, directory="broken", interrupt_at=3).status == "interrupted"
    monkeypatch.setitem(layers.LAYERS, nn.Linear, mixed)
    with pytest.raises(ConfigError, match="its layers compute something else"):
        start(*FIRST, "execution=batched", directory="broken")


def test_a_backward_pass_that_is_wrong_is_noticed(monkeypatch):
    def halved(layer: nn.Linear, x: torch.Tensor, own: Sequence[torch.Tensor], k: int) -> torch.Tensor:
        y = layers._linear(layer, x, own, k)
        return (y + y.detach()) / 2

    monkeypatch.setitem(layers.LAYERS, nn.Linear, halved)
    models = WorkerModels(dense(), 4, CPU)
    passes = Batched().passes(Workload(models, (5, 6), Precision.fp32, cross_entropy))
    batch = torch.randn(4, 5, 6), torch.zeros(4, 5, dtype=torch.long)
    assert str(passes.doubt(torch.randn(4, models.num_parameters), *batch)).startswith("its layers compute")


class Drawing(nn.Module):
    """A linear layer and then something that may draw."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 8), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.last is None:
            return nn.functional.dropout(y, 0.5, self.training)
        if isinstance(self.last, nn.MultiheadAttention):
            return self.last(y[None], y[None], y[None])[0][0]
        if isinstance(self.last, nn.LSTM):
            return self.last(y[None])[0][0]
        return self.last(y)


IN_SEQUENCE = [(nn.Dropout(0.5), True), (nn.RReLU(), True), (nn.ReLU(), False), (nn.Dropout(0.0), False)]
IN_FORWARD = [(None, True), (nn.MultiheadAttention(8, 2, dropout=0.5), True), (nn.LSTM(8, 8, 2, dropout=0.5), True)]


@pytest.mark.parametrize(
    ("last", "draws", "own_class"),
    [*((*case, True) for case in (*IN_SEQUENCE, *IN_FORWARD)), *((*case, False) for case in IN_SEQUENCE)],
    ids=str,
)
def test_whatever_a_model_draws_is_addressed_by_worker_and_draw(last, draws, own_class):
    model = Drawing(last) if own_class else nn.Sequential(nn.Linear(4, 8), last)
    seeded, models = [], WorkerModels(model, 2, CPU)
    passes = Loop().passes(Workload(models, (5, 4), Precision.fp32, cross_entropy))
    x, inputs = torch.randn(2, models.num_parameters), torch.randn(2, 5, 4)
    targets = torch.randint(0, 8, (2, 5))

    def gradients(draw: int) -> torch.Tensor:
        def seed(j: int) -> None:
            seeded.append(j)
            seed_draws(CPU, 0, j, draw)

        torch.rand(3)  # what is drawn in between makes no difference
        return passes(x, inputs, targets, range(2), seed)[1].clone()

    first, second, again = (gradients(draw) for draw in (0, 1, 0))
    assert torch.equal(first, again)
    assert torch.equal(first, second) != draws
    assert seeded == ([0, 1] * 3 if draws or own_class else [0])  # one's own class may draw later


@pytest.mark.parametrize("execution", ["batched", pytest.param("loop", marks=pytest.mark.slow)])
def test_bf16_trains_nearly_the_same_and_keeps_rows_in_float32(start, execution):
    settings = [*SHORT, *MODELS["cnn"], "algo=dpsgd", "topology=ring", "num_workers=4", f"execution={execution}"]
    exact = start(*settings, directory="fp32")
    rough = start(*settings, "precision=bf16", directory="bf16")
    assert rough.iterates.dtype == np.float32
    difference = np.abs(rough.iterates[-1] - exact.iterates[-1]).max()
    moved = np.abs(exact.iterates[-1] - exact.iterates[0]).max()
    assert 1e-6 * moved < difference < 0.1 * moved
    assert rough.last("loss", "mean") == pytest.approx(exact.last("loss", "mean"), rel=0.05)


# -- The layers of a GPU, on a CPU -------------------------------------------------------------------------------------

IMAGES = (3, 8, 8)


def built(*settings: str) -> nn.Module:
    config = configure("task=images", *VGG11, *settings)
    return config.model.build(config.data.inspect())


NETWORKS = {
    "usual": lambda: [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()],
    "same": lambda: [nn.Conv2d(3, 4, (4, 2), padding="same"), nn.Tanh(), nn.Flatten()],
    "valid": lambda: [nn.Conv2d(3, 4, 3, padding="valid", dilation=2), nn.Flatten()],
    "strides": lambda: [
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), bias=False),
        nn.Flatten(),
    ],
    "groups": lambda: [
        nn.Conv2d(3, 6, 1),
        nn.Conv2d(6, 6, 3, groups=3, padding=1, stride=3),
        nn.Conv2d(6, 6, 3, groups=6, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ],
    "large": lambda: [
        nn.Conv2d(3, 6, 7, stride=2, padding=3),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(6, 4, 2, padding=3),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.Flatten(),
        nn.Dropout(0.5),
    ],
    "padded": lambda: [nn.Conv2d(3, 6, 1, padding=1), nn.Conv2d(6, 4, 1, stride=3), layers.MaxPool2d(2), nn.Flatten()],
    "dropout": lambda: [nn.Flatten(), nn.Dropout(0.2), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.4)],
    "batch norm": lambda: [
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.BatchNorm2d(4, affine=False, momentum=0.3),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Flatten(),
    ],
    "bottleneck": lambda: [
        Bottleneck(3, 1, downsample=nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))),
        nn.Sequential(Bottleneck(4, 1), nn.MaxPool2d(2)),
        nn.Flatten(),
    ],
    "resnet18": lambda: [built("model=resnet18")],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "resnet18" else []) for name in NETWORKS]
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_the_layers_of_a_gpu_give_the_gradients_of_one_worker_after_the_other(name):
    shape, n = (3, 16, 16) if name == "resnet18" else IMAGES, 3
    torch.manual_seed(0)
    network = nn.Sequential(*NETWORKS[name]())
    if name != "resnet18":
        network.append(nn.Linear(network(torch.zeros(2, *shape)).shape[1], 10))
    network.double()
    x = flat(network) + 0.05 * torch.randn(n, flat(network).numel(), dtype=torch.float64)
    batch = torch.randn(n, 4, *shape, dtype=torch.float64), torch.randint(10, (n, 4))

    def workload() -> Workload:
        return Workload(WorkerModels(network, n, CPU), (4, *shape), Precision.fp64, cross_entropy)

    for at_once in (2,) if name == "resnet18" else (1, 2, 3):
        alone, beside = workload(), workload()
        exact, fast = OneByOne(alone.models, alone.precision, cross_entropy), side_by_side(beside)
        fast.workers_at_once = at_once
        assert fast.doubt(x, *batch) is None
        workers = [2, 0, 1]
        for size in (4, 3):  # a last batch is smaller, and finds the memory of gradients already there
            part = [each[:, :size] for each in batch]
            expected = [each.clone() for each in exact(x, *part, workers, drawn)]
            for found, each in zip(fast(x, *part, workers, drawn), expected, strict=True):
                torch.testing.assert_close(found, each, rtol=0, atol=1e-12 * each.abs().max().item())
        for one, other in zip(beside.models.modules, alone.models.modules, strict=True):
            torch.testing.assert_close(dict(one.named_buffers()), dict(other.named_buffers()), rtol=0, atol=1e-12)


def block(change: Callable[[BasicBlock], object]) -> nn.Sequential:
    inside = BasicBlock(3, 3)
    change(inside)
    return nn.Sequential(inside, nn.Flatten(), nn.Linear(192, 4))


def twice(inside: BasicBlock) -> None:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    inside.conv1 = nn.Sequential(layer, nn.Tanh(), layer)


IN_BLOCKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a layer twice": (lambda: block(twice), "a layer occurs in it more than once"),
    "another's layer": (lambda: block(lambda b: setattr(b, "conv2", b.conv1)), "a layer occurs in it more than once"),
    "another's weight": (
        lambda: block(lambda b: setattr(b.conv2, "weight", b.conv1.weight)),
        "layers share parameters",
    ),
    "dropout": (
        lambda: block(lambda b: setattr(b, "relu", nn.Dropout(0.5))),
        "its dropout draws for one worker at a time",
    ),
    "no bias": (lambda: block(lambda b: setattr(b.bn1, "bias", None)), "BatchNorm2d, or not with these settings"),
    "something unused": (
        lambda: changed(lambda m: setattr(m, "spare", nn.Linear(2, 2)), lambda: built("model=resnet18")),
        "it has parameters outside of the sequence",
    ),
}


def test_what_workers_cannot_share_inside_a_block_is_refused():
    for make, reason in IN_BLOCKS.values():
        assert reason in str(layers.refusal(make(), columns.WAY))


def test_statistics_of_a_batch_that_go_to_another_worker_are_noticed(monkeypatch):
    def swapped(layer, x, own, rest):
        return columns._batch_norm(layer, x, own, rest._replace(norms={layer: rest.norms[layer][::-1]}))

    monkeypatch.setitem(columns.LAYERS, nn.BatchNorm2d, swapped)
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 10))
    passes = side_by_side(Workload(WorkerModels(network, 2, CPU), (4, *IMAGES), Precision.fp32, cross_entropy))
    batch = torch.randn(2, 4, *IMAGES), torch.randint(10, (2, 4))
    assert passes.doubt(flat(network).repeat(2, 1), *batch) == "its layers compute something else side by side"


def side_by_side(workload: Workload) -> SideBySide:
    return SideBySide(workload, *layers.shared(workload, columns.WAY), columns.WAY)


def test_a_module_that_reads_a_counter_from_the_gpu_is_not_recorded():
    for momentum in (0.1, None):
        network = nn.Sequential(nn.BatchNorm2d(3, momentum=momentum), nn.Flatten(), nn.Linear(192, 10))
        passes = OneByOne(WorkerModels(network, 2, CPU), Precision.fp32, cross_entropy)
        assert replayed.Replayed(passes, 2).replays is (momentum is not None)


def hearing(world: World) -> list[str]:
    own = ("of all",) if world.leader else ("of all", "of this process")
    run: Any = SimpleNamespace(problem=SimpleNamespace(notes=own), heard=[])
    Run.hear(run, world)
    return run.heard


def test_the_leader_hears_notes_that_only_other_processes_have(worlds):
    assert worlds(2).call(hearing) == [["process 1: of this process"], []]


def drawn(j: int) -> None:
    seed_draws(CPU, 0, j)


def test_models_of_many_layers_agree_in_bfloat16_when_a_rounding_of_the_models_matters_as_much():
    expected = torch.ones(2, 100)
    off = expected + 0.2
    assert not agree(off, expected, Precision.bf16)
    assert agree(off, expected, Precision.bf16, expected + 0.15)
    assert not agree(off, expected, Precision.bf16, expected + 0.05)
    assert not agree(expected.flip(0) * -1, expected, Precision.bf16, -expected)  # of another worker


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        (("num_workers=16",), Batched),
        (("num_workers=2",), Loop),
        (("num_workers=16", "batch_size=64"), Loop),  # not measured
        (("num_workers=16", "model=resnet18"), Loop),
    ],
)
def test_auto_shares_calls_of_convolutions_on_a_gpu_where_that_was_measured(settings, choice, monkeypatch):
    workload = work(*VGG11, "batch_size=32", *settings)
    workload.models.device = torch.device("cuda")
    assert type(Auto().choice(workload)) is choice


@pytest.mark.slow
def test_the_kernels_of_a_gpu_compute_what_torch_does():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE)}
    subprocess.run([sys.executable, HERE / "interpreted.py"], env=environment, check=True)


# -- What a GPU computes is what a CPU computes, and recorded passes are the usual ones; skipped where th --------------

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 12
BASE = ("precision=fp64", "num_workers=8", "batch_size=8", f"steps={STEPS}", "processes=1", "launcher=local")
LOCKSTEP = (
    "allreduce",
    "d2",
    "dmsgd",
    "dpsgd",
    "gradient_tracking",
    "local_sgd",
    "qg_dpsgd",
    "relaysgd",
    "sgp",
    "choco",
    "beer",
    "demo",
)
ASYNCHRONOUS = ("wagma", "eager_sgd", "adpsgd", "a2cid2", "async_push_sum")
COMPRESSED = (
    "topk",
    "lwtopk",
    "artopk",
    "mstopk",
    "randomk",
    "threshold",
    "bf16",
    "int8",
    "sign",
    "powersgd",
    "dct_topk",
)


def trained(device: str, overrides: Sequence[str], steps: int = STEPS) -> tuple[Tensor, dict[str, Tensor], int]:
    """Models and buffers after some steps, on the CPU, and how many times the passes were recorded."""
    config = compose([*BASE, *overrides, f"device={device}"])
    with torch.no_grad():
        run = assemble(
            prepare(config), World(0, 1, torch.device(device, 0) if device == "cuda" else torch.device(device))
        )
        for _ in range(steps):
            run.stepper.step()
        run.stepper.flush()
        recordings = len(getattr(getattr(run.problem, "passes", None), "_recordings", ()))
        states = [state.get("tensors", {}) for state in run.problem.model_states()]
        buffers = {
            f"{i} {name}": buffer.double().cpu() for i, state in enumerate(states) for name, buffer in state.items()
        }
        models = run.stepper.models.cpu().clone()
        run.close()
    return models, buffers, recordings


CASES = [
    *([f"algo={name}"] for name in LOCKSTEP),
    *([f"algo={name}", "cluster=two_delayed"] for name in ASYNCHRONOUS),
    *(["algo=allreduce", f"compress={name}"] for name in COMPRESSED),
    ["algo=dpsgd", "topology=ring", "execution=batched"],
    ["algo=dpsgd", "topology=ring", "optim=adam"],
    ["algo=d2", "topology=ring", "task=quadratics"],
]


@GPU
@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_a_gpu_takes_the_steps_of_a_cpu(overrides: list[str]) -> None:
    (cpu, _, _), (gpu, _, _) = trained("cpu", overrides), trained("cuda", overrides)
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=1e-9)


SYNTHETIC = ("data=synthetic", "data.image_size=32", "partition=iid")
PASSES = [
    [*SYNTHETIC, "model=vgg11", "algo=dpsgd", "topology=ring"],  # draws dropout
    [*SYNTHETIC, "model=vgg11", "algo=adpsgd", "cluster=two_delayed"],  # some workers at a time
    ["model=cnn", "algo=relaysgd", "topology=dbt"],
    ["model=cnn", "algo=dpsgd", "topology=ring", "execution=batched"],
    [*SYNTHETIC, "model=vgg11", "algo=dpsgd", "topology=ring", "execution=batched"],
    ["model=resnet18", "algo=dpsgd", "topology=ring"],  # changes batch statistics
]


@pytest.mark.parametrize("overrides", [CASES[0], CASES[-1]])
def test_what_is_compared_with_a_gpu_is_there_on_a_cpu(overrides: list[str]) -> None:
    """So that these tests do not break where they are skipped."""
    models, _, recordings = trained("cpu", overrides, steps=1)
    assert models.abs().max() > 0 and recordings == 0


@GPU
@pytest.mark.parametrize("overrides", PASSES, ids=" ".join)
def test_recorded_passes_are_the_usual_ones(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    models, buffers, recordings = trained("cuda", overrides)
    assert recordings > 0
    monkeypatch.setattr(replayed, "replayed", lambda passes: passes)
    usual, usual_buffers, none = trained("cuda", overrides)
    assert none == 0
    torch.testing.assert_close(models, usual, rtol=0, atol=1e-6)
    torch.testing.assert_close(buffers, usual_buffers, rtol=0, atol=1e-6)
