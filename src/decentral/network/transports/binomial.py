"""Who sends to whom where something goes from one process to all, or from all to one, in log2 phases."""

from __future__ import annotations


def binomial_tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """The parent of `rank` (None: it is the root), and its children, those with the most below them first.

    Counted from the root, the parent of p is p without its lowest binary digit that is one.
    """
    place = (rank - root) % size
    lowest = place & -place if place else 1 << (size - 1).bit_length()
    parent = None if not place else (place - lowest + root) % size
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1)) if place + (1 << bit) < size]
    return parent, [(place + step + root) % size for step in steps]
