"""Pairs of sentences in numbers: what task=translation draws its batches from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.data.dataset import Loaded
from decentral.data.description import PADDING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.data.dataset import Batches, Order

PAD, BEGIN, END = PADDING, 1, 2
"""The tokens that fill up, begin and end sentences."""
_RATIO = 1.2
"""Of the longest and the shortest sentence of a bucket."""


class Corpus:
    """Sentences one after the other, each as BEGIN, its tokens, END."""

    def __init__(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        """tokens [T] int32, of which sentence i ends before ends[i]: [N] int64."""
        self.tokens = tokens
        self.starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
        self.lengths = ends - self.starts - 1
        """[N]: tokens of each sentence with the one that ends it."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Corpus:
        """These sentences, without BEGIN and END as yet."""
        ends = np.cumsum([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        parts = [np.array([BEGIN, *sentence, END], dtype=np.int32) for sentence in sentences]
        return cls(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32), ends)

    def __len__(self) -> int:
        """How many sentences."""
        return len(self.lengths)

    @property
    def ends(self) -> np.ndarray:
        """[N]: before which token each sentence ends."""
        return self.starts + self.lengths + 1

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """These sentences [B], filled up with PAD: int64 [B, 1 + the longest length], from BEGIN to END."""
        lengths = self.lengths[numbers, None]
        places = np.arange(int(lengths.max()) + 1)
        inside = places <= lengths
        return np.where(inside, self.tokens[np.where(inside, self.starts[numbers, None] + places, 0)], PAD).astype(
            np.int64
        )


class Sentences(NamedTuple):
    """What a network takes: the sentences of a batch, and what has been written of their translations."""

    source: Tensor  # [B, S] int64, filled up with PAD, each sentence with END
    target: Tensor  # [B, T] int64: BEGIN, then the first T - 1 tokens


@dataclass
class Text:
    """What tokens stand for.

    words        tokens, without BEGIN and END, as text: words with blanks between them
    references   the translations of the test sentences as text, as they were before they became tokens
    plain        whether blanks are all that divides the words of the text, so that nothing has to be tokenised for BLEU
    """

    words: Callable[[Sequence[int]], str]
    references: Sequence[str]
    plain: bool


class Pairs(Loaded):
    """Training and test sentences with their translations, in memory; batches go to the device one by one.

    `order(step)` is for each worker the numbers [B] of the pairs that it draws: workers have batches of different
    shapes. The labels that a partition looks at are the buckets of lengths, see `bounds`.
    """

    reads_ahead: ClassVar[bool] = False

    def __init__(
        self, train: tuple[Corpus, Corpus], test: tuple[Corpus, Corpus], text: Text, device: torch.device | str
    ) -> None:
        """Sources and targets: pair i is number i of the one and number i of the other."""
        self.train, self.test, self.text, self.device = train, test, text, device
        self.num_test = len(test[0])
        self.bounds, self.train_labels = buckets(*(side.lengths for side in train))
        """[buckets]: the tokens of the longest sentence of each bucket, with END."""
        self.num_classes = len(self.bounds)

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """Lists of `Sentences`, one for each worker, and of the tokens [B, T] that are to be written."""
        for step in range(start, stop):
            found = [self.batch(self.train, numbers) for numbers in order(step)]
            yield [sentences for sentences, _ in found], [target for _, target in found]

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor]]:
        """`Sentences` and the tokens [b, T] to be written."""
        return (self.batch(self.test, numbers.numpy()) for numbers in batches)

    def batch(self, pairs: tuple[Corpus, Corpus], numbers: np.ndarray) -> tuple[Sentences, Tensor]:
        """These pairs [B] as a network takes them, and the tokens [B, T] that it is to write: targets with END."""
        import torch

        source, target = (torch.from_numpy(side.rows(numbers)).to(self.device) for side in pairs)
        return Sentences(source[:, 1:], target[:, :-1].clone()), target[:, 1:]  # a model may write into what it gets


def buckets(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buckets for pairs of these lengths [N]: the longest of each [buckets], and which one each pair is in [N] int64.

    What counts is the longer side. Each bucket's longest is a fifth longer than that of the one before.
    """
    longer, bounds = np.maximum(source, target), list[int]()
    while not bounds or bounds[-1] < longer.max():
        last = bounds[-1] if bounds else 0
        bounds.append(min(int(longer.max()), max(last + 1, int(last * _RATIO))))
    found = np.array(bounds, dtype=np.int64)
    return found, np.searchsorted(found, longer).astype(np.int64)
