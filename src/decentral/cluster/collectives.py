"""What an all-reduce costs on P workers, by its algorithm.

alpha is the latency of a link in seconds, beta the seconds per byte, N the bytes of each worker's row. Formulas:
Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005, and, for the tree,
a reduction to a root followed by a broadcast. What the additions take is not counted. log2 is rounded up where P is no
power of two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Collective(ABC):
    """An algorithm for all-reduce."""

    both_ways: ClassVar[bool]
    """Whether a worker sends and receives at the same time, which takes twice as long through one port."""
    all_at_once: ClassVar[bool]
    """Whether all workers of a machine send to another machine at the same time."""

    @abstractmethod
    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float) -> float:
        """How long P >= 2 workers take that begin together."""


class RecursiveDoubling(Collective):
    """In each of log2 P phases workers exchange whole rows in pairs: log2 P (alpha + N beta)."""

    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float) -> float:
        """log2 P (alpha + N beta)."""
        return phases(num_workers) * (alpha + num_bytes * beta)


class Rabenseifner(Collective):
    """Reduce-scatter by halving, all-gather by doubling: 2 log2 P alpha + 2 (P - 1)/P N beta."""

    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float) -> float:
        """2 log2 P alpha + 2 (P - 1)/P N beta."""
        return 2 * phases(num_workers) * alpha + 2 * (num_workers - 1) / num_workers * num_bytes * beta


class Ring(Collective):
    """2 (P - 1) times a P-th of a row to the next worker: 2 (P - 1) alpha + 2 (P - 1)/P N beta."""

    both_ways = True
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float) -> float:
        """2 (P - 1) (alpha + N/P beta)."""
        return 2 * (num_workers - 1) * (alpha + num_bytes / num_workers * beta)


class Tree(Collective):
    """Whole rows up a binomial tree and down again: 2 log2 P (alpha + N beta)."""

    both_ways = False
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float) -> float:
        """2 log2 P (alpha + N beta)."""
        return 2 * phases(num_workers) * (alpha + num_bytes * beta)


def phases(num_workers: int) -> int:
    """log2 P, rounded up."""
    return (num_workers - 1).bit_length()
