"""How much of a run its evaluations may take: the settings `evaluation.*`, and what an evaluation looks at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.settings import Settings, setting

_SHARE = 0.1  # of the time of the training passes that the evaluations of the curve may take, by default
_FORWARD = 0.3  # of a forward and backward pass (measured on a CPU: cnn 0.31, VGG-11 0.32, ResNet-18 0.28)
_LEAST_EXAMPLES = 200  # below, an accuracy says nothing
_FEW_EXAMPLES = 1000  # of which all are looked at: that takes seconds


@dataclass
class EvaluationSettings(Settings, where="evaluation"):
    """When and on how much the models are tested on the way. The last evaluation is always on all test examples.

    every_epochs  how often, in passes over the data (null: as the task suggests; where a pass is one step, about 100
                times in a run)
    every_simulated_s  how often in a virtual cluster, instead: after the step in which another so many seconds are over
    examples    on how many test examples, always the same ones, drawn by the seed: a number, all, or auto: so many
                that all evaluations, the last one too, take a tenth of the time of the training passes, but no fewer
                than 200, and all where there are no more than 1000. The iterates and the last evaluation do not depend
                on it, so that auto and all are one run, with one id
    initial     evaluate before the first step, too
    batch_size  test examples per forward pass
    precision   of the forward passes: fp32, or tf32 (on GPUs) or bf16, which are faster; what they give is added up in
                float32. With bf16 a few of 1000 answers are others. A run of precision=fp64 is evaluated in float64
    """

    every_epochs: float | None = setting(None, above=0, hint="a number of epochs")
    every_simulated_s: float | None = setting(None, above=0, hint="a number of seconds", older=None)
    examples: str = field(default="auto", metadata={"older": "all", "the_same": ("auto",)})
    initial: bool = field(default=True, metadata={"older": True})
    batch_size: int = setting(500, at_least=1)
    precision: Precision = field(default=Precision.fp32, metadata={"older": Precision.fp32})

    def __post_init__(self) -> None:
        if self.examples not in ("auto", "all") and not (self.examples.isdigit() and int(self.examples) >= 1):
            raise ConfigError(
                f"evaluation.examples={self.examples} makes no sense: give a number of test examples, all, or auto."
            )
        if self.precision is Precision.fp64:
            raise ConfigError(
                "evaluation.precision=fp64 is more than the models have: leave it out; a run of precision=fp64 is "
                "evaluated in float64."
            )

    def on_the_way(self, num_train: int, num_test: int, num_workers: int, epochs: float) -> int | None:
        """How many test examples an evaluation before the last one looks at; None for all of them.

        auto: in T epochs of N examples with an evaluation every E epochs, which n workers and their average take part
        in, each forward pass being a fraction f of the work of training on an example, evaluations of S examples and a
        last one of N' take a share f (n + 1) (S (ceil(T / E) - 1) + N') / (T N) of the passes.
        """
        if self.examples == "all" or (self.examples == "auto" and num_test <= _FEW_EXAMPLES):
            return None
        assert self.every_epochs is not None
        forward_passes = _SHARE * epochs * num_train / (_FORWARD * (num_workers + 1))  # of each model
        affordable = (forward_passes - num_test) / max(1, math.ceil(epochs / self.every_epochs) - 1)
        wanted = max(_LEAST_EXAMPLES, int(affordable)) if self.examples == "auto" else int(self.examples)
        return wanted if wanted < num_test else None


def silent(text: str) -> None:
    """Tell nobody."""


class Scope(NamedTuple):
    """What an evaluation looks at, and who wants to hear how far it is."""

    examples: int | None = None
    """How many test examples, always the same ones; None for all."""
    tell: Callable[[str], None] = silent
    """Called with words such as 'worker 3 of 16', now and then."""


WHOLE = Scope()
"""All test examples; nobody wants to hear of it."""
