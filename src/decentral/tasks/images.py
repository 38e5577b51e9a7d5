"""Image classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, LabelledData
from decentral.settings import setting
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config
    from decentral.tasks.task import Problem


@dataclass
class Images(SupervisedTask):
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
    statistics_images: int = setting(512, at_least=1)
    takes: ClassVar[type[DataDescription]] = LabelledData
    wants: ClassVar[str] = "images with labels"
    example_data: ClassVar[str] = "digits"

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and data."""
        from decentral.tasks.problems.classification import Classification

        return Classification(self, config, workers, device, statistics_examples=self.statistics_images)
