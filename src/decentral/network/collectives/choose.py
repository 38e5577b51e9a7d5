"""Which all-reduce `network.collective` stands for."""

from __future__ import annotations

from collections.abc import Callable

from decentral.network.collectives.all_reduce import (
    AllReduce,
    Rabenseifner,
    RecursiveDoubling,
    Ring,
    Star,
    Tree,
)
from decentral.network.settings import CollectiveChoice

Fastest = Callable[[int], CollectiveChoice]
"""The collective that a model of the network says is fastest for rows of so many bytes."""

_ALGORITHMS: dict[CollectiveChoice, AllReduce] = {
    CollectiveChoice.ring: Ring(),
    CollectiveChoice.tree: Tree(),
    CollectiveChoice.recursive_doubling: RecursiveDoubling(),
    CollectiveChoice.rabenseifner: Rabenseifner(),
    CollectiveChoice.star: Star(),
}


def chosen(choice: CollectiveChoice, num_bytes: int, fastest: Fastest | None) -> AllReduce | None:
    """The algorithm for rows of so many bytes; None: what the transport has for it.

    fastest   decides for `auto`, all processes alike; without it that is the transport's own
    """
    if choice is CollectiveChoice.auto and fastest is not None:
        choice = fastest(num_bytes)
    return _ALGORITHMS.get(choice)
