"""Keeping the trained models: which of them, and when."""

from __future__ import annotations

import math
import struct
from io import BytesIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from decentral.config.identity import run_id
from decentral.config.schema import Save
from decentral.network.kernels import blocks
from decentral.store.models import AVERAGED, FILE, save_models, stored_facts
from decentral.tasks.task import Problem
from decentral.training.evaluation import Evaluation

if TYPE_CHECKING:
    from decentral.store import RunStore
    from decentral.training.assemble import Run

LIMIT_BYTES = 2 << 30
"""If the models of all workers take more, only the worst worker's and the averaged one are kept."""


class Keeper:
    """Writes the models where `save` says so. All processes call it after the same evaluations."""

    def __init__(self, r: Run, store: RunStore) -> None:
        self._run, self._store = r, store
        best = _best_so_far(store, run_id(r.config)) if r.config.save is Save.best else -math.inf
        (self._best,) = struct.unpack("d", r.world.collect(struct.pack("d", best))[0])

    def evaluated(self, step: int, found: Evaluation) -> str:
        """Keep the models after this step, if it is one of those to keep; a sentence where not all of them are.

        `best` is by the first metric of the worst worker. Models that have diverged are not kept.
        """
        r, keep = self._run, self._run.config.save
        if keep is Save.none or found.diverged or not keeps_models(r.problem):
            return ""
        score = found.worst(0) if found.metrics[0].larger_is_better else -found.worst(0)
        if not r.ends_at(step) if keep is Save.final else step == 0 or score <= self._best:
            return ""
        self._best = score
        x, worst = r.stepper.models, found.worst_worker
        all_of_them = r.net.n * x[0].numel() * x.element_size() <= LIMIT_BYTES
        workers = range(r.net.n) if all_of_them else [worst]
        models = models_of(r, workers)
        if r.world.leader:
            facts = {"run_id": run_id(r.config), "step": step, "num_workers": r.net.n, "worst": worst, "score": score}
            with self._store.in_place():
                save_models(self._store.path, models, facts)
        said = (
            []
            if all_of_them
            else [f"the models take more than 2 GB: {FILE} has worker {worst}, the worst, and the average"]
        )
        return "; ".join([*said, *_left_out(r.problem)])


def _left_out(problem: Problem) -> list[str]:
    """A sentence where training changes attributes, which no file of models holds."""
    (state, *_) = problem.model_states() or [{}]
    extra = state.get("extra", {})
    names = [name.removeprefix(".") for name in state.get("attributes", {}) if name.rpartition(".")[0] not in extra]
    if not names:
        return []
    return [f"{FILE} leaves out what training has changed of {', '.join(sorted(names))}: get_extra_state would keep it"]


def _best_so_far(store: RunStore, id: str) -> float:
    """The score of the models that this run has kept; minus infinity if what is there is not its own."""
    facts = stored_facts(store.path)
    try:
        return float(facts.get("score", -math.inf)) if facts.get("run_id") == id else -math.inf
    except (TypeError, ValueError):
        return -math.inf


def keeps_models(problem: Problem) -> bool:
    """Whether what it trains are modules, whose tensors have names."""
    return getattr(problem.model_tensors, "__func__", None) is not Problem.model_tensors


def models_of(r: Run, workers: range | list[int]) -> dict[str, dict[str, Any]]:
    """The models of these workers and the averaged one, by name: on the leader; elsewhere nothing. All call this."""
    x, net = r.stepper.models, r.net
    averaged, rows = net.average(x), _rows_of(r, workers)
    r.problem.average_states(net)
    states = _states_of_all(r)
    if not r.world.leader:
        return {}
    own = {f"worker{i}": r.problem.model_tensors(row, states[i]) for i, row in zip(workers, rows, strict=True)}
    return {AVERAGED: r.problem.averaged_tensors(averaged), **own}


def _states_of_all(r: Run) -> list[dict[str, Any]]:
    """Of the modules of all n workers, on every process."""
    states = r.problem.model_states() or [{}] * len(r.net.workers)
    if r.world.size == 1 or not any(r.world.any(any(states))):
        return [*states, *[{}] * (r.net.n - len(states))]
    file = BytesIO()
    torch.save(states, file)
    parts = r.world.collect_any(file.getvalue())
    return [state for part in parts for state in torch.load(BytesIO(part), map_location="cpu", weights_only=True)]


def _rows_of(r: Run, workers: range | list[int]) -> Tensor:
    """The rows of these workers, on the CPU of the leader: those of the state, if they are there already."""
    x, net = r.stepper.models, r.net
    if r.world.size == 1 and x.device.type == "cpu":
        return x if len(workers) == net.n else x[list(workers)]
    rows = torch.empty(len(workers) if r.world.leader else 0, x.shape[1], dtype=x.dtype)
    for columns in blocks(x.shape[1], net.n, x):
        block = net.gather(x[:, columns].contiguous())
        if r.world.leader:
            rows[:, columns] = block[list(workers)]
    return rows
