"""What topologies that are drawn share: how many rounds are drawn, and how many neighbours are usual."""

from __future__ import annotations

import numpy as np

from decentral.randomness import numpy_generator

DRAWN_ROUNDS = 256
"""After how many rounds the same draws come again, where nothing else is said: all are checked before a run."""


def usual_degree(num_workers: int) -> int:
    """ceil(log2 n), at most n - 1: with about so many neighbours random graphs mix well."""
    return min(num_workers - 1, max(0, num_workers - 1).bit_length())


def targets(num_workers: int, sends: int, generator: np.random.Generator) -> np.ndarray:
    """`sends` different others for each worker, uniformly drawn: int64 [n, sends]."""
    n = num_workers
    if not sends:
        return np.empty((n, 0), dtype=np.int64)
    if 4 * sends * sends > n:  # few would be right at the first attempt
        hops = generator.permuted(np.tile(np.arange(1, n), (n, 1)), axis=1)[:, :sends]
        return np.asarray((np.arange(n)[:, None] + hops) % n)
    hops = np.empty((n, sends), dtype=np.int64)
    again = np.arange(n)
    while len(again):
        drawn = generator.integers(1, n, size=(len(again), sends))
        hops[again] = drawn
        drawn = np.sort(drawn, axis=1)
        again = again[(drawn[:, 1:] == drawn[:, :-1]).any(axis=1)]
    return (np.arange(n)[:, None] + hops) % n


def generator_of(seed: int, topology: str, num_workers: int, round: int, attempt: int = 0) -> np.random.Generator:
    """For what is drawn in a round."""
    return numpy_generator(seed, f"topology {topology}", num_workers, round, attempt)
