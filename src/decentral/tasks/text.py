"""Text classification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, LabelledTokens
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config
    from decentral.tasks.task import Problem


@dataclass
class Text(SupervisedTask):
    """Text classification: texts of `data`, in tokens, split over the workers; `model` trained with cross-entropy.

    Batches are drawn as with task=images. Texts of a batch are filled up to the longest of the step; padding has no
    part in any model. Unless told otherwise: data=synthetic_text model=fasttext optim=adam lr=0.01 epochs=20.

    reshuffle    a worker's texts in another order in every epoch
    drop_last    leave out the texts that fill no batch at the end of an epoch
    """

    name: str = "text"
    reshuffle: bool = True
    drop_last: bool = True
    takes: ClassVar[type[DataDescription]] = LabelledTokens
    wants: ClassVar[str] = "texts with labels"
    example_data: ClassVar[str] = "synthetic_text"
    usual: ClassVar[Mapping[str, str]] = {
        "data": "synthetic_text",
        "model": "fasttext",
        "optim": "adam",
        "lr": "0.01",
        "epochs": "20",
    }

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and data."""
        from decentral.tasks.problems.classification import Classification

        return Classification(self, config, workers, device)
