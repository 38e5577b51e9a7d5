"""What a step of DiLoCo costs beside one of local SGD, between two outer steps and in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.jobs.timing.times import in_turn

_SHARED = ("task=images", "data=digits", "num_workers=16", "optim=adamw", "lr=0.001")
_MODELS = (("mlp", 40), ("cnn", 4))  # and how many steps are timed in a round
_NEVER = "algo.period_steps=1000000000"
_COLUMNS = {
    "model": "model, digits, 16 workers",
    "local_ms": "local SGD, a step without averaging (ms CPU)",
    "diloco_ms": "DiLoCo, a local step (ms CPU)",
    "ratio": "DiLoCo / local SGD",
    "outer_ms": "DiLoCo, a step with an outer step (ms CPU)",
}


@dataclass
class OuterOptimizer(Benchmark):
    """Local steps of both methods with AdamW, in turn; and DiLoCo's with an outer step in each."""

    name: str = "outer"
    title: ClassVar[str] = "a local step of DiLoCo / one of local SGD"

    def measure(self, effort: Effort) -> Findings:
        """Every model; the smallest only in a quick benchmark."""
        models = _MODELS[:1] if effort.quick else _MODELS
        rows = [measured(model, effort.rounds, 1 if effort.quick else repeats) for model, repeats in models]
        targets = [
            Target(f"DiLoCo's local step / local SGD's, {row['model']}", row["ratio"].median, at_most=1.02)
            for row in rows
        ]
        return Findings([Table("Between two outer steps, and in one; one thread", _COLUMNS, rows)], targets)


def measured(model: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Steps with this model."""
    works = {
        "local": Steps(*_SHARED, f"model={model}", "algo=local_sgd", _NEVER),
        "diloco": Steps(*_SHARED, f"model={model}", "algo=diloco", _NEVER),
        "outer": Steps(*_SHARED, f"model={model}", "algo=diloco", "algo.period_steps=1"),
    }
    times = in_turn(works, rounds, repeats)
    return {
        "model": model,
        **{f"{name}_ms": 1e3 * times.median(name) for name in works},
        "ratio": times.ratio("diloco", "local"),
    }
