"""Every worker sees a few classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.partition.partition import Partition
from decentral.randomness import numpy_generator
from decentral.settings import setting


@dataclass
class Shards(Partition):
    """Samples sorted by class, cut into shards, a few shards dealt to each worker: about that many classes each.

    McMahan et al., AISTATS 2017 (arXiv:1602.05629), section 3: `shards_per_worker` = 2. Shards differ in size by at
    most one sample; within a class the samples keep their order.
    """

    name: str = "shards"
    shards_per_worker: int = setting(2, at_least=1)

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ by at most `shards_per_worker`."""
        self.check(len(labels), num_workers)
        shards = np.array_split(np.argsort(labels, kind="stable"), num_workers * self.shards_per_worker)
        dealt = numpy_generator(seed, "partition").permutation(len(shards)).reshape(num_workers, -1)
        return [np.concatenate([shards[s] for s in mine]) for mine in dealt]

    def check(self, num_train: int, num_workers: int) -> None:
        """No shard may be empty."""
        super().check(num_train, num_workers)
        if num_workers * self.shards_per_worker > num_train:
            raise ConfigError(
                f"num_workers={num_workers} times partition.shards_per_worker={self.shards_per_worker} is more than "
                f"the {num_train} training samples: choose num_workers <= {num_train // self.shards_per_worker}."
            )
