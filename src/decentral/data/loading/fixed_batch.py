"""One random batch for each worker, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decentral.data.dataset import Loaded
from decentral.data.description import ImageData
from decentral.randomness import torch_generator

if TYPE_CHECKING:
    from decentral.data.dataset import Batches, Order


class FixedBatch(Loaded):
    """Images are standard normal and depend on (seed, worker) only; `train_labels` are for the partition alone."""

    def __init__(self, info: ImageData, train_labels: np.ndarray, *, device: torch.device | str, seed: int) -> None:
        self.device, self.seed, self.info = torch.device(device), seed, info
        self.train_labels, self.num_classes, self.num_test = train_labels, info.num_classes, info.num_test

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`; of `order` only the size of its batches counts."""
        drawn: dict[int, tuple[Tensor, Tensor]] = {}
        for step in range(start, stop):
            size = order(step).shape[1]
            if size not in drawn:
                each = [self._draw("training", size, worker) for worker in workers]
                drawn[size] = torch.stack([x for x, _ in each]), torch.stack([y for _, y in each])
            batch = drawn[size]
            version = batch[0]._version
            yield batch
            if batch[0]._version != version:  # a model has written into it
                del drawn[size]

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`."""
        images, labels = self._draw("test", self.num_test, 0)
        for batch in batches:
            yield images[batch.to(images.device)], labels[batch.to(images.device)]

    def close(self) -> None:
        """Nothing to stop."""

    def _draw(self, split: str, size: int, worker: int) -> tuple[Tensor, Tensor]:
        generator = torch_generator("cpu", self.seed, f"synthetic {split}", worker)
        images = torch.randn(size, *self.info.shape, generator=generator)
        labels = torch.randint(self.num_classes, (size,), generator=generator)
        return images.to(self.device), labels.to(self.device)
