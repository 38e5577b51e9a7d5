"""The contract of a data set: look at it quickly, prepare it once, load it onto a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    Order = Callable[[int], Tensor]
    """order(step) -> LongTensor [k, B] on the CPU: the pictures of each local worker. Pure: it may be called ahead."""
    Batches = Generator[tuple[Tensor, Tensor], None, None]


@dataclass(frozen=True)
class DataInfo:
    """What is known of a data set before torch is imported."""

    num_train: int
    num_test: int
    num_classes: int
    image_shape: tuple[int, int, int]  # (C, H, W)


class DataSet(ABC):
    """A data set as the user chooses it. The concrete ones are dataclasses: their fields are the configuration."""

    @abstractmethod
    def inspect(self) -> DataInfo:
        """Counts and shapes, within a fraction of a second and without torch.

        Raises ConfigError if the folder is missing, malformed or empty.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Download or decode everything into the cache (`cache.py`), once; slow the first time.

        Several processes may call it at once, and any of them may be killed midway.
        Raises ConfigError if the download fails or a picture is broken (and names it).
        """

    @abstractmethod
    def load(self, device: torch.device | str, seed: int) -> Loaded:
        """The prepared data, ready to be drawn from; `seed` is the run's, it addresses the augmentation."""


class Loaded(ABC):
    """A data set on a device."""

    train_labels: np.ndarray  # [N] int64, for the partition
    num_classes: int

    @abstractmethod
    def train_batches(self, order: Order, workers: range, start: int, stop: int) -> Batches:
        """Images [k, B, C, H, W] float32, normalised and augmented, and labels [k, B] int64, for start <= step < stop.

        `workers` are the global numbers of the k rows of `order(step)`. The augmentation of a picture depends on
        (seed, worker, step, position in the row) only: not on the other workers of this process, on how far ahead
        batches are read, or on the device. Close the iterator to stop whatever it started before it is exhausted.
        """

    @abstractmethod
    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images [b, C, H, W] float32, normalised, and labels [b] int64, in a fixed order; the last may be smaller."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; the object is not used afterwards."""
