"""Texts in tokens that all live on the device: with labels, or windows of running text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentral.data.dataset import Loaded
from decentral.data.description import PADDING, NextTokens

if TYPE_CHECKING:
    from decentral.data.dataset import Batches, Order

Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens one after the other, lengths [N], labels [N]."""


class Padded:
    """Sequences of tokens as rows [N, longest] on the device, filled up with padding."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, device: torch.device) -> None:
        rows = np.full((len(lengths), int(lengths.max(initial=1))), PADDING, dtype=np.int32)
        rows[np.arange(rows.shape[1]) < lengths[:, None]] = tokens
        self.lengths = torch.from_numpy(np.array(lengths, dtype=np.int64))  # on the CPU: nothing waits for the device
        self.rows = torch.from_numpy(rows).to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def __call__(self, numbers: Tensor) -> Tensor:
        """These sequences [b] on the CPU -> [b, L] int64 on the device, L being the length of the longest of them."""
        longest = int(self.lengths[numbers].max())
        return self.rows[:, :longest].index_select(0, numbers.to(self.rows.device)).long()


class TextsInMemory(Loaded):
    """Texts with labels; every batch is filled up to its longest text."""

    reads_ahead: ClassVar[bool] = False

    def __init__(self, train: Part, test: Part, num_classes: int, device: torch.device | str) -> None:
        self.device, self.num_classes = torch.device(device), num_classes
        self.train_labels, self.num_test = np.array(train[2]), len(test[2])
        self._train, self._test = (Padded(tokens, lengths, self.device) for tokens, lengths, _ in (train, test))
        self._labels, self._test_labels = (
            torch.from_numpy(np.array(labels)).to(self.device) for _, _, labels in (train, test)
        )

    @classmethod
    def read(cls, folder: Path, num_classes: int, device: torch.device | str) -> TextsInMemory:
        """From the arrays of a prepared data set."""
        parts = [
            tuple(np.load(folder / f"{split}_{what}.npy") for what in ("tokens", "lengths", "labels"))
            for split in ("train", "test")
        ]
        return cls(parts[0], parts[1], num_classes, device)

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`; every batch is a new tensor."""
        for step in range(start, stop):
            rows = order(step)
            flat = rows.reshape(-1)
            labels = self._labels.index_select(0, flat.to(self.device))
            yield self._train(flat).view(*rows.shape, -1), labels.view(rows.shape)

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`."""
        for batch in batches:
            yield self._test(batch), self._test_labels.index_select(0, batch.to(self.device))


class Windows(Loaded):
    """Inputs are the tokens of a window but the last one, targets those but the first one, both with padding behind.

    `train_labels` says from which source a window is.
    """

    reads_ahead: ClassVar[bool] = False

    def __init__(self, folder: Path, info: NextTokens, device: torch.device | str) -> None:
        self.device, self.num_classes = torch.device(device), info.num_sources
        train, test = (
            (np.load(folder / f"{split}_tokens.npy"), np.load(folder / f"{split}_lengths.npy"))
            for split in ("train", "test")
        )
        self.train_labels, self.num_test = np.load(folder / "train_labels.npy"), info.num_test
        self._train, self._test = (Padded(*each, self.device) for each in (train, test))
        self.characters = torch.from_numpy(np.load(folder / "characters.npy")).to(self.device)
        """[vocabulary]: how many characters each token stands for."""
        self.unigram = _unigram(train[0], *test, info.vocabulary)
        """Nats for a token of the test text, of the frequencies of tokens in the training text."""

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`; inputs and targets [k, B, L]."""
        for step in range(start, stop):
            rows = order(step)
            windows = self._train(rows.reshape(-1)).view(*rows.shape, -1)
            yield windows[..., :-1].clone(), windows[..., 1:]  # a model may write into what it gets

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`; [b, L]."""
        for batch in batches:
            windows = self._test(batch)
            yield windows[:, :-1].clone(), windows[:, 1:]


def _unigram(train: np.ndarray, test: np.ndarray, lengths: np.ndarray, vocabulary: int) -> float:
    """-mean log p over the targets of the test windows, p the frequencies in the training windows, each plus one."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    firsts = np.cumsum(lengths) - lengths
    targets = np.delete(test, firsts)
    return float(math.log(counts.sum()) - np.log(counts[targets]).mean())
