"""Every worker has sources of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decentral.errors import ConfigError
from decentral.partition.partition import Partition


@dataclass
class Natural(Partition):
    """Whole sources: files, speakers or sections of running text; of labelled data, whole classes.

    The largest source goes to worker 0, and each of the others to the worker that has the fewest samples by then (the
    first of them). Heterogeneity that nobody made; nothing is drawn. With as many sources as workers each has one.
    """

    name: str = "natural"

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ as the sources do."""
        self.check(len(labels), num_workers)
        sources, sizes = np.unique(labels, return_counts=True)
        self.check_labels(len(sources), num_workers)
        worker_of = np.zeros(int(labels.max()) + 1, dtype=np.int64)
        held = np.zeros(num_workers, dtype=np.int64)
        for place in np.argsort(-sizes, kind="stable"):
            worker = int(held.argmin())
            worker_of[sources[place]] = worker
            held[worker] += sizes[place]
        return [np.flatnonzero(worker_of[labels] == worker) for worker in range(num_workers)]

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """There is a source for each worker."""
        if num_labels < num_workers:
            raise ConfigError(
                f"num_workers={num_workers} is more than the {num_labels} sources of this data=, and partition=natural "
                f"gives every worker its own: choose num_workers <= {num_labels}, or another partition, such as iid."
            )
