"""What a step of n workers in one process costs beyond their forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.benchmarks import hybrid
from decentral.benchmarks.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.runner import Steps, passes
from decentral.benchmarks.times import in_turn

_ALGORITHMS = (
    ("dpsgd", "ring"),
    ("relaysgd", "dbt"),
    ("gradient_tracking", "ring"),
    ("sgp", "one_peer_exponential"),
)
_LONG_ROUNDS = 5  # of steps that take a second
_JUDGED = ("dpsgd", "relaysgd")
_COLUMNS = {
    "model": "model",
    "algorithm": "algorithm",
    "num_workers": "n",
    "parameters": "P",
    "passes_ms": "n passes (ms CPU)",
    "step_ms": "step (ms CPU)",
    "ratio": "step / passes",
}


class Model(NamedTuple):
    """What is trained: its name in the tables, its settings, and how many steps are timed together."""

    name: str
    settings: tuple[str, ...]
    repeats: int
    judged: bool = True


VGG11 = ("model=vgg11", "data=synthetic", "data.image_size=32", "data.num_classes=10", "num_workers=4")
_MODELS = (
    Model("cnn, digits", ("model=cnn", "num_workers=16"), 5),
    Model("mlp [64, 64], digits, batch 16", ("model=mlp", "num_workers=64", "batch_size=16"), 5, judged=False),
    Model("vgg11, batch 32", VGG11, 1),
)


@dataclass
class Simulated(Benchmark):
    """The step of each algorithm and the passes alone take turns; `execution=auto`, one thread."""

    name: str = "simulated"
    title: ClassVar[str] = "a step of n workers in one process / their n forward and backward passes alone"

    def measure(self, effort: Effort) -> Findings:
        """All models; only the smallest in a quick run."""
        rows: list[dict[str, Any]] = []
        for model in _MODELS[:1] if effort.quick else _MODELS:
            rows += overhead(model, _ALGORITHMS, effort)
        targets = [
            Target(
                f"step / passes, {row['model']}, n = {row['num_workers']}, {row['algorithm']}", row["ratio"][0], 1.10
            )
            for row in rows
            if row["judged"]
        ]
        spread, target = hybrid.measure(effort)
        notes = [
            "The passes are the strictest baseline of workers one by one: plain modules with parameters of their own, "
            "on batches that are there already, with gradients that are computed and dropped. A step also draws the "
            "batches, keeps the gradients, and does the optimizer and the exchange. Where `auto` computes workers side "
            "by side, all of it can take less than the passes."
        ]
        tables = [Table(f"CPU time of a step and of its passes ({chosen(rows)})", _COLUMNS, rows), spread]
        return Findings(tables, [*targets, target], notes)


def chosen(rows: Sequence[dict[str, Any]]) -> str:
    """What `execution=auto` is for each model."""
    choices = {row["model"]: row["execution"] for row in rows}
    return "execution=auto: " + "; ".join(f"{model}: {choice}" for model, choice in choices.items())


def overhead(model: Model, algorithms: Sequence[tuple[str, str]], effort: Effort) -> list[dict[str, Any]]:
    """A row for each algorithm: the time of its step, and of the passes alone, in turn."""
    runs = {
        f"{algo} {topology}": Steps(f"algo={algo}", f"topology={topology}", "execution=auto", *model.settings)
        for algo, topology in algorithms
    }
    first = next(iter(runs.values()))
    repeats = 1 if effort.quick else model.repeats
    rounds = min(effort.rounds, _LONG_ROUNDS) if model.repeats == 1 else effort.rounds
    times = in_turn({"passes": passes(first.run), **runs}, rounds, repeats)
    rows = []
    for (algo, topology), (label, run) in zip(algorithms, runs.items(), strict=True):
        rows.append(
            {
                "model": model.name,
                "algorithm": f"{algo}, {topology}",
                "num_workers": run.run.net.n,
                "parameters": run.num_parameters,
                "passes_ms": 1e3 * times.median("passes"),
                "step_ms": 1e3 * times.median(label),
                "ratio": times.ratio(label, "passes"),
                "execution": run.run.problem.facts["execution"],
                "judged": model.judged and algo in _JUDGED,
            }
        )
        run.close()
    return rows
