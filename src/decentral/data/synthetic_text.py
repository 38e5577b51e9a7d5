"""Made-up texts, for tests and first tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data.dataset import DataSet
from decentral.data.description import LabelledTokens
from decentral.data.tokens import SPECIAL
from decentral.randomness import numpy_generator
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.texts import TextsInMemory


@dataclass
class SyntheticText(DataSet):
    """Texts made of whole words without any meaning: nothing to download, no library needed, a run takes seconds.

    Each class has an order of the `words` of its own. A word of a text is drawn from Zipf's distribution, p_r ~ 1 / r
    for the word of rank r: with probability `topic` in the order of the text's class, else in an order that all classes
    share. Lengths are lognormal with a median of 20 words in the first class and of 40 in the last one, at least 3 and
    at most `longest`. The texts do not depend on the run's seed.

    num_classes        classes, equally frequent
    num_train          texts for training
    num_test           texts for testing
    words              words in the vocabulary
    topic              the share of words that tell the class: the smaller, the harder
    longest            words in a text at most
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
        """As configured."""
        return LabelledTokens(
            num_train=self.num_train,
            num_test=self.num_test,
            num_classes=self.num_classes,
            vocabulary=len(SPECIAL) + self.words,
            longest=self.longest,
            usual=min(30.0, self.longest),
        )

    def prepare(self) -> None:
        """Nothing to do: they are made in a moment."""

    def load(self, device: torch.device | str, seed: int) -> TextsInMemory:
        """See `DataSet`."""
        from decentral.data.loading.texts import TextsInMemory

        parts = {split: self._made(split, number) for split, number in self._sizes().items()}
        return TextsInMemory(parts["train"], parts["test"], self.num_classes, device)

    def _sizes(self) -> dict[str, int]:
        return {"train": self.num_train, "test": self.num_test}

    def _made(self, split: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens one after the other, lengths [number] and labels [number]."""
        draw = numpy_generator(self.SEED, f"synthetic text {split}")
        labels = np.arange(number) % self.num_classes
        median = 20 * 2 ** (labels / max(1, self.num_classes - 1))
        lengths = np.rint(median * np.exp(0.4 * draw.standard_normal(number))).astype(np.int64).clip(3, self.longest)
        orders = [numpy_generator(self.SEED, "words of a class", c).permutation(self.words) for c in self._orders()]
        zipf = np.cumsum(1 / np.arange(1, self.words + 1))
        total = int(lengths.sum())
        ranks = np.searchsorted(zipf, draw.random(total) * zipf[-1]).clip(max=self.words - 1)
        own = draw.random(total) < self.topic
        chosen = np.where(own, np.repeat(labels, lengths), self.num_classes)
        tokens = np.stack(orders)[chosen, ranks] + len(SPECIAL)
        return tokens.astype(np.int32), lengths, labels.astype(np.int64)

    def _orders(self) -> range:
        """Of the classes, and the common one."""
        return range(self.num_classes + 1)
