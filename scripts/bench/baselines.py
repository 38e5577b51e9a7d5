"""What the benchmarks hold this program against: the same training as others do it; data and models for measuring."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.harness import passes
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.data.cifar10 import Cifar10
from decentral.data.dataset import ImageData
from decentral.data.loading.in_memory import InMemory
from decentral.measurements.timing import Stepping, Work
from decentral.models.model import ImageModel
from decentral.network.processes import split_workers
from decentral.network.world import World
from decentral.training.assemble import assemble

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # channels, in units of the width; 2x2 max pooling ends a stage


@dataclass
class CifarLike(Cifar10):
    """Random images, treated as those of CIFAR-10 are: for what a run costs, not for what it learns."""

    name: str = "cifar_like"
    num_train: int = Cifar10.INFO.num_train
    num_test: int = Cifar10.INFO.num_test

    def inspect(self) -> ImageData:
        """As many images as there are to be."""
        return replace(self.INFO, num_train=self.num_train, num_test=self.num_test)

    def prepare(self) -> Any:
        """Nothing is kept."""

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """The same images each time."""
        draws, arrays = np.random.default_rng(0), dict[str, np.ndarray]()
        for split, count in (("train", self.num_train), ("test", self.num_test)):
            arrays[f"{split}_images"] = draws.integers(256, size=(count, *self.INFO.shape), dtype=np.uint8)
            arrays[f"{split}_labels"] = draws.integers(self.INFO.num_classes, size=count)
        return self.in_memory(arrays, device, seed)


@dataclass
class NarrowVGG(ImageModel):
    """The convolutions of VGG-11 with fewer channels, and one linear layer: between the tiny models and the large ones.

    903,010 parameters on 3 x 32 x 32 images with 10 classes. It computes as much for each parameter as VGG-11 does.
    """

    name: str = "narrow_vgg"
    width: int = 20
    min_image_size: ClassVar[int] = 32

    def build(self, data: ImageData) -> nn.Module:
        """Convolutions and a linear layer: images [B, C, H, W] -> logits [B, num_classes]."""
        channels, height, width = data.shape
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for factor in stage:
                layers += [nn.Conv2d(channels, factor * self.width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = factor * self.width
            layers.append(nn.MaxPool2d(2))
        inputs = channels * (height // 2 ** len(_STAGES)) * (width // 2 ** len(_STAGES))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, data.num_classes))


class PlainLoop:
    """The gradients of several workers as one would write it first: a module for each, and `backward()` in turn.

    The parameters of worker i are views of row i of x [k, P], and their `grad` views of row i of g [k, P], which is
    set to zero before and added to by autograd.
    """

    def __init__(self, template: nn.Module, x: Tensor) -> None:
        self.modules, self.g = [deepcopy(template) for _ in x], torch.zeros_like(x)
        for module, row, gradient in zip(self.modules, x, self.g, strict=True):
            start = 0
            for parameter in module.parameters():
                part = slice(start, start + parameter.numel())
                parameter.data = row[part].view(parameter.shape)
                parameter.grad = gradient[part].view(parameter.shape)
                start = part.stop

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropies [k] and their gradients g, for images [k, B, C, H, W] and labels [k, B]."""
        self.g.zero_()
        losses = []
        with torch.enable_grad():
            for module, batch, classes in zip(self.modules, images, labels, strict=True):
                loss = F.cross_entropy(module(batch), classes)
                loss.backward()
                losses.append(loss.detach())
        return torch.stack(losses), self.g


# -- of several processes: each makes its part of a work from a configuration and the world ----------------------------


Setup = Callable[[World], Work]
"""Makes a work in each process, together with the others; it can be pickled."""


class Call(Work):
    """Calls a function."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __call__(self) -> None:
        """Once."""
        self.work()


def training(config: Config, world: World) -> Work:
    """Our own steps, as a run takes them."""
    return Stepping(assemble(prepare(config), world))


def passes_alone(config: Config, world: World) -> Work:
    """The forward and backward passes of the workers of each process, and nothing else: `harness.passes`."""
    run = assemble(prepare(config), world)
    work = Call(passes(run))
    run.close()
    return work


def data_parallel(config: Config, world: World) -> Work:
    """`DistributedDataParallel` with `torch.optim.SGD`, as it comes; one model, the batch of one worker per process."""
    module, images, labels = model_and_batch(config, world)
    return Call(PlainTraining(DistributedDataParallel(module), images, labels, config))


class PlainTraining:
    """The loop that PyTorch's tutorials teach, on one batch, in the precision of the configuration."""

    def __init__(self, module: nn.Module, images: Tensor, labels: Tensor, config: Config) -> None:
        self.module, self.images, self.labels, self.precision = module, images, labels, config.precision
        self.optimizer = torch.optim.SGD(module.parameters(), lr=config.lr, momentum=config.optim.momentum)

    def __call__(self) -> None:
        """Zero the gradients, forward, backward, step."""
        device = self.images.device
        with torch.enable_grad(), self.precision.passes(device):
            self.optimizer.zero_grad()
            with self.precision.forward(device):
                loss = F.cross_entropy(self.module(self.images), self.labels)
            loss.backward()
            self.optimizer.step()


def model_and_batch(config: Config, world: World) -> tuple[nn.Module, Tensor, Tensor]:
    """The configuration's model on this process's device, and the first batch of all its workers as one."""
    assert config.num_workers is not None
    workers = split_workers(config.num_workers, world.size)[world.rank]
    problem = config.task.open(config, workers, world.device)
    images, labels = problem.batch_of(None, 0)
    module = config.model.build(config.data.inspect()).to(world.device)
    problem.close()
    return module, images.flatten(0, 1), labels.flatten()
