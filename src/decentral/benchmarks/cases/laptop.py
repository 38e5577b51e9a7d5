"""What a run of the studies' `scale=laptop` costs beyond its passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Target
from decentral.benchmarks.harness.whole_runs import whole_run

_SETTINGS = (
    *("experiment=relaysum_cifar10", "topology.split=interleaved", "alpha=0.01"),
    *("precision=bf16", "evaluation.precision=bf16"),
)
_EPOCHS = 15


@dataclass
class Laptop(Benchmark):
    """A cell of RelaySum's Table 1: bfloat16, in training and tests, Nesterov momentum, evaluated at the end; see
    `whole_run`."""

    name: str = "laptop"
    title: ClassVar[str] = "a run of scale=laptop / its passes"

    def measure(self, effort: Effort) -> Findings:
        """The whole run, and its evaluations apart."""
        found = whole_run(_SETTINGS, _EPOCHS, _EPOCHS, effort)
        seconds, steps_s = found.seconds, found.steps_s
        evaluations_s = seconds["the curve's evaluations"] + seconds["the last evaluation"]
        data_and_evaluations = (seconds["data"] + evaluations_s) / steps_s
        targets = [
            Target("a laptop-scale run: a step / its passes", steps_s / seconds["passes"], 1.10),
            Target("a laptop-scale run: data and evaluations / steps", data_and_evaluations, 0.10),
            Target("a laptop-scale run: the last evaluation / its forward passes alone", found.last_over_forward, 1.10),
        ]
        note = (
            f"The passes of {_EPOCHS} epochs alone take {found.alone_s:.0f} s. Checkpoints are those of the one epoch "
            "that is timed."
        )
        return Findings([found.table()], targets, [note])
