"""Checkpoints and saved models: the state as one part per process, restored on any number of processes.

The kinds of state (`Rows`, `EdgeRows`, `Shared`, `Buffers`, see algorithms/algorithm.py) are read from the annotations
of the algorithm's `State`. Rows of workers and of edges are consecutive on a process, so a process finds its own rows
in the parts of others.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, ForwardRef

import torch
from torch import Tensor

from decentral.config.schema import Save
from decentral.errors import ConfigError
from decentral.network.kernels import blocks
from decentral.network.network import Network
from decentral.store.models import AVERAGED, FILE, save_models, stored_facts
from decentral.tasks.task import Problem
from decentral.training.evaluation import Evaluation
from decentral.training.oracle import GradientOracle

if TYPE_CHECKING:
    from decentral.network.world import World
    from decentral.store import RunStore
    from decentral.training.assemble import Run

LIMIT_BYTES = 2 << 30
"""Above this size of all workers' models, only the worst worker's and the averaged one are kept."""

_KINDS = ("Rows", "EdgeRows", "Shared", "Buffers")


def to_part(state: Any, problem: Problem, oracle: GradientOracle, net: Network) -> dict[str, Any]:
    """Return this process's part: its workers and edges, the rows of both, and the shared values."""
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
    part["carried"] = net.traffic.carried
    return part


def from_parts(
    parts: Sequence[dict[str, Any]], step: int, state: Any, problem: Problem, oracle: GradientOracle, net: Network
) -> None:
    """Restore this process's share of the parts, after `step` steps, into a state of the right shapes, the problem and
    the oracle."""

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
    own = next((part for part in parts if part["workers"] == [net.workers.start, net.workers.stop]), parts[0])
    net.traffic.carried = own.get("carried", {})  # those that are older have none
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
    """Return the buffers of modules from the older format, in which they were rows."""
    buffers = {name.removeprefix("buffer "): rows for name, rows in part["rows"].items() if name.startswith("buffer ")}
    workers = range(part["workers"][1] - part["workers"][0])
    return [{"tensors": {name: rows[j] for name, rows in buffers.items()}} for j in workers] if buffers else []


def whole_state(state: Any, world: World) -> dict[str, Tensor]:
    """Gather CPU copies of a state's fields over all processes, named `state.x`, `state.opt.0` and so on, on the
    leader; nothing on other processes. All call this."""
    own, shared = dict[str, Tensor](), set()
    for name, kind, value in state_fields(state):
        each = {f"state.{name}.{i}": buffer for i, buffer in enumerate(value)} if kind == "Buffers" else {}
        own |= each or ({} if _is_empty(value) or kind == "Buffers" else {f"state.{name}": value})
        if kind == "Shared":
            shared.add(f"state.{name}")
    file = BytesIO()
    torch.save({name: value.cpu() for name, value in own.items()}, file)
    parts = [torch.load(BytesIO(part), weights_only=True) for part in world.collect_any(file.getvalue())]
    if not world.leader:
        return {}
    return {
        name: value if name in shared else torch.cat([part[name] for part in parts]) for name, value in parts[0].items()
    }


def _is_empty(value: Any) -> bool:
    """Return whether the value is empty, such as residuals without compression."""
    return isinstance(value, Tensor) and value.numel() == 0


def state_fields(state: Any) -> list[tuple[str, str, Any]]:
    """Return (name, kind, value) of each field of a State. Raises TypeError for a field without a kind annotation."""
    annotations = type(state).__annotations__
    kinds: Callable[[Any], str] = lambda a: a.__forward_arg__ if isinstance(a, ForwardRef) else str(a)  # noqa: E731
    found = [(name, kinds(annotations[name]), getattr(state, name)) for name in state._fields]
    for name, kind, _ in found:
        if kind not in _KINDS:
            raise ConfigError(f"{type(state).__qualname__}.{name}: annotate it as Rows, EdgeRows, Shared or Buffers.")
    return found


def tensors_of(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a field."""
    return value if isinstance(value, tuple) else (value,)


def _copy_cut(parts: Sequence[dict[str, Any]], kind: str, span: str, name: str, wanted: range, value: Tensor) -> None:
    """Copy rows `wanted` (global numbers) of a tensor distributed over the parts into `value`."""
    for part in parts:
        start, stop = part[span]
        low, high = max(start, wanted.start), min(stop, wanted.stop)
        if low < high:
            value[low - wanted.start : high - wanted.start].copy_(part[kind][name][low - start : high - start])


class Keeper:
    """The writer of models, by `save`. All processes call it after the same evaluations."""

    def __init__(self, r: Run, store: RunStore) -> None:
        self._run, self._store = r, store
        best, facts = -math.inf, stored_facts(store.path)
        if r.config.save is Save.best and facts.get("run_id") == r.prepared.id:
            with suppress(TypeError, ValueError, KeyError):  # the existing file is not ours
                best = float(facts["score"])
        (self._best,) = struct.unpack("d", r.world.collect(struct.pack("d", best))[0])

    def evaluated(self, step: int, found: Evaluation) -> str:
        """Save the models after this step, if selected; return a sentence if not all are saved.

        `best` is by the first metric of the worst worker. Diverged models are not saved, nor objects other than
        modules, whose tensors have names.
        """
        r, keep = self._run, self._run.config.save
        has_modules = getattr(r.problem.model_tensors, "__func__", None) is not Problem.model_tensors
        if keep is Save.none or found.diverged or not has_modules:
            return ""
        score = found.worst(0) if found.metrics[0].larger_is_better else -found.worst(0)
        if not r.ends_at(step) if keep is Save.final else step == 0 or score <= self._best:
            return ""
        self._best = score
        x, worst = r.stepper.models, found.worst_worker
        all_of_them = r.net.n * x[0].numel() * x.element_size() <= LIMIT_BYTES
        models = _models(r, range(r.net.n) if all_of_them else [worst])
        if r.world.leader:
            facts = {"run_id": r.prepared.id, "step": step, "num_workers": r.net.n, "worst": worst, "score": score}
            with self._store.in_place():
                save_models(self._store.path, models, facts)
        if all_of_them:
            return ""
        return f"the models take more than 2 GB: {FILE} has worker {worst}, the worst, and the average"


def _models(r: Run, workers: range | list[int]) -> dict[str, dict[str, Any]]:
    """Gather the models of these workers and the averaged one, by name, on the leader. All processes call this."""
    x, net, world = r.stepper.models, r.net, r.world
    averaged = r.problem.averaged(net.average(x), x, net)
    if world.size == 1 and x.device.type == "cpu":
        rows = x if len(workers) == net.n else x[list(workers)]
    else:
        rows = torch.empty(len(workers) if world.leader else 0, x.shape[1], dtype=x.dtype)
        for columns in blocks(x.shape[1], net.n, x):
            block = net.gather(x[:, columns].contiguous())
            if world.leader:
                rows[:, columns] = block[list(workers)]
    r.problem.average_states(net)
    states = r.problem.model_states() or [{}] * len(net.workers)
    if world.size > 1 and any(world.any(any(states))):
        file = BytesIO()
        torch.save(states, file)
        parts = [BytesIO(part) for part in world.collect_any(file.getvalue())]
        states = [state for part in parts for state in torch.load(part, map_location="cpu", weights_only=True)]
    elif world.size > 1:
        states = [{}] * net.n
    if not world.leader:
        return {}
    own = {f"worker{i}": r.problem.model_tensors(row, states[i]) for i, row in zip(workers, rows, strict=True)}
    return {AVERAGED: r.problem.model_tensors(averaged, None), **own}
