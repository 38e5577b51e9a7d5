"""Made-up data: random images for measuring speed, texts without meaning, and a language with its translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.data.dataset import DataSet, ImageData, LabelledTokens, SentencePairs
from decentral.data.parallel import Corpus, Pairs, Text
from decentral.data.tokens import SPECIAL
from decentral.errors import ConfigError
from decentral.randomness import normal, numpy_generator, uniform
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
        """As configured."""
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
    word of rank r: with probability `topic` in the order of the text's class, else in a common order. Lengths are
    lognormal with a median of 20 words in the first class and of 40 in the last one, at least 3 and
    at most `longest`. The texts do not depend on the run's seed.

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
        """As configured."""
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
        own = draw.random(total) < self.topic
        chosen = np.where(own, np.repeat(labels, lengths), self.num_classes)
        tokens = np.stack(orders)[chosen, ranks] + len(SPECIAL)
        return tokens.astype(np.int32), lengths, labels.astype(np.int64)


_FIRST = 3  # smaller tokens are not words


class Rule(Enum):
    """How a sentence is translated."""

    reverse = "reverse"
    copy = "copy"


@dataclass
class SyntheticTranslation(DataSet):
    """Sentences of random words whose translation is the same words backwards: bundled, nothing to install.

    A sentence has L words, L = median_length exp(length_sigma z) rounded, z standard normal, between 1 and longest:
    as unequal as real ones. Each of its words is one of `words`, all as likely. Which sentences there are does not
    depend on the run's seed.

    rule           reverse: the translation is the reversed sentence; copy: it is the same sentence
    words          words of the language: tokens without the three for padding, begin and end
    median_length  median length of sentences, in words
    length_sigma   standard deviation of the logarithm of the length
    longest        maximum number of words in a sentence
    """

    name: str = "synthetic_translation"
    rule: Rule = Rule.reverse
    words: int = setting(48, at_least=1)
    median_length: float = setting(6.0, above=0)
    length_sigma: float = setting(0.5, at_least=0)
    longest: int = setting(16, at_least=1)
    num_train: int = setting(20_000, at_least=1)
    num_test: int = setting(200, at_least=1)

    SEED: ClassVar[int] = 1997

    def inspect(self) -> SentencePairs:
        """As configured."""
        counts: dict[str, Any] = {"num_train": self.num_train, "num_test": self.num_test}
        usual = min(self.median_length, self.longest)
        return SentencePairs(vocabulary=_FIRST + self.words, longest=self.longest, usual=usual, **counts)

    def load(self, device: torch.device | str, seed: int) -> Pairs:
        """All sentences."""
        train, test = self._drawn("train", self.num_train), self._drawn("test", self.num_test)
        references = [self._text(sentence) for sentence in test[1]]
        train_corpus, test_corpus = ((Corpus.of(source), Corpus.of(target)) for source, target in (train, test))
        return Pairs(train_corpus, test_corpus, Text(self._text, references, True, self._tokens), device)

    def _drawn(self, split: str, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Sentences and their translations."""
        place = np.arange(number)
        z = normal(self.SEED, f"synthetic translation: {split} lengths", place)
        with np.errstate(over="ignore"):
            wanted = self.median_length * np.exp(self.length_sigma * z)
        lengths = np.clip(np.rint(np.minimum(wanted, self.longest)), 1, self.longest).astype(np.int64)
        drawn = uniform(self.SEED, f"synthetic translation: {split}", place[:, None], np.arange(self.longest))
        tokens = (_FIRST + (drawn * self.words).astype(np.int64)).tolist()
        source = [row[:length] for row, length in zip(tokens, lengths.tolist(), strict=True)]
        return source, [row[::-1] if self.rule is Rule.reverse else row for row in source]

    def _tokens(self, text: str) -> list[int]:
        numbers = {self._text([token]): token for token in range(_FIRST, _FIRST + self.words)}
        unknown = [word for word in text.split() if word not in numbers]
        if unknown:
            raise ConfigError(
                f"'{unknown[0]}' is not a word of data={self.name}: use {self._text([_FIRST])} to "
                f"{self._text([_FIRST + self.words - 1])}, separated by spaces."
            )
        return [numbers[word] for word in text.split()]

    def _text(self, tokens: Sequence[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)
