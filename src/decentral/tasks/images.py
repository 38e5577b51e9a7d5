"""Image classification."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import LabelledData
from decentral.errors import ConfigError, check_at_least
from decentral.tasks.task import Problem, Task

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config


_MULTIPLICATIONS_PER_S = 5e10
_CALLS_S = 50e-6  # for the calls of a worker's layers in a step
_START_S = 1.0  # until a process has started and found the others


@dataclass
class Images(Task):
    """Image classification: `data` split over the workers by `partition`, `model` trained with cross-entropy.

    Every worker draws batches of `batch_size` from its own part, reshuffled in every epoch (reshuffle=false: one order
    for ever, as the thesis). An epoch is floor(N / n) // batch_size steps; with drop_last=false a last, smaller batch
    is added. Every worker's model is tested on the whole test set in the end, and so is their average (on the way:
    `evaluation.examples`); batch-norm statistics are each worker's own, and for the average they are recomputed on
    training images of all workers.

    statistics_images      on how many training images batch-norm statistics are recomputed, in batches of at most 64
    """

    name: str = "images"
    reshuffle: bool = True
    drop_last: bool = True
    statistics_images: int = field(default=512, metadata={"was": "statistics_pictures"})
    uses: ClassVar[tuple[str, ...]] = ("data", "partition", "model")
    eval_every_epochs: ClassVar[float] = 4.0
    has_samples: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_at_least("task.statistics_images", self.statistics_images)

    def check(self, config: Config) -> None:
        """The data is there, can be split, and the model takes its images."""
        info = config.data.inspect()
        if not isinstance(info, LabelledData):
            raise ConfigError(
                f"task=images is for images with labels, but data={config.data.name} has {info.kind}: choose data= "
                "with images, such as data=digits."
            )
        config.model.check(info)
        config.partition.check(info.num_train, config.num_workers)
        assert config.num_workers is not None
        share = info.num_train // config.num_workers
        if self.drop_last and share < config.batch_size:
            raise ConfigError(
                f"batch_size={config.batch_size} is more than the {share} training images that each of "
                f"num_workers={config.num_workers} workers gets of data={config.data.name}: use "
                f"batch_size={max(share, 1)} or less."
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
            return sum(p.numel() for p in config.model.build(config.data.inspect()).parameters())

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and data."""
        from decentral.tasks.problems.classification import Classification

        return Classification(self, config, workers, device)
