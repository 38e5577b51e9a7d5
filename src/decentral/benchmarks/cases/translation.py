"""What a step costs beside its passes where every worker has a batch of another size, and what is filled up."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.jobs.timing.times import in_turn

if TYPE_CHECKING:
    from decentral.training.assemble import Run

_SETTINGS = ("task=translation", "algo=dpsgd", "topology=ring", "num_workers=8", "optim=sgd", "lr=0.1")
_QUICK = ("data.num_train=500", "model.dim=16", "model.hidden=16", "batch_size=4")
_COLUMNS = {
    "run": "run, 8 workers",
    "num_parameters": "P",
    "passes_ms": "passes alone (ms CPU)",
    "step_ms": "step (ms CPU)",
    "ratio": "step / passes",
    "padded": "share of tokens that fills up",
}


@dataclass
class Translation(Benchmark):
    """D-PSGD on a ring with plain SGD on the bundled sentences, and the passes of the same batches, in turn."""

    name: str = "translation"
    title: ClassVar[str] = "a step of 8 workers on sentences / its forward and backward passes alone"

    def measure(self, effort: Effort) -> Findings:
        """The small Transformer; a smaller one in a quick benchmark."""
        run = Steps(*_SETTINGS, *(_QUICK if effort.quick else ()))
        repeats = 1 if effort.quick else 4
        alone = Passes(run.run, 1 + effort.rounds * repeats)
        times = in_turn({"step": run, "passes": alone}, effort.rounds, repeats)
        row: dict[str, Any] = {
            "run": "reversal, transformer_small",
            "num_parameters": run.num_parameters,
            "passes_ms": 1e3 * times.median("passes"),
            "step_ms": 1e3 * times.median("step"),
            "ratio": times.ratio("step", "passes"),
            "padded": run.run.problem.facts["padded_share_of_tokens"],
        }
        run.close()
        targets = [
            Target("translation: a step / its passes", row["step_ms"] / row["passes_ms"], 1.15),
            Target("translation: share of tokens that fills up batches", row["padded"], 0.15),
        ]
        note = "The passes are those of plain torch modules, one after the other, whose gradients are dropped."
        return Findings([Table("Steps on sentences of unequal lengths, one thread", _COLUMNS, [row])], targets, [note])


class Passes:
    """The forward and backward passes of the run's model on the batches of its first steps, a step at each call."""

    def __init__(self, run: Run, steps: int) -> None:
        from decentral.tasks.problems.translation import Translating

        assert isinstance(run.problem, Translating)
        self.loss, data, order = run.problem.loss, run.problem.data, run.problem.order
        self.batches = [[data.batch(data.train, numbers) for numbers in order(draw)] for draw in range(steps)]
        self.step = 0
        template = run.config.model.build(run.config.data.inspect())
        self.models = [deepcopy(template) for _ in run.problem.workers]

    def __call__(self) -> None:
        """One step of all workers."""
        import torch

        batches = self.batches[self.step]
        self.step += 1
        with torch.enable_grad():
            for model, (sentences, target) in zip(self.models, batches, strict=True):
                torch.autograd.grad(self.loss(model(sentences), target), list(model.parameters()))
