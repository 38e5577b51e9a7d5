"""A language made up, and its translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data.description import SentencePairs
from decentral.data.pairs import Corpus, Pairs, PairsData, Text
from decentral.errors import ConfigError
from decentral.randomness import normal, uniform
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

_FIRST = 3  # tokens before it are no words


class Rule(Enum):
    """How a sentence is translated."""

    reverse = "reverse"
    copy = "copy"


@dataclass
class SyntheticTranslation(PairsData):
    """Sentences of random words whose translation is the same words backwards: bundled, nothing to install.

    A sentence has L words, L = median_length exp(length_sigma z) rounded, z standard normal, between 1 and longest:
    as unequal as real ones. Each of its words is one of `words`, all as likely. Which sentences there are does not
    depend on the run's seed.

    rule           reverse: the translation is the sentence backwards; copy: as it is
    words          of the language: tokens, but for the three that fill up, begin and end
    median_length  of the lengths, in words
    length_sigma   standard deviation of their logarithm
    longest        no sentence has more words
    """

    name: str = "synthetic_translation"
    rule: Rule = Rule.reverse
    words: int = setting(48, at_least=1)
    median_length: float = 6.0
    length_sigma: float = setting(0.5, at_least=0)
    longest: int = setting(16, at_least=1)
    num_train: int = setting(20_000, at_least=1)
    num_test: int = setting(200, at_least=1)

    SEED: ClassVar[int] = 1997

    def __post_init__(self) -> None:
        if not 0 < self.median_length < inf:
            raise ConfigError(f"data.median_length={self.median_length:g} makes no sense: it has to be above 0.")

    def inspect(self) -> SentencePairs:
        """As configured."""
        counts = {"num_train": self.num_train, "num_test": self.num_test}
        usual = min(self.median_length, self.longest)
        return SentencePairs(vocabulary=_FIRST + self.words, longest=self.longest, usual=usual, **counts)

    def prepare(self) -> None:
        """Nothing to do."""

    def load(self, device: torch.device | str, seed: int) -> Pairs:
        """All sentences."""
        train, test = self._drawn("train", self.num_train), self._drawn("test", self.num_test)
        references = [self._text(sentence) for sentence in test[1]]
        train_corpus, test_corpus = ((Corpus.of(source), Corpus.of(target)) for source, target in (train, test))
        return Pairs(train_corpus, test_corpus, Text(self._text, references, plain=True), device)

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

    def _text(self, tokens: Sequence[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)
