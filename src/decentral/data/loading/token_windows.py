"""Windows of token shards, read when they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from decentral.data.dataset import Loaded
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.data.token_shards import Stream, TokenShards


class TokenWindows(Loaded):
    """Windows of two streams: inputs are all tokens but the last, targets all but the first; none is padded.

    `train_labels` has the source of each window.
    """

    characters = unigram = None

    def __init__(
        self, train: Stream, bounds: Sequence[int], test: Stream, data: TokenShards, device: torch.device | str
    ) -> None:
        self.device, self._data, self._streams = torch.device(device), data, (train, test)
        number = data.windows(bounds)
        first, number = np.array(bounds[:-1])[number > 0], number[number > 0]
        self.train_labels = np.repeat(np.arange(len(number)), number)
        self.num_classes, self.num_test = len(number), int(data.windows([0, len(test)])[0])
        self._offsets = first - data.longest * (np.cumsum(number) - number)

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; inputs and targets [k, B, L]."""
        numbers = rows.numpy()
        return self._read(self._streams[0], self._offsets[self.train_labels[numbers]] + self._data.longest * numbers)

    def tested(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loaded`; [b, L]."""
        return self._read(self._streams[1], self._data.longest * numbers.numpy())

    def _read(self, stream: Stream, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the windows at these positions. Raises ConfigError for too large tokens."""
        length, vocabulary = self._data.longest + 1, self._data.vocabulary
        found = np.stack([stream.read(start, start + length) for start in starts.ravel().tolist()])
        if found.min() < 0 or found.max() >= vocabulary:
            raise ConfigError(
                f"data.path={self._data.path} has token {found.max() if found.min() >= 0 else found.min()}, outside "
                f"the range of data.vocabulary={vocabulary}: use a vocabulary that is larger than each token."
            )
        tokens = torch.from_numpy(found).view(*starts.shape, length)
        if self.device.type == "cuda":
            tokens = tokens.pin_memory()
        tokens = tokens.to(self.device, non_blocking=True)
        return tokens[..., :-1].clone(), tokens[..., 1:]
