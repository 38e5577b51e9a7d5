"""Windows of running text in tokens that all live on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentral.data.dataset import Loaded
from decentral.data.description import NextTokens
from decentral.data.loading.texts import Padded

if TYPE_CHECKING:
    from decentral.data.dataset import Batches, Order


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

    def close(self) -> None:
        """Nothing to stop: the memory goes with the object."""


def _unigram(train: np.ndarray, test: np.ndarray, lengths: np.ndarray, vocabulary: int) -> float:
    """-mean log p over the targets of the test windows, p the frequencies in the training windows, each plus one."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    firsts = np.cumsum(lengths) - lengths
    targets = np.delete(test, firsts)
    return float(math.log(counts.sum()) - np.log(counts[targets]).mean())
