"""A synthetic language with its translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.data.dataset import DataSet
from decentral.errors import ConfigError
from decentral.plugins.translation.data.parallel import Corpus, Pairs, SentencePairs, Text
from decentral.randomness import normal, uniform
from decentral.settings import setting

if TYPE_CHECKING:
    import torch


_FIRST = 3  # smaller tokens are not words


class Rule(Enum):
    """The translation rule of a sentence."""

    reverse = "reverse"
    copy = "copy"


@dataclass
class SyntheticTranslation(DataSet):
    """Sentences of random words whose translation is the same words backwards: bundled, nothing to install.

    A sentence has L words, L = median_length exp(length_sigma z) rounded, z standard normal, between 1 and longest:
    lengths vary like those of real sentences. Each word is drawn uniformly from `words` words. The sentences do not
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
        """Return the description of the configured sentences."""
        counts: dict[str, Any] = {"num_train": self.num_train, "num_test": self.num_test}
        usual = min(self.median_length, self.longest)
        return SentencePairs(vocabulary=_FIRST + self.words, longest=self.longest, usual=usual, **counts)

    def load(self, device: torch.device | str, seed: int) -> Pairs:
        """Load all sentences."""
        train, test = self._drawn("train", self.num_train), self._drawn("test", self.num_test)
        references = [self._text(sentence) for sentence in test[1]]
        train_corpus, test_corpus = ((Corpus.of(source), Corpus.of(target)) for source, target in (train, test))
        return Pairs(train_corpus, test_corpus, Text(self._text, references, True, self._tokens), device)

    def _drawn(self, split: str, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Draw sentences and their translations."""
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
