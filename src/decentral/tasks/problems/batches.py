"""The order in which workers draw examples: a pure function, independent of the number of processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import torch_generator


class DrawOrder(ABC):
    """A function `order(draw)` -> each local worker's sample, in the form that `Loaded.drawn` of the data takes."""

    workers: range

    def __call__(self, draw: int) -> Any:
        """Return the samples of all k local workers: indices [k, B], or a list."""
        return self.of(*range(len(self.workers)))(draw)

    def of(self, *local: int) -> Callable[[int], Any]:
        """Return the same function for some local workers: draw -> [r, B], or a list."""
        return lambda draw: [self.row(i, draw) for i in local]

    @abstractmethod
    def row(self, i: int, draw: int) -> Any:
        """Return the indices [B] of one draw of local worker i; fewer in the last batch of an epoch if that is not
        dropped."""


class BatchOrder(DrawOrder):
    """A function `order(draw)` -> indices [k, B] into the training set, one row per local worker.

    All workers take the same number of samples per epoch, m = floor(N / n): batch b of an epoch is positions b B ... of
    the worker's shuffled part, wrapping around if the part is smaller than m. The shuffle is addressed by (seed,
    worker, epoch); without `reshuffle` by (seed, worker) alone. Workers with different batch sizes iterate over their
    parts independently: `of` with several workers needs equal sizes (`is_even`).
    """

    def __init__(
        self,
        indices: Sequence[np.ndarray],
        workers: range,
        batch_size: int | Sequence[int],
        seed: int,
        *,
        reshuffle: bool,
        drop_last: bool,
    ) -> None:
        self.parts = [torch.from_numpy(np.ascontiguousarray(indices[w])).long() for w in workers]
        self.workers, self.seed, self.reshuffle = workers, seed, reshuffle
        self.sizes = [batch_size] * len(indices) if isinstance(batch_size, int) else list(batch_size)
        """Batch sizes of all n workers."""
        self.samples_per_epoch = m = sum(len(part) for part in indices) // len(indices)
        self.passes = [m // size if drop_last else -(-m // size) for size in self.sizes]
        """Number of batches per pass of each of the n workers."""
        self.is_even = len(set(self.sizes)) == 1
        self._shuffles = [(-1, part) for part in self.parts]  # for each part: the epoch, and its shuffle then

    def examples(self, worker: int, draws: int) -> int:
        """Return the number of examples in the first `draws` draws of a worker."""
        size, m = self.sizes[worker], self.samples_per_epoch
        passes, batches = divmod(draws, self.passes[worker])
        return passes * min(self.passes[worker] * size, m) + min(batches * size, m)

    def steps_per_epoch(self, shares: Sequence[float] = ()) -> float:
        """Return the number of steps in which the workers take one pass on average; worker i draws in the share
        shares[i] of the steps (default: all)."""
        if self.is_even and not shares:
            return float(self.passes[0])
        shares = shares or [1.0] * len(self.passes)
        return len(self.passes) / sum(share / steps for share, steps in zip(shares, self.passes, strict=True))

    def of(self, *local: int) -> Callable[[int], Tensor]:
        """See `DrawOrder`."""
        return lambda draw: torch.stack([self.row(i, draw) for i in local])

    def row(self, i: int, draw: int) -> Tensor:
        """See `DrawOrder`."""
        worker = self.workers[i]
        epoch, batch = divmod(draw, self.passes[worker])
        start = batch * self.sizes[worker]
        stop = min(start + self.sizes[worker], self.samples_per_epoch)
        part = self._part(i, epoch)
        return part[start:stop] if stop <= len(part) else part[torch.arange(start, stop) % len(part)]

    def _part(self, i: int, epoch: int) -> Tensor:
        """Return the shuffled part of local worker i in an epoch."""
        known, part = self._shuffles[i]
        if known == epoch:
            return part
        if known < 0 or self.reshuffle:
            address = (self.workers[i], epoch) if self.reshuffle else (self.workers[i],)
            generator = torch_generator("cpu", self.seed, "order of samples", *address)
            part = self.parts[i][torch.randperm(len(part), generator=generator)]
        self._shuffles[i] = epoch, part
        return part
