"""A worker's forward and backward passes, alone and in PyTorch's own ways to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.benchmarks.harness.cpu_steps import passes
from decentral.jobs.timing.group import Stepping, Work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decentral.config.schema import Config
    from decentral.network.world import World


@dataclass(frozen=True)
class Training:
    """Our own steps, as a run takes them."""

    config: Config

    def __call__(self, world: World) -> Work:
        """This process's part."""
        from decentral.training.assemble import assemble

        return Stepping(assemble(self.config, world))


@dataclass(frozen=True)
class Passes:
    """The forward and backward passes of the workers of each process, and nothing else: `cpu_steps.passes`."""

    config: Config

    def __call__(self, world: World) -> Work:
        """This process's part."""
        from decentral.training.assemble import assemble

        run = assemble(self.config, world)
        work = _Passes(passes(run))
        run.close()
        return work


class _Passes(Work):
    def __init__(self, compute) -> None:  # type: ignore[no-untyped-def]
        self.compute = compute

    def __call__(self) -> None:
        import torch

        with torch.enable_grad():
            self.compute()


@dataclass(frozen=True)
class DataParallel:
    """`DistributedDataParallel` with `torch.optim.SGD`, as it comes; one model, the batch of one worker per process."""

    config: Config

    def __call__(self, world: World) -> Work:
        """This process's part."""
        from torch.nn.parallel import DistributedDataParallel

        module, images, labels = model_and_batch(self.config, world)
        return PlainTraining(DistributedDataParallel(module), images, labels, self.config)


class PlainTraining(Work):
    """The loop that PyTorch's tutorials teach, on one batch, in the precision of the configuration."""

    def __init__(self, module: nn.Module, images: Tensor, labels: Tensor, config: Config) -> None:
        import torch

        self.module, self.images, self.labels, self.precision = module, images, labels, config.precision
        rule = config.optim
        self.optimizer = torch.optim.SGD(module.parameters(), lr=config.lr, momentum=rule.momentum)

    def __call__(self) -> None:
        """Zero the gradients, forward, backward, step."""
        import torch
        import torch.nn.functional as F

        device = self.images.device
        with torch.enable_grad(), self.precision.passes(device):
            self.optimizer.zero_grad()
            with self.precision.forward(device):
                loss = F.cross_entropy(self.module(self.images), self.labels)
            loss.backward()
            self.optimizer.step()


def model_and_batch(config: Config, world: World) -> tuple[nn.Module, Tensor, Tensor]:
    """The configuration's model on this process's device, and the first batch of all its workers as one."""
    from decentral.network.processes import split_workers

    assert config.num_workers is not None
    workers = split_workers(config.num_workers, world.size)[world.rank]
    problem = config.task.open(config, workers, world.device)
    images, labels = problem.next_batch(0)
    info = config.data.inspect()
    module = config.model.build(info).to(world.device)
    problem.close()
    return module, images.flatten(0, 1), labels.flatten()
