"""The 8x8 digits that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.data.dataset import AugmentedImages, ImageData, cached
from decentral.randomness import numpy_generator

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory


@dataclass
class Digits(AugmentedImages):
    """1797 gray 8x8 images of the ten digits, from scikit-learn: no download, a run takes seconds.

    Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test half). 80 % of every class are
    for training, with a fixed split (`SPLIT_SEED`), independent of the run's seed. No augmentation by default;
    `augment=crop_flip` shifts by up to a pixel.
    """

    name: str = "digits"
    augment: Any = field(default=False, metadata={"code": "data.augment", "older": False})

    INFO: ClassVar[ImageData] = ImageData(num_train=1438, num_test=359, num_classes=10, shape=(1, 8, 8))
    SPLIT_SEED: ClassVar[int] = 1797
    MEAN: ClassVar[float] = 4.88  # of all pixels, which are 0 ... 16
    STD: ClassVar[float] = 6.02

    def inspect(self) -> ImageData:
        """Return constants."""
        return self.INFO

    def prepare(self) -> Path:
        """Copy the images from scikit-learn, whose import takes a second in every process."""
        return cached("digits-1", self._build)

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import InMemory, read_arrays

        return InMemory(
            read_arrays(self.prepare()),
            num_classes=self.INFO.num_classes,
            mean=[self.MEAN],
            std=[self.STD],
            device=device,
            seed=seed,
            pad=1 if self.crops else 0,
            flip=self.crops,
            transform=self.transform(self.INFO.shape, seed),
        )

    def _build(self, folder: Path) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
        is_train = np.zeros(len(labels), dtype=bool)
        for digit in range(self.INFO.num_classes):
            rows = np.flatnonzero(labels == digit)
            rows = numpy_generator(self.SPLIT_SEED, "digits split", digit).permutation(rows)
            is_train[rows[: round(0.8 * len(rows))]] = True
        for split, chosen in (("train", is_train), ("test", ~is_train)):
            np.save(folder / f"{split}_images.npy", images[chosen])
            np.save(folder / f"{split}_labels.npy", labels[chosen])
