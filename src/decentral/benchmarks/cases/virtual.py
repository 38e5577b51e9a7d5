"""What training in a virtual cluster costs beyond the same number of gradients in lockstep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.jobs.timing.times import in_turn

_ROUNDS = {"dpsgd": "ring", "allreduce": "ring", "relaysgd": "dbt"}
_ASYNCHRONOUS = {
    "wagma": "allreduce",
    "eager_sgd": "allreduce",
    "adpsgd": "dpsgd",
    "a2cid2": "dpsgd",
    "async_push_sum": "dpsgd",
}
"""Each with the lockstep method that it is held against: one with the same pattern of averaging, where there is one."""
_CLUSTER = "cluster=two_delayed"
_IN_ROUNDS, _BY_THEMSELVES = 1.1, 1.3
_WORKERS = 16
_COLUMNS = {
    "model": "model",
    "method": "method in the virtual cluster",
    "to": "lockstep method",
    "virtual_ms": "n gradients, virtual (ms CPU)",
    "lockstep_ms": "n gradients, lockstep (ms CPU)",
    "ratio": "virtual / lockstep",
}


class Model(NamedTuple):
    """What is trained, how many steps are timed together, and whether asynchronous methods have a limit there."""

    name: str
    settings: tuple[str, ...]
    repeats: int
    limited: bool = True


_MODELS = (
    Model("cnn, digits", ("model=cnn",), 3),
    Model("mlp [64, 64], digits", ("model=mlp",), 20, limited=False),
)


@dataclass
class Virtual(Benchmark):
    """Runs of 16 workers take turns, one thread; a step of an asynchronous method is 16 gradients, by whomever."""

    name: str = "virtual"
    title: ClassVar[str] = "n gradients in a virtual cluster / n gradients in lockstep"

    def measure(self, effort: Effort) -> Findings:
        """Both models; only the smaller one in a quick run."""
        rows = [row for model in (_MODELS[1:] if effort.quick else _MODELS) for row in compared(model, effort)]
        targets = [
            Target(f"{row['method']} in a virtual cluster / {row['to']} in lockstep, {row['model']}",
                   row["ratio"][0], row["at_most"])
            for row in rows if row["at_most"] is not None
        ]  # fmt: skip
        notes = [
            f"All virtual runs are in {_CLUSTER}: 2 of {_WORKERS} workers are late in every step, so that gradients "
            "are begun at different times and workers are not equally far. Methods in rounds are held against "
            "themselves without a cluster. The mlp is shown for what an operation costs: its gradient takes a tenth of "
            "a millisecond, as long as what Python does for an update, a meeting and an average of one worker; in "
            "lockstep these are done for all workers at once."
        ]
        return Findings([Table("A step with and without simulated time", _COLUMNS, rows)], targets, notes)


def compared(model: Model, effort: Effort) -> list[dict[str, Any]]:
    """A row for each method: its step in the virtual cluster, and the lockstep one, in turn."""
    shared = (*model.settings, f"num_workers={_WORKERS}", "execution=auto", "steps=1000000")
    runs: dict[str, Steps] = {}
    for method, topology in _ROUNDS.items():
        settings = (f"algo={method}", f"topology={topology}", *shared)
        runs |= {method: Steps(*settings), f"virtual {method}": Steps(*settings, _CLUSTER)}
    runs |= {f"virtual {method}": Steps(f"algo={method}", *shared, _CLUSTER) for method in _ASYNCHRONOUS}
    times = in_turn(runs, effort.rounds, 1 if effort.quick else model.repeats)
    pairs: list[tuple[str, str, float | None]] = [(method, method, _IN_ROUNDS) for method in _ROUNDS]
    pairs += [(method, to, _BY_THEMSELVES if model.limited else None) for method, to in _ASYNCHRONOUS.items()]
    rows = [
        {
            "model": model.name,
            "method": method,
            "to": to,
            "virtual_ms": 1e3 * times.median(f"virtual {method}"),
            "lockstep_ms": 1e3 * times.median(to),
            "ratio": times.ratio(f"virtual {method}", to),
            "at_most": at_most,
        }
        for method, to, at_most in pairs
    ]
    for run in runs.values():
        run.close()
    return rows
