"""Dealing the training set out to the workers: the contract, the plain ways, and a table of what they did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import numpy_generator
from decentral.settings import Settings, setting
from decentral.store.files import csv_text, write_text


class Partition(Settings, ABC, where="partition"):
    """Deals the training set out to the workers. Pure and seeded: every process computes the same partition."""

    @abstractmethod
    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """For each worker the int64 indices of its samples; together they hold each of 0 ... N-1 exactly once.

        Raises ConfigError where `check` does, and where the labels make the partition impossible.
        """

    def check(self, num_train: int, num_workers: int) -> None:
        """Raise ConfigError if `num_train` samples cannot be dealt to `num_workers`; fast, before data is loaded."""
        if num_workers < 1:
            raise ConfigError(f"num_workers={num_workers} must be at least 1.")
        if num_workers > num_train:
            raise ConfigError(
                f"num_workers={num_workers} is more than the {num_train} training samples, and every worker needs at "
                f"least one: choose num_workers <= {num_train}."
            )

    def check_labels(self, num_labels: int, num_workers: int) -> None:
        """Raise ConfigError if samples with so many different labels cannot be dealt to `num_workers`."""
        return None


def class_counts(labels: np.ndarray, indices: list[np.ndarray], num_classes: int) -> np.ndarray:
    """How many samples of each class each worker holds: [n, C] int64."""
    return np.stack([np.bincount(labels[rows], minlength=num_classes) for rows in indices]).astype(np.int64)


def save_table(counts: np.ndarray, path: str | Path, dealt: str = "class") -> None:
    """`counts` [n, C] as CSV with the columns worker, class_0, class_1, ..., total; `dealt` is what is not a class."""
    head = ["worker", *(f"{dealt}_{c}" for c in range(counts.shape[1])), "total"]
    write_text(Path(path), csv_text(head, ([worker, *row, sum(row)] for worker, row in enumerate(counts.tolist()))))


@dataclass
class IID(Partition):
    """A random permutation cut into equal parts: all workers have the same distribution."""

    name: str = "iid"

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Sizes differ by at most one."""
        self.check(len(labels), num_workers)
        return np.array_split(numpy_generator(seed, "partition").permutation(len(labels)), num_workers)


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
