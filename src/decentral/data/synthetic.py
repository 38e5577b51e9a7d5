"""Synthetic data: random images for measuring speed, and texts without meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data.dataset import DataSet, ImageData, LabelledTokens
from decentral.data.tokens import SPECIAL
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import FixedBatch, TextsInMemory


@dataclass
class Synthetic(DataSet):
    """One batch of random images with random labels per worker, repeated: there is nothing to learn.

    For measuring throughput in images per second, without loading time (Bohl 2022, Table 5.1: 32 images of
    3 x 224 x 224, labels below 1000). `num_train` only determines the number of steps per epoch.
    """

    name: str = "synthetic"
    image_size: int = setting(224, at_least=1)
    num_channels: int = setting(3, at_least=1)
    num_classes: int = setting(1000, at_least=1)
    num_train: int = setting(50_000, at_least=1)
    num_test: int = setting(100, at_least=1)

    def inspect(self) -> ImageData:
        """Return the configured description."""
        shape = (self.num_channels, self.image_size, self.image_size)
        return ImageData(shape=shape, num_classes=self.num_classes, num_train=self.num_train, num_test=self.num_test)

    def load(self, device: torch.device | str, seed: int) -> FixedBatch:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import FixedBatch

        labels = numpy_generator(seed, "synthetic labels").integers(self.num_classes, size=self.num_train)
        return FixedBatch(self.inspect(), labels.astype(np.int64), device=device, seed=seed)


@dataclass
class SyntheticText(DataSet):
    """Random texts of meaningless words: no download, no library, a run takes seconds.

    Each class has its own order of the `words`. A word of a text is drawn from Zipf's distribution, p_r ~ 1 / r for the
    word of rank r: with probability `topic` in the order of the text's class, otherwise in a common order. Lengths are
    lognormal with a median of 20 words in the first class and of 40 in the last one, at least 3 and at most `longest`.
    The texts do not depend on the run's seed.

    num_classes        classes, equally frequent
    num_train          texts for training
    num_test           texts for testing
    words              words in the vocabulary
    topic              share of words that depend on the class: smaller is harder
    longest            maximum number of words in a text
    """

    name: str = "synthetic_text"
    num_classes: int = setting(4, at_least=2)
    num_train: int = setting(4000, at_least=1)
    num_test: int = setting(1000, at_least=1)
    words: int = setting(1000, at_least=1)
    topic: float = setting(0.3, at_least=0, below=1)
    longest: int = setting(80, at_least=3)
    SEED: ClassVar[int] = 1935  # the year of Zipf's law

    def inspect(self) -> LabelledTokens:
        """Return the configured description."""
        return LabelledTokens(
            num_train=self.num_train,
            num_test=self.num_test,
            num_classes=self.num_classes,
            vocabulary=len(SPECIAL) + self.words,
            longest=self.longest,
            usual=min(30.0, self.longest),
        )

    def load(self, device: torch.device | str, seed: int) -> TextsInMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import TextsInMemory

        train, test = self._made("train", self.num_train), self._made("test", self.num_test)
        return TextsInMemory(train, test, self.num_classes, device)

    def _made(self, split: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return concatenated tokens, lengths [number] and labels [number]."""
        draw = numpy_generator(self.SEED, f"synthetic text {split}")
        labels = np.arange(number) % self.num_classes
        median = 20 * 2 ** (labels / max(1, self.num_classes - 1))
        lengths = np.rint(median * np.exp(0.4 * draw.standard_normal(number))).astype(np.int64).clip(3, self.longest)
        orders = [  # of the classes, and the common one
            numpy_generator(self.SEED, "words of a class", c).permutation(self.words)
            for c in range(self.num_classes + 1)
        ]
        zipf = np.cumsum(1 / np.arange(1, self.words + 1))
        total = int(lengths.sum())
        ranks = np.searchsorted(zipf, draw.random(total) * zipf[-1]).clip(max=self.words - 1)
        topical = draw.random(total) < self.topic
        chosen = np.where(topical, np.repeat(labels, lengths), self.num_classes)
        tokens = np.stack(orders)[chosen, ranks] + len(SPECIAL)
        return tokens.astype(np.int32), lengths, labels.astype(np.int64)
