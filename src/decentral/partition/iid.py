"""Every worker sees the same distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.partition.partition import Partition
from decentral.randomness import numpy_generator


@dataclass
class IID(Partition):
    """A random permutation cut into equal parts: all workers have the same distribution."""

    name: str = "iid"

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ by at most one."""
        self.check(len(labels), num_workers)
        return np.array_split(numpy_generator(seed, "partition").permutation(len(labels)), num_workers)
