"""Classification of examples, and cross-entropy of the next token of running text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decentral.data.dataset import IGNORED
from decentral.store.metrics import Metric
from decentral.tasks.problems.losses import losses
from decentral.tasks.problems.supervised import Supervised

if TYPE_CHECKING:
    from decentral.data.loading.in_memory import Windows
    from decentral.data.loading.token_windows import TokenWindows
    from decentral.tasks.supervised import ClassificationTask, SupervisedTask
    from decentral.tasks.task import TaskConfig


class Classification(Supervised):
    """Classification of examples."""

    num_statistics = 3

    def __init__(self, task: ClassificationTask, config: TaskConfig, workers: range, device: torch.device) -> None:
        chosen = losses(task.loss, task.label_smoothing, config.data.inspect().num_classes)
        self.loss, self.test_loss, self.loss_unit = chosen
        super().__init__(task, config, workers, device)
        self.usual_metrics = (
            Metric("test", "accuracy", larger_is_better=True, unit="%", chance=1 / self.data.num_classes),
            Metric("test", "loss", unit=self.loss_unit),
        )

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the number of correct examples, the sum of losses, and the count: [3]."""
        total[0] += (outputs.argmax(1) == targets).sum()
        total[1] += self.test_loss(outputs, targets, reduction="sum")
        total[2] += len(targets)

    def usual_values(self, statistics: Tensor) -> Tensor:
        """Return accuracy and mean loss: [..., 3] -> [..., 2]."""
        return statistics[..., :2] / statistics[..., 2:]


def next_token_loss(outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
    """Return -log p of targets [B, L] for outputs [B, L, vocabulary]: mean, sum, or one for each [B L]. Padding has the
    loss 0, and does not count in the mean."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


class NextTokenPrediction(Supervised):
    """Cross-entropy of every token of a batch except padding, each with the same weight."""

    loss = staticmethod(next_token_loss)
    ignored: int | None = IGNORED
    dealt: ClassVar[str] = "source"
    num_statistics = 3
    usual_metrics: tuple[Metric, ...] = (
        Metric("test", "loss", unit="nats"),
        Metric("test", "bits_per_character", unit="bits"),
        Metric("test", "perplexity"),
    )
    data: Windows | TokenWindows

    def __init__(self, task: SupervisedTask, config: TaskConfig, workers: range, device: torch.device) -> None:
        super().__init__(task, config, workers, device)
        if self.data.unigram is None:
            self.usual_metrics = self.usual_metrics[::2]
            return
        self.notes = (
            *self.notes,
            f"the frequencies of tokens in the training text alone have a test loss of {self.data.unigram:.3f} nats",
        )

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the sum of -log p, the number of tokens, and the number of their characters: [3]."""
        total[0] += self.loss(outputs, targets, reduction="sum")
        total[1] += (targets != IGNORED).sum()
        if self.data.characters is not None:
            total[2] += self.data.characters[targets].sum()

    def usual_values(self, statistics: Tensor) -> Tensor:
        """Return nats per token, bits per character, perplexity: [..., 3] -> [..., 3]; for token shards, whose
        characters are unknown, the first and the last."""
        nats, tokens, characters = statistics.unbind(-1)
        values = [nats / tokens, nats / math.log(2) / characters, (nats / tokens).exp()]
        return torch.stack(values if self.data.characters is not None else values[::2], dim=-1)
