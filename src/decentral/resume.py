"""A run's state as parts of a checkpoint, one part for each process, and back: for any number of processes.

The kinds of state (`Rows`, `EdgeRows`, `Shared`, `Buffers`, see algorithms/algorithm.py) are read from the annotations
of the algorithm's `State`. Rows of workers and of links are consecutive on a process, so a process finds its own rows
in the parts of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ForwardRef

import torch
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
        else:
            part["rows" if kind == "Rows" else "shared"][name] = value
    part["rows"] |= {f"buffer {name}": value for name, value in problem.buffers().items()}
    return part


def from_parts(parts: Sequence[dict[str, Any]], initial: Any, problem: Problem, net: Network) -> Any:
    """The state of this process from the parts of all; `initial` is a state of the right shapes. Buffers are set in
    place."""
    parts = sorted(parts, key=lambda part: part["workers"][0])

    def rows(name: str, like: Tensor) -> Tensor:
        return _cut(parts, "rows", "workers", name, net.workers).to(like.device)

    def restore(name: str, kind: str, value: Any) -> Any:
        if kind == "Buffers":
            return tuple(rows(f"{name}.{i}", buffer) for i, buffer in enumerate(value))
        if kind == "Rows":
            return rows(name, value)
        if kind == "EdgeRows":
            return _cut(parts, "edges", "links", name, net.local_links).to(value.device)
        return parts[0]["shared"][name].to(value.device)

    for name, value in problem.buffers().items():
        value.copy_(rows(f"buffer {name}", value))
    return type(initial)(*(restore(name, kind, value) for name, kind, value in _fields(initial)))


def _fields(state: Any) -> list[tuple[str, str, Any]]:
    """(name, kind, value) of each field of a State."""
    annotations = type(state).__annotations__
    kinds: Callable[[Any], str] = lambda a: a.__forward_arg__ if isinstance(a, ForwardRef) else str(a)  # noqa: E731
    return [(name, kinds(annotations[name]), getattr(state, name)) for name in state._fields]


def _cut(parts: Sequence[dict[str, Any]], kind: str, span: str, name: str, wanted: range) -> Tensor:
    """Rows `wanted` (global numbers) of a tensor that is spread over the parts."""
    found = []
    for part in parts:
        start, stop = part[span]
        low, high = max(start, wanted.start), min(stop, wanted.stop)
        if low < high:
            found.append(part[kind][name][low - start : high - start])
    return torch.cat(found) if found else parts[0][kind][name][:0]


def rows_of(parts: Sequence[dict[str, Any]], name: str, workers: range) -> Tensor:
    """The local workers' rows of what the parts keep under `name`."""
    return _cut(sorted(parts, key=lambda part: part["workers"][0]), "rows", "workers", name, workers)
