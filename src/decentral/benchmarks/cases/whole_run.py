"""What a whole run costs beyond its passes: the data, the exchange, evaluations, checkpoints, the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Target
from decentral.benchmarks.harness.whole_runs import whole_run
from decentral.tasks.images import Images

_EPOCHS = 10


@dataclass
class WholeRun(Benchmark):
    """With the settings that a run has by default; see `whole_run`."""

    name: str = "whole_run"
    title: ClassVar[str] = "a default run of ten epochs on data like CIFAR-10 / its passes alone"

    def measure(self, effort: Effort) -> Findings:
        """The whole run, and its evaluations apart."""
        found = whole_run((), _EPOCHS, Images.eval_every_epochs, effort)
        seconds = found.seconds
        curve_s = seconds["the curve's evaluations"]
        all_evaluations_s = curve_s + seconds["the last evaluation"]
        targets = [
            Target("the whole run / its passes alone", found.all_s / found.alone_s, 1.20),
            Target("all its evaluations / its passes alone", all_evaluations_s / found.alone_s, 0.10),
            Target("its curve's evaluations / its passes", curve_s / seconds["passes"], 0.10),
            Target("its last evaluation / the forward passes of that alone", found.last_over_forward, 1.10),
        ]
        notes = [
            f"The passes alone take {found.alone_s:.0f} s. Checkpoints are those of the one epoch that is timed.",
            "The last evaluation is always of 16 workers and their average on all 10,000 test examples. With a forward "
            "pass a third of the operations of forward and backward, that would be 17 x 10,000 / 3 / (10 x 50,000) = "
            "0.113 of the passes of ten epochs; so it is held against its own forward passes, too.",
            "The run's own passes, side by side, take less time than those alone, which are of plain modules.",
        ]
        return Findings([found.table()], targets, notes)
