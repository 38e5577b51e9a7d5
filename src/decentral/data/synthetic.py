"""Random images, for measuring speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decentral.data.dataset import DataSet
from decentral.data.description import ImageData
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.fixed_batch import FixedBatch


@dataclass
class Synthetic(DataSet):
    """Each worker sees one batch of random images with random labels, over and over: there is nothing to learn.

    For measuring how many images a second a set-up takes, without the time to load them (Bohl 2022, Table 5.1: 32
    images of 3 x 224 x 224, labels below 1000). `num_train` only decides how many steps an epoch has.
    """

    name: str = "synthetic"
    image_size: int = setting(224, at_least=1)
    num_channels: int = setting(3, at_least=1)
    num_classes: int = setting(1000, at_least=1)
    num_train: int = setting(50_000, at_least=1)
    num_test: int = setting(100, at_least=1)

    def inspect(self) -> ImageData:
        """As configured."""
        shape = (self.num_channels, self.image_size, self.image_size)
        counts = {"num_train": self.num_train, "num_test": self.num_test}
        return ImageData(shape=shape, num_classes=self.num_classes, **counts)

    def prepare(self) -> None:
        """Nothing to do."""

    def load(self, device: torch.device | str, seed: int) -> FixedBatch:
        """See `DataSet`."""
        from decentral.data.loading.fixed_batch import FixedBatch

        labels = numpy_generator(seed, "synthetic labels").integers(self.num_classes, size=self.num_train)
        return FixedBatch(self.inspect(), labels.astype(np.int64), device=device, seed=seed)
