"""What is known of a data set before it is loaded, and what models are built from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class DataDescription(ABC):
    """Data of some kind: a subclass for each, with what a model has to know of it.

    num_train, num_test   examples for training and for testing
    """

    kind: ClassVar[str]
    """In words, in the plural: images."""
    num_train: int = 0
    num_test: int = 0

    @abstractmethod
    def batch_shape(self, size: int) -> tuple[int, ...]:
        """The shape of what a model takes in one call, a batch of `size` examples: [size, ...]."""

    @property
    def num_labels(self) -> int:
        """How many different labels a partition finds: classes, or sources; 1 where there is no such thing."""
        return 1


@dataclass(frozen=True, kw_only=True)
class LabelledData(DataDescription):
    """Examples of some shape, each of one of several classes.

    shape         of one example
    num_classes   labels are 0 ... num_classes - 1
    first_class   the smallest label that there is
    """

    kind: ClassVar[str] = "labelled examples"
    shape: tuple[int, ...]
    num_classes: int
    first_class: int = field(default=0, repr=False, compare=False)

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """[size, *shape]."""
        return size, *self.shape

    @property
    def num_labels(self) -> int:
        """The classes."""
        return self.num_classes


@dataclass(frozen=True, kw_only=True)
class ImageData(LabelledData):
    """Images, each of one of several classes; their shape is (C, H, W): channels, height and width in pixels."""

    kind: ClassVar[str] = "images"
    shape: tuple[int, int, int]


PADDING = 0
"""The token that fills up sequences that are shorter than others of their batch."""


@dataclass(frozen=True, kw_only=True)
class TokenData(DataDescription):
    """Sequences of tokens, whole numbers below `vocabulary`: [size, L] int64, filled up at the end with `PADDING`.

    vocabulary    how many tokens there are, with `PADDING`
    longest       tokens in a sequence at most
    usual         tokens in a sequence, about; infinity where that is not known
    """

    kind: ClassVar[str] = "sequences of tokens"
    vocabulary: int
    longest: int
    usual: float = math.inf

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Of the longest sequences: [size, longest]."""
        return size, self.longest


@dataclass(frozen=True, kw_only=True)
class LabelledTokens(TokenData):
    """Texts in tokens, each of one of several classes: labels are 0 ... num_classes - 1."""

    kind: ClassVar[str] = "texts with labels"
    num_classes: int

    @property
    def num_labels(self) -> int:
        """The classes."""
        return self.num_classes


@dataclass(frozen=True, kw_only=True)
class NextTokens(TokenData):
    """Pieces of running text in tokens, each from one of several sources; the target of a token is the one that follows
    it."""

    kind: ClassVar[str] = "running text"
    num_sources: int = 1

    @property
    def num_labels(self) -> int:
        """The sources."""
        return self.num_sources


@dataclass(frozen=True, kw_only=True)
class SentencePairs(TokenData):
    """Sentences with their translations, both in tokens of one vocabulary; 1 begins a sentence, 2 ends it.

    `longest` and `usual` are without these two.
    """

    kind: ClassVar[str] = "pairs of sentences"

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """Of the longest sentences, each with the token that ends it: [size, longest + 1]."""
        return size, self.longest + 1
