"""Which compressors suit whom, where parameters lie in a row, what draws are addressed by, and memory to work in."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.network.payload import Payload


class AcceptedCompression(Enum):
    """Which compressors an algorithm can use."""

    nothing = "nothing"
    rows = "rows"
    """Those that give every coordinate a number (`fills`): what is sent is a row, rounded."""
    payloads = "payloads"
    """Those that encode a row by itself (`Encoder`): any message from one worker to others."""
    senders = "senders"
    """Those that give every coordinate a number, or say which have one (`Placed`): it divides each coordinate by the
    number of workers that sent it."""
    means = "means"
    """All: it needs the mean of all workers, and leaves to the compressor how it is formed (`combine`)."""


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


class Address(NamedTuple):
    """Whose row is encoded, in which step, as so manieth message in it: what is random in it depends on this and on the
    seed alone."""

    worker: int
    step: int
    message: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What can be at hand at once in a step: worker and message."""
        return self.worker, self.message


class Scratch:
    """Flat tensors, one for each name, type and device."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, torch.dtype, torch.device], Tensor] = {}
        self._remembered: dict[str, tuple[object, Tensor]] = {}

    def take(self, name: object, size: int, like: Tensor, dtype: torch.dtype | None = None, keep: int = 0) -> Tensor:
        """[size], with whatever is in it, but for the first `keep` numbers, which stay as they were.

        On the device of `like` and of its type, or of `dtype`. What was taken before by this name is overwritten.
        """
        key = (name, dtype or like.dtype, like.device)
        held = self._held.get(key)
        if held is None or len(held) < size:
            grown = like.new_empty(size if not keep else size + size // 2, dtype=key[1])
            if held is not None and keep:
                grown[:keep] = held[:keep]
            held = self._held[key] = grown
        return held[:size]

    def remember(self, name: str, key: object, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave for this key; of each name only the last one is kept."""
        known = self._remembered.get(name)
        if known is None or known[0] != key:
            known = self._remembered[name] = key, make()
        return known[1]


def payload_of(**tensors: Tensor) -> Payload:
    """A message with these tensors."""
    from decentral.network.payload import Payload

    return Payload(tensors)
