"""Memory by name that is used again: it grows to the largest size that was asked for, and then stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
