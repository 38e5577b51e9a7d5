"""The problem behind task=images and task=text: cross-entropy of one model per worker on that worker's examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from decentral.store.metadata import Metric
from decentral.tasks.problems.supervised import Supervised

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.tasks.supervised import SupervisedTask


class Classification(Supervised):
    """Which of several classes an example is of."""

    loss = staticmethod(F.cross_entropy)
    num_statistics = 3

    def __init__(
        self,
        task: SupervisedTask,
        config: Config,
        workers: range,
        device: torch.device,
        *,
        statistics_examples: int = 512,
    ) -> None:
        super().__init__(task, config, workers, device, statistics_examples=statistics_examples)
        self.metrics = (
            Metric("test", "accuracy", larger_is_better=True, unit="%", chance=1 / self.data.num_classes),
            Metric("test", "loss", unit=self.loss_unit),
        )

    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Correct, sum of cross-entropies, count: [3]."""
        total[0] += (outputs.argmax(1) == targets).sum()
        total[1] += self.loss(outputs, targets, reduction="sum")
        total[2] += len(targets)

    def finish(self, statistics: Tensor) -> Tensor:
        """Accuracy and mean cross-entropy: [..., 3] -> [..., 2]."""
        return statistics[..., :2] / statistics[..., 2:]

    def save_tables(self, directory: Path) -> None:
        """partition.csv: the distribution of the classes over the workers."""
        from decentral.partition.partition import class_counts, save_table

        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        save_table(counts, directory / "partition.csv")
