"""What a step on texts costs beside its forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps, passes
from decentral.jobs.timing.times import in_turn


class Case(NamedTuple):
    """A run: its settings, and how many of its steps are timed in a round."""

    name: str
    settings: tuple[str, ...]
    repeats: int


_SHARED = ("algo=dpsgd", "topology=ring", "num_workers=16", "optim=sgd", "lr=0.1")
CASES = (
    Case("text, fasttext", ("task=text", "model=fasttext"), 20),
    Case("text, text_transformer", ("task=text", "model=text_transformer"), 2),
    Case("language, char_transformer", ("task=language", "model=char_transformer"), 2),
    Case("language, char_lstm", ("task=language", "model=char_lstm"), 1),
)
_COLUMNS = {
    "run": "run, 16 workers",
    "num_parameters": "P",
    "passes_ms": "passes alone (ms CPU)",
    "step_ms": "step (ms CPU)",
    "ratio": "step / passes",
}


@dataclass
class Texts(Benchmark):
    """D-PSGD on a ring with plain SGD on the bundled texts, and the passes of its first batch, in turn."""

    name: str = "texts"
    title: ClassVar[str] = "a step of 16 workers on texts / its forward and backward passes alone"

    def measure(self, effort: Effort) -> Findings:
        """Every model; the smallest only in a quick benchmark."""
        rows = [measured(case, effort) for case in (CASES[:1] if effort.quick else CASES)]
        targets = [Target(f"{rows[0]['run']}: a step / its passes", rows[0]["step_ms"] / rows[0]["passes_ms"], 1.10)]
        note = "The passes are those of plain torch modules, one after the other, whose gradients are dropped."
        return Findings([Table("Steps on texts, one thread", _COLUMNS, rows)], targets, [note])


def measured(case: Case, effort: Effort) -> dict[str, Any]:
    """A step and the passes of one run."""
    run = Steps(*_SHARED, *case.settings)
    times = in_turn({"step": run, "passes": passes(run.run)}, effort.rounds, 1 if effort.quick else case.repeats)
    return {
        "run": case.name,
        "num_parameters": run.num_parameters,
        "passes_ms": 1e3 * times.median("passes"),
        "step_ms": 1e3 * times.median("step"),
        "ratio": times.ratio("step", "passes"),
    }
