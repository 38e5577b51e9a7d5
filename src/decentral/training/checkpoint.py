"""A run's state as parts of a checkpoint, one part for each process, and back: for any number of processes.

The kinds of state (`Rows`, `EdgeRows`, `Shared`, `Buffers`, see algorithms/algorithm.py) are read from the annotations
of the algorithm's `State`. Rows of workers and of edges are consecutive on a process, so a process finds its own rows
in the parts of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ForwardRef

import torch
from torch import Tensor

from decentral.network.network import Network
from decentral.tasks.task import Problem
from decentral.training.oracle import GradientOracle

_KINDS = ("Rows", "EdgeRows", "Shared", "Buffers")


def to_part(state: Any, problem: Problem, oracle: GradientOracle, net: Network) -> dict[str, Any]:
    """This process's part: its workers and edges, the rows of both, and what is the same everywhere."""
    part: dict[str, Any] = {"workers": [net.workers.start, net.workers.stop], "rows": {}, "edges": {}, "shared": {}}
    for name, kind, value in state_fields(state):
        if _is_empty(value):
            continue
        if kind == "Buffers":
            part["rows"] |= {f"{name}.{i}": buffer for i, buffer in enumerate(value)}
        elif kind == "EdgeRows":
            part["links"] = [net.local_edges.start, net.local_edges.stop]
            part["edges"][name] = value
        else:
            part[kind.lower()][name] = value
    part["rows"] |= oracle.rows()
    part["problem"] = problem.state()
    if net.clock is not None:
        part["clock"] = torch.from_numpy(net.clock.state())
        part["collectives"] = net.clock.used
    part["carried"] = net.carried
    return part


def from_parts(
    parts: Sequence[dict[str, Any]], step: int, state: Any, problem: Problem, oracle: GradientOracle, net: Network
) -> None:
    """Put this process's share of what the parts hold, after `step` steps, into a state of the right shapes, the
    problem and the oracle."""

    def restore_rows(name: str, value: Tensor) -> None:
        _copy_cut(parts, "rows", "workers", name, net.workers, value)

    for name, kind, value in state_fields(state):
        if _is_empty(value):
            continue
        if kind == "Buffers":
            for i, buffer in enumerate(value):
                restore_rows(f"{name}.{i}", buffer)
        elif kind == "Rows":
            restore_rows(name, value)
        elif kind == "EdgeRows":
            _copy_cut(parts, "edges", "links", name, net.local_edges, value)
        else:
            value.copy_(parts[0]["shared"][name])
    if net.clock is not None:
        net.clock.load_state(parts[0]["clock"].numpy())
        net.clock.used = parts[0].get("collectives", {})  # those that are older have none
    own = next((part for part in parts if part["workers"] == [net.workers.start, net.workers.stop]), parts[0])
    net.carried = own.get("carried", {})  # those that are older have none
    entries = {
        worker: entry
        for part in parts  # those that are older have no "problem"
        for worker, entry in zip(range(*part["workers"]), part.get("problem") or _older_states(part), strict=False)
    }
    if entries:
        problem.load_state([entries[worker] for worker in net.workers])
    if "num_losses" in parts[0]:  # as written before draws were counted, when every worker drew once in a step
        restore_rows("losses", oracle.losses)
        oracle.draws[:] = step
        oracle.draws_before[:] = step - int(parts[0]["num_losses"])
        return
    for name, value in oracle.rows().items():
        restore_rows(name, value)


def _older_states(part: dict[str, Any]) -> list[dict[str, Any]]:
    """The buffers of modules, as they were written while they were rows."""
    buffers = {name.removeprefix("buffer "): rows for name, rows in part["rows"].items() if name.startswith("buffer ")}
    workers = range(part["workers"][1] - part["workers"][0])
    return [{"tensors": {name: rows[j] for name, rows in buffers.items()}} for j in workers] if buffers else []


def _is_empty(value: Any) -> bool:
    """Whether there is nothing to remember: the residuals of what is sent as it is."""
    return isinstance(value, Tensor) and value.numel() == 0


def state_fields(state: Any) -> list[tuple[str, str, Any]]:
    """(name, kind, value) of each field of a State. Raises TypeError for one that is annotated as no kind."""
    annotations = type(state).__annotations__
    kinds: Callable[[Any], str] = lambda a: a.__forward_arg__ if isinstance(a, ForwardRef) else str(a)  # noqa: E731
    found = [(name, kinds(annotations[name]), getattr(state, name)) for name in state._fields]
    for name, kind, _ in found:
        if kind not in _KINDS:
            raise TypeError(f"{type(state).__qualname__}.{name}: annotate it as Rows, EdgeRows, Shared or Buffers")
    return found


def _copy_cut(parts: Sequence[dict[str, Any]], kind: str, span: str, name: str, wanted: range, value: Tensor) -> None:
    """Copy rows `wanted` (global numbers) of a tensor that is spread over the parts into `value`."""
    for part in parts:
        start, stop = part[span]
        low, high = max(start, wanted.start), min(stop, wanted.stop)
        if low < high:
            value[low - wanted.start : high - wanted.start].copy_(part[kind][name][low - start : high - start])
