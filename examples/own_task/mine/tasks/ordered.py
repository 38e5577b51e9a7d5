"""A task for ordered classes, such as the stars of a review: how far is a guess from the label?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.dataset import DataDescription, LabelledData
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config
    from decentral.tasks.task import Problem


@dataclass
class Ordered(SupervisedTask):
    """Labels 0, 1, 2, ... that are in order: the mean of the predicted distribution should match the label.

    reshuffle    shuffle a worker's examples in every epoch
    drop_last    leave out an incomplete batch at the end of an epoch
    """

    name: str = "ordered"
    reshuffle: bool = True
    drop_last: bool = True
    takes: ClassVar[type[DataDescription]] = LabelledData
    wants: ClassVar[str] = "examples with labels"
    example_data: ClassVar[str] = "digits"

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and data."""
        from ordered_problem import OrderedProblem

        return OrderedProblem(self, config, workers, device)
