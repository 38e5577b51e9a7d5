"""The contract of a partition, and what it did to the classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError
from decentral.settings import Settings
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
