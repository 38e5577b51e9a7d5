"""Image classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.tasks.task import Problem, Task

if TYPE_CHECKING:
    import torch

    from decentral.config import Config


@dataclass
class Images(Task):
    """Image classification: `data` split over the workers by `partition`, `model` trained with cross-entropy.

    Every worker draws batches of `batch_size` from its own part, reshuffled in every epoch (reshuffle=false: one order
    for ever, as the thesis). An epoch is floor(N / n) // batch_size steps; with drop_last=false a last, smaller batch
    is added. Every worker's model is tested on the whole test set, and so is their average; batch-norm statistics are
    each worker's own, and for the average they are recomputed on training pictures of all workers.

    test_batch_size        pictures per forward pass in evaluation
    statistics_pictures    on how many training pictures batch-norm statistics are recomputed, in batches of at most 64
    """

    name: str = "images"
    reshuffle: bool = True
    drop_last: bool = True
    test_batch_size: int = 500
    statistics_pictures: int = 512
    uses: ClassVar[tuple[str, ...]] = ("data", "partition", "model")
    eval_every_epochs: ClassVar[float] = 4.0
    has_samples: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for key in ("test_batch_size", "statistics_pictures"):
            if getattr(self, key) < 1:
                raise ConfigError(f"task.{key}={getattr(self, key)} makes no sense: it has to be at least 1.")

    def check(self, config: Config) -> None:
        """The data is there, can be split, and the model takes its pictures."""
        info = config.data.inspect()
        config.model.check(info.image_shape)
        config.partition.check(info.num_train, config.num_workers)
        assert config.num_workers is not None
        share = info.num_train // config.num_workers
        if self.drop_last and share < config.batch_size:
            raise ConfigError(
                f"batch_size={config.batch_size} is more than the {share} training pictures that each of "
                f"num_workers={config.num_workers} workers gets of data={config.data.name}: use "
                f"batch_size={max(share, 1)} or less."
            )

    def prepare(self, config: Config) -> None:
        """Download or decode the data."""
        config.data.prepare()

    def worth_processes(self, config: Config) -> bool:
        """All but small models on small pictures."""
        _, height, width = config.data.inspect().image_shape
        return not (config.model.small and height * width <= 28 * 28)

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and data."""
        from decentral.tasks.problems.classification import Classification

        return Classification(self, config, workers, device)
