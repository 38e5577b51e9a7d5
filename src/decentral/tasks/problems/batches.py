"""Which pictures a worker sees in which step: a pure function, whatever the number of processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decentral.randomness import torch_generator


class BatchOrder:
    """`order(step)` -> indices [k, B] into the training set, one row per local worker.

    All workers take the same number of samples per epoch, m = floor(N / n): batch b of an epoch is the places b B ...
    of the worker's own shuffled part, starting again from its front where the part is smaller than m. The shuffle is
    addressed by (seed, worker, epoch); without `reshuffle` by (seed, worker) alone.
    """

    def __init__(
        self,
        indices: Sequence[np.ndarray],
        workers: range,
        batch_size: int,
        seed: int,
        *,
        reshuffle: bool,
        drop_last: bool,
    ) -> None:
        self.parts = [torch.from_numpy(np.ascontiguousarray(indices[w])).long() for w in workers]
        self.workers, self.batch_size, self.seed, self.reshuffle = workers, batch_size, seed, reshuffle
        self.samples_per_epoch = sum(len(part) for part in indices) // len(indices)
        full, rest = divmod(self.samples_per_epoch, batch_size)
        self.steps_per_epoch = full if drop_last or not rest else full + 1
        self._epoch = -1
        self._shuffled: list[Tensor] = []

    def __call__(self, step: int) -> Tensor:
        """The indices [k, B] of this step; B is smaller in the last batch of an epoch if that is not dropped."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            if self.reshuffle or not self._shuffled:
                self._shuffled = [self._shuffle(i, epoch) for i in range(len(self.parts))]
            self._epoch = epoch
        start = batch * self.batch_size
        places = torch.arange(start, min(start + self.batch_size, self.samples_per_epoch))
        return torch.stack([part[places % len(part)] for part in self._shuffled])

    def _shuffle(self, i: int, epoch: int) -> Tensor:
        address = (self.workers[i], epoch) if self.reshuffle else (self.workers[i],)
        generator = torch_generator("cpu", self.seed, "order of samples", *address)
        return self.parts[i][torch.randperm(len(self.parts[i]), generator=generator)]
