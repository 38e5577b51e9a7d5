"""What it costs P workers to communicate all together, by the algorithm.

alpha is the latency of a link in seconds, beta the seconds per byte, N the bytes of each worker's row. Formulas:
Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005; for the tree, a
reduction to a root followed by a broadcast; star, all-gather and broadcast as in Tyagi and Swany, Flexible
communication for optimal distributed learning over unpredictable networks, 2023, which has the same ring and tree.
What the additions take is not counted. log2 is rounded up where P is no power of two (`whole`), as these algorithms
have whole phases; the last paper takes it as a real number (`math.log2`), which makes no difference to powers of two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

Log2 = Callable[[int], float]


def whole(num_workers: int) -> float:
    """log2 P, rounded up: the phases of an algorithm."""
    return (num_workers - 1).bit_length()


class Collective(ABC):
    """An algorithm for something that all workers do together."""

    both_ways: ClassVar[bool]
    """Whether a worker sends and receives at the same time, which takes twice as long through one port."""
    all_at_once: ClassVar[bool]
    """Whether all workers of a machine send to another machine at the same time."""

    @abstractmethod
    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """How long P >= 2 workers take that begin together."""


class AllReduce(Collective):
    """The mean of all workers' rows, on all of them."""

    of_messages: ClassVar[bool] = True
    """Whether it consists of messages between two workers."""

    @property
    def candidates(self) -> tuple[AllReduce, ...]:
        """What may be carried out for it: itself."""
        return (self,)


class RecursiveDoubling(AllReduce):
    """In each of log2 P phases workers exchange whole rows in pairs: log2 P (alpha + N beta)."""

    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """log2 P (alpha + N beta)."""
        return log2(num_workers) * (alpha + num_bytes * beta)


class Rabenseifner(AllReduce):
    """Reduce-scatter by halving, all-gather by doubling: 2 log2 P alpha + 2 (P - 1)/P N beta."""

    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """2 log2 P alpha + 2 (P - 1)/P N beta."""
        return 2 * log2(num_workers) * alpha + 2 * (num_workers - 1) / num_workers * num_bytes * beta


class Ring(AllReduce):
    """2 (P - 1) times a P-th of a row to the next worker: 2 (P - 1) alpha + 2 (P - 1)/P N beta."""

    both_ways = True
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """2 (P - 1) (alpha + N/P beta)."""
        return 2 * (num_workers - 1) * (alpha + num_bytes / num_workers * beta)


class Tree(AllReduce):
    """Whole rows up a binomial tree and down again: 2 log2 P (alpha + N beta)."""

    both_ways = False
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """2 log2 P (alpha + N beta)."""
        return 2 * log2(num_workers) * (alpha + num_bytes * beta)


class Star(AllReduce):
    """Whole rows to one worker, a parameter server, and back: 2 alpha + 2 (P - 1) N beta."""

    both_ways = False
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """2 alpha + 2 (P - 1) N beta: through the port of that worker one after the other."""
        return 2 * alpha + 2 * (num_workers - 1) * num_bytes * beta


class Direct(AllReduce):
    """Everybody adds up a P-th of all rows and gives it to all, in two phases in which all send to all:
    2 alpha + 2 (P - 1)/P N beta. What processes of one host do that see each other's memory."""

    of_messages = False
    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """2 (alpha + (P - 1)/P N beta)."""
        return 2 * (alpha + (num_workers - 1) / num_workers * num_bytes * beta)


class Cheapest(AllReduce):
    """That of several which takes least for rows of this size over these links, the first one on a tie."""

    among: ClassVar[tuple[AllReduce, ...]]
    of_messages = False  # it is none of its own
    both_ways = True
    all_at_once = True

    @property
    def candidates(self) -> tuple[AllReduce, ...]:
        """All of them."""
        return self.among

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """The least of theirs."""
        return min(each.seconds(num_workers, num_bytes, alpha, beta, log2) for each in self.among)


class RingOrTree(Cheapest):
    """What Tyagi and Swany choose from: with x = alpha/beta a ring below x = c N, a tree above it, where for P > 2
    c = (log2 P - (P - 1)/P) / (P - 1 - log2 P)."""

    among = (Ring(), Tree())


class Auto(Cheapest):
    """All that are made of messages, but for the star. By these formulas recursive doubling takes half as long as a
    tree and Rabenseifner's algorithm no longer than a ring; through one port, or where machines share their way out,
    others can be faster."""

    among = (Ring(), Tree(), RecursiveDoubling(), Rabenseifner())


class AllGather(Collective):
    """What each worker contributes, N bytes at most, to all others, by recursive doubling:
    log2 P alpha + (P - 1) N beta."""

    both_ways = True
    all_at_once = True

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """log2 P alpha + (P - 1) N beta."""
        return log2(num_workers) * alpha + (num_workers - 1) * num_bytes * beta


class Broadcast(Collective):
    """What one worker has to all others, down a binomial tree: log2 P (alpha + N beta)."""

    both_ways = False
    all_at_once = False

    def seconds(self, num_workers: int, num_bytes: float, alpha: float, beta: float, log2: Log2 = whole) -> float:
        """log2 P (alpha + N beta)."""
        return log2(num_workers) * (alpha + num_bytes * beta)
