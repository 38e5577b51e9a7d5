"""Data of CIFAR-10's shape, made up: for what a run costs, not for what it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decentral.data.cifar10 import Cifar10
from decentral.data.description import ImageData

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory


@dataclass
class CifarLike(Cifar10):
    """Random images, treated as those of CIFAR-10 are."""

    name: str = "cifar_like"
    num_train: int = Cifar10.INFO.num_train
    num_test: int = Cifar10.INFO.num_test

    def inspect(self) -> ImageData:
        """As many images as there are to be."""
        return ImageData(
            num_train=self.num_train,
            num_test=self.num_test,
            num_classes=self.INFO.num_classes,
            shape=self.INFO.shape,
        )

    def prepare(self) -> None:
        """Nothing is kept."""

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """The same images each time."""
        draws, arrays = np.random.default_rng(0), dict[str, np.ndarray]()
        for split, count in (("train", self.num_train), ("test", self.num_test)):
            arrays[f"{split}_images"] = draws.integers(256, size=(count, *self.INFO.shape), dtype=np.uint8)
            arrays[f"{split}_labels"] = draws.integers(self.INFO.num_classes, size=count)
        return self.in_memory(arrays, device, seed)
