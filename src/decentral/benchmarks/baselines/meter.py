"""Counts what torch's operations move in memory: no clock, no noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ONLY_WRITE = ("copy_", "zero_", "fill_", "normal_", "uniform_")
"""In-place operations that do not look at what they overwrite."""


class Meter(TorchDispatchMode):
    """While it is entered: bytes that operations read and write, and bytes of the tensors that they make.

    Every operand of an operation counts as read once and every result as written once, also where it stays in the
    cache; views cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0
        self.allocated_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        infos = [value.alias_info for value in schema.arguments]
        if any(info is not None and not info.is_write for info in infos):
            return result  # a view
        given = list(args) + [(kwargs or {}).get(value.name) for value in schema.arguments[len(args) :]]
        looks = not func.__name__.partition(".")[0].endswith(_ONLY_WRITE) and not _has_out(func)
        for value, info in zip(given, infos, strict=True):
            written = info is not None and info.is_write
            self.moved_bytes += _bytes(value) * (written + (looks or not written))
        if not any(info is not None for info in infos):
            self.moved_bytes += _bytes(result)
            self.allocated_bytes += _bytes(result)
        return result


def _has_out(func: Any) -> bool:
    return any(argument.is_out for argument in func._schema.arguments)


def _bytes(value: Any) -> int:
    """Of all tensors in it."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
