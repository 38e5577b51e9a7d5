"""Compatibility of compressors and algorithms, parameter layout, addresses of random draws, and scratch memory."""

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
    """The compressors that an algorithm accepts."""

    nothing = "nothing"
    rows = "rows"
    """Compressors that give every coordinate a value (`fills`): messages are rounded rows."""
    payloads = "payloads"
    """Compressors that encode each row independently (`Encoder`): any message from one worker to others."""
    senders = "senders"
    """Compressors that give every coordinate a value, or list the coordinates sent (`Placed`): the algorithm divides
    each coordinate by the number of workers that sent it."""
    means = "means"
    """All compressors: the algorithm needs the mean of all workers, which the compressor computes (`combine`)."""


class RowLayout(NamedTuple):
    """The parameters of a row [P], in order: their names, and their shapes before flattening."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def flat(cls, num_coordinates: int) -> Self:
        """Return the layout of P numbers without structure: one parameter with one dimension."""
        return cls(("x",), ((num_coordinates,),))

    def cut(self, piece: slice) -> Self:
        """Return the layout of a piece of such rows: its part of each parameter, in one dimension, without empty
        parts."""
        ends = [len(range(each.stop)[piece]) for each in self.slices]
        lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        held = [(name, (length,)) for name, length in zip(self.names, lengths, strict=True) if length]
        return type(self)(tuple(name for name, _ in held), tuple(shape for _, shape in held))

    @property
    def num_coordinates(self) -> int:
        """Return P."""
        return sum(map(math.prod, self.shapes))

    @property
    def slices(self) -> list[slice]:
        """Return the position of each parameter."""
        found, start = [], 0
        for shape in self.shapes:
            found.append(slice(start, start := start + math.prod(shape)))
        return found


class Address(NamedTuple):
    """The worker, step and message index of an encoded row; they and the seed determine its randomness."""

    worker: int
    step: int
    message: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Return worker and message, which distinguish the payloads of a step."""
        return self.worker, self.message


class Scratch:
    """Reusable flat tensors, one per name, type and device."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, torch.dtype, torch.device], Tensor] = {}
        self._remembered: dict[str, tuple[object, Tensor]] = {}

    def take(self, name: object, size: int, like: Tensor, dtype: torch.dtype | None = None, keep: int = 0) -> Tensor:
        """Return an uninitialized tensor [size], except for the first `keep` numbers, which keep their values.

        It has the device of `like` and its type, or `dtype`. It overwrites the previous tensor of this name.
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
        """Return the cached result of `make` for this key; each name keeps only the last one."""
        known = self._remembered.get(name)
        if known is None or known[0] != key:
            known = self._remembered[name] = key, make()
        return known[1]


def payload_of(**tensors: Tensor) -> Payload:
    """Return a message with these tensors."""
    from decentral.network.payload import Payload

    return Payload(tensors)
