"""Language modelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decentral.data.description import DataDescription, NextTokens
from decentral.tasks.supervised import SupervisedTask

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config
    from decentral.tasks.task import Problem


@dataclass
class Language(SupervisedTask):
    """Language modelling: `model` predicts the next token of running text, which `partition` deals to the workers.

    A worker draws batches of `batch_size` windows of its own part. The loss is the mean over tokens of -log p(token),
    in nats. Tested on the ends of all sources: loss, bits per character, perplexity exp(loss), each from sums over the
    tokens. Unless told otherwise: data=textfile partition=natural model=char_transformer optim=adam lr=0.003
    batch_size=8 epochs=6.

    reshuffle    a worker's windows in another order in every epoch
    drop_last    leave out the windows that fill no batch at the end of an epoch
    """

    name: str = "language"
    reshuffle: bool = True
    drop_last: bool = True
    takes: ClassVar[type[DataDescription]] = NextTokens
    wants: ClassVar[str] = "running text"
    example_data: ClassVar[str] = "textfile"
    usual: ClassVar[Mapping[str, str]] = {
        "data": "textfile",
        "partition": "natural",
        "model": "char_transformer",
        "optim": "adam",
        "lr": "0.003",
        "batch_size": "8",
        "epochs": "6",
    }
    eval_every_epochs: ClassVar[float] = 3.0

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The local workers' models and text."""
        from decentral.tasks.problems.next_token import NextTokenPrediction

        return NextTokenPrediction(self, config, workers, device)
