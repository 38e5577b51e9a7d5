"""Partitions from a user's function: partition=mymodule:function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from decentral.errors import ConfigError
from decentral.partition.partition import Partition
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import Plain, call, component_from

GIVEN = ("labels", "num_workers", "seed")
"""Arguments passed to the function if it has a parameter of this name."""


class PlainPartition(Plain, Partition):
    """A function that returns the samples of each worker; its other parameters are the settings.

    It receives the `labels` int64 [N] of the training set, `num_workers` and the run's `seed`.
    """

    def indices(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Call the function with seeded generators. Raises ConfigError if the result is not a partition."""
        self.check(len(labels), num_workers)
        parts, again = (self._dealt(labels, num_workers, seed) for _ in range(2))
        sizes = [len(one) for one in parts]
        verb, advised = self.plain_verbs
        what = f"partition={self.name} {verb}"
        if len(parts) != num_workers or not all(sizes):
            raise ConfigError(
                f"{what} {len(parts)} parts with {min(sizes, default=0)} samples at least: {advised} {num_workers} "
                "parts, one per worker, with at least one sample each."
            )
        dealt = np.concatenate(parts)
        if not np.array_equal(np.sort(dealt), np.arange(len(labels))):
            raise ConfigError(
                f"{what} {len(dealt)} indices, not each of 0 ... {len(labels) - 1} once: assign every sample exactly "
                "once."
            )
        if not all(map(np.array_equal, parts, again)):
            raise ConfigError(
                f"{what} different parts when called again: draw from numpy.random, torch or random, which are seeded "
                "here, or from numpy.random.default_rng(seed)."
            )
        return [one.astype(np.int64) for one in parts]

    def _dealt(self, labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        """Return the result of one call of the function, which gets a copy of the labels."""
        known = dict(zip(GIVEN, (labels.copy(), num_workers, seed), strict=True))
        with blame.named(f"partition={self.name}"), seeded(seed, "partition"):
            made: Any = call(self.target(), known, **self.settings())
            parts = as_arrays(list(made)) if isinstance(made, Iterable) else []
        if not parts or any(one.ndim != 1 for one in parts):
            raise ConfigError(
                f"partition={self.name} {self.plain_verbs[0]} a {type(made).__name__} without an array of indices for "
                f"each worker: {self.plain_verbs[1]} a list of them, as numpy.array_split does."
            )
        return parts


def as_arrays(parts: Iterable[Any]) -> list[np.ndarray]:
    """Return an array of each part; [] if one has no shape, such as a list of lists that differ in length."""
    try:
        return [np.array(part) for part in parts]
    except ValueError:
        return []


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the partition of this name that calls a class or function."""
    return component_from("partition", name, target, PlainPartition, GIVEN)
