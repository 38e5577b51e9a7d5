"""What all tasks share that train a network on the examples of a data set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription
from decentral.errors import ConfigError
from decentral.registry import components
from decentral.tasks.task import Task

if TYPE_CHECKING:
    from decentral.config.schema import Config

_MULTIPLICATIONS_PER_S = 5e10
_CALLS_S = 50e-6  # for the calls of a worker's layers in a step
_START_S = 1.0  # until a process has started and found the others


class SupervisedTask(Task):
    """`data` split over the workers by `partition`, `model` trained with a loss of its outputs and the targets."""

    name: str
    reshuffle: bool
    """Whether a worker's examples are shuffled anew in every epoch."""
    drop_last: bool
    """Whether the examples that fill no batch are left out at the end of an epoch."""
    takes: ClassVar[type[DataDescription]]
    """The kind of data."""
    wants: ClassVar[str]
    """The same in words, for the sentence that refuses other data."""
    example_data: ClassVar[str]
    """A data set of that kind."""
    uses: ClassVar[tuple[str, ...]] = ("data", "partition", "model")
    eval_every_epochs: ClassVar[float] = 4.0
    has_samples: ClassVar[bool] = False

    def check(self, config: Config) -> None:
        """The data is there, can be split, and the model takes it."""
        info = config.data.inspect()
        if not isinstance(info, self.takes):
            fits = [name for name, task in components("tasks").items() if isinstance(info, getattr(task, "takes", ()))]
            other = f", or task={fits[0]}" if fits else ""
            raise ConfigError(
                f"task={self.name} is for {self.wants}, but data={config.data.name} has {info.kind}: choose such data, "
                f"as data={self.example_data} has{other}."
            )
        config.model.check(info)
        assert config.num_workers is not None
        config.partition.check(info.num_train, config.num_workers)
        config.partition.check_labels(info.num_labels, config.num_workers)
        share = info.num_train // config.num_workers
        if self.drop_last and share < config.batch_size:
            raise ConfigError(
                f"batch_size={config.batch_size} is more than the {share} training {info.kind} that each of "
                f"num_workers={config.num_workers} workers gets of data={config.data.name}: use "
                + (f"batch_size={share} or less." if share > 1 else "fewer workers.")
            )

    def prepare(self, config: Config) -> None:
        """Download or decode the data."""
        config.data.prepare()

    def num_examples(self, config: Config) -> tuple[int, int]:
        """Of the data set."""
        info = config.data.inspect()
        return info.num_train, info.num_test

    def useful_processes(self, config: Config) -> float:
        """The most of which each still saves more time than it takes to start: W / (k - 1) - W / k > s for the k-th.

        All passes take W, a process s = 1 second to start. A step of n workers with batches of B takes about
        3 n B m / (5e10 per second) + 50 us n on a core, for a model of m multiplications: forward and backward passes,
        and their calls. (Measured on a core: cnn, n = 16, B = 32, 11 ms on 8 x 8 digits, 64 ms on 28 x 28; mlp, n = 64,
        B = 16, 3.4 ms.)
        """
        info, n = config.data.inspect(), config.num_workers
        assert n is not None
        steps = config.steps or config.epochs * max(1, info.num_train // n // config.batch_size)
        step_s = 3 * n * config.batch_size * config.model.multiplications(info) / _MULTIPLICATIONS_PER_S + n * _CALLS_S
        W = steps * step_s
        return (1 + math.sqrt(1 + 4 * W / _START_S)) // 2 if math.isfinite(W) else math.inf

    def num_parameters(self, config: Config) -> int:
        """Of the model, which is built without memory for its values, and without the data."""
        import torch

        with torch.device("meta"):
            parameters = config.model.build(config.data.inspect()).parameters()
            return sum(p.numel() for p in parameters if p.requires_grad)
