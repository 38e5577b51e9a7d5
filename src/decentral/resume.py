"""A run's state as parts of a checkpoint, one part for each process, and back: for any number of processes.

The kinds of state (`Rows`, `EdgeRows`, `Shared`, `Buffers`, see algorithms/algorithm.py) are read from the annotations
of the algorithm's `State`. Rows of workers and of links are consecutive on a process, so a process finds its own rows
in the parts of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ForwardRef

from torch import Tensor

from decentral.network.network import Network
from decentral.tasks.task import Problem


def to_part(state: Any, problem: Problem, net: Network) -> dict[str, Any]:
    """This process's part: its workers and links, the rows of both, and what is the same everywhere."""
    part: dict[str, Any] = {"workers": [net.workers.start, net.workers.stop], "rows": {}, "edges": {}, "shared": {}}
    for name, kind, value in _fields(state):
        if kind == "Buffers":
            part["rows"] |= {f"{name}.{i}": buffer for i, buffer in enumerate(value)}
        elif kind == "EdgeRows":
            part["links"] = [net.local_links.start, net.local_links.stop]
            part["edges"][name] = value
        elif kind in ("Rows", "Shared"):
            part[kind.lower()][name] = value
        else:
            raise TypeError(f"{type(state).__qualname__}.{name}: annotate it as Rows, EdgeRows, Shared or Buffers")
    part["rows"] |= {f"buffer {name}": value for name, value in problem.buffers().items()}
    return part


def from_parts(parts: Sequence[dict[str, Any]], state: Any, problem: Problem, net: Network) -> None:
    """Put this process's share of what the parts hold into a state of the right shapes, and into the problem's
    buffers."""

    def restore_rows(name: str, value: Tensor) -> None:
        _copy_cut(parts, "rows", "workers", name, net.workers, value)

    for name, kind, value in _fields(state):
        if kind == "Buffers":
            for i, buffer in enumerate(value):
                restore_rows(f"{name}.{i}", buffer)
        elif kind == "Rows":
            restore_rows(name, value)
        elif kind == "EdgeRows":
            _copy_cut(parts, "edges", "links", name, net.local_links, value)
        else:
            value.copy_(parts[0]["shared"][name])
    for name, value in problem.buffers().items():
        restore_rows(f"buffer {name}", value)


def _fields(state: Any) -> list[tuple[str, str, Any]]:
    """(name, kind, value) of each field of a State."""
    annotations = type(state).__annotations__
    kinds: Callable[[Any], str] = lambda a: a.__forward_arg__ if isinstance(a, ForwardRef) else str(a)  # noqa: E731
    return [(name, kinds(annotations[name]), getattr(state, name)) for name in state._fields]


def _copy_cut(parts: Sequence[dict[str, Any]], kind: str, span: str, name: str, wanted: range, value: Tensor) -> None:
    """Copy rows `wanted` (global numbers) of a tensor that is spread over the parts into `value`."""
    for part in parts:
        start, stop = part[span]
        low, high = max(start, wanted.start), min(stop, wanted.stop)
        if low < high:
            value[low - wanted.start : high - wanted.start].copy_(part[kind][name][low - start : high - start])


def rows_into(parts: Sequence[dict[str, Any]], name: str, workers: range, value: Tensor) -> None:
    """Copy the local workers' rows of what the parts keep under `name` into `value`."""
    _copy_cut(parts, "rows", "workers", name, workers, value)
