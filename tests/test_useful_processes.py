"""`processes=auto`: as many as there are cores where a run is long enough for them, by the work that is in it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from decentral.config.composition import compose
from decentral.data.description import ImageData
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.models.small import CNN, MLP
from decentral.models.vgg import VGG11
from decentral.runtime.devices import num_processes

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 40, 64)]
MNIST = ("data=synthetic", "data.num_channels=1", "data.image_size=28", "data.num_classes=10", "data.num_train=60000")


def counted(module: nn.Module, shape: tuple[int, ...]) -> int:
    """The multiplications of a forward pass of one example, by looking at every layer."""
    total, x = 0, torch.zeros(1, *shape)
    for layer in module:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            total += layer.weight.numel() * x.shape[2] * x.shape[3]
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()
    return total


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", [CNN(), MLP(), MLP(hidden=[])], ids=["cnn", "mlp", "regression"])
def test_a_model_knows_its_multiplications_without_being_built(model, shape):
    data = ImageData(shape=shape, num_classes=7)
    assert model.multiplications(data) == counted(model.build(data), shape)


def test_what_has_not_been_counted_has_many():
    assert math.isinf(VGG11().multiplications(ImageData(shape=(3, 32, 32), num_classes=10)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("data=digits",), 2),  # four seconds of passes: one second saved by a third process is too little
        (("data=digits", "epochs=50"), 1),
        (("data=digits", "model=mlp"), 1),
        ((*MNIST, "epochs=10"), 10),
        ((*MNIST, "steps=10"), 1),
        ((*MNIST, "steps=4", "model=vgg11", "data.image_size=32"), math.inf),
        (("task=quadratics", "steps=1000000"), 1),
    ],
)
def test_several_processes_are_for_runs_that_are_long_enough(settings, expected):
    config = compose(settings)
    assert config.task.useful_processes(config) == expected


@pytest.mark.parametrize("algo", ["algo=dpsgd", "algo=adpsgd"])
def test_where_time_is_simulated_a_run_of_a_sweep_has_one_process_as_one_alone_has(algo):
    """Between several, workers of a described cluster really sleep."""
    config = compose([algo, "topology=hypercube", "num_workers=4", "cluster=one_slow", *MNIST, "epochs=10"])
    assert config.task.useful_processes(config) > 1
    assert TrainingRun(config).demand.processes == 1 == num_processes(config)


def test_a_certain_gpu_is_for_one_process(monkeypatch):
    monkeypatch.setattr("decentral.runtime.devices.num_gpus", lambda: 4)
    chosen = compose([*MNIST, "epochs=10", "device=cuda:1"])
    assert num_processes(chosen) == 1 < num_processes(replace(chosen, device="cuda"))
    with pytest.raises(ConfigError, match="processes=2 with device=cuda:1: every process needs a GPU of its own"):
        num_processes(replace(chosen, processes="2"))
