"""Where the parameters of a model lie in a row."""

from __future__ import annotations

import math
from typing import NamedTuple, Self


class RowLayout(NamedTuple):
    """The parameters of a row [P], one after the other: their names, and their shapes before they were flattened."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def flat(cls, num_coordinates: int) -> Self:
        """A row of P numbers of which nothing more is known: one parameter with one dimension."""
        return cls(("x",), ((num_coordinates,),))

    def cut(self, piece: slice) -> Self:
        """Of a piece of such rows: what it has of each parameter, in one dimension, less those that it has nothing
        of."""
        ends = [len(range(each.stop)[piece]) for each in self.slices]
        lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        held = [(name, (length,)) for name, length in zip(self.names, lengths, strict=True) if length]
        return type(self)(tuple(name for name, _ in held), tuple(shape for _, shape in held))

    @property
    def num_coordinates(self) -> int:
        """P."""
        return sum(map(math.prod, self.shapes))

    @property
    def slices(self) -> list[slice]:
        """Where each parameter lies."""
        found, start = [], 0
        for shape in self.shapes:
            found.append(slice(start, start := start + math.prod(shape)))
        return found
